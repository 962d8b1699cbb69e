"""The command line over a client made of a few lines: what is printed, what is an error, and what is asked first."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bk_core import cli
from bk_core.cli import ledger_entries, ledgers, logs, output
from bk_core.display.words import preview
from bk_core.errors import NoNodeError, NoSuchLedgerError
from bk_core.metadata.store import Versioned
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState

URI = "zk://127.0.0.1:1/ledgers"
PAYLOADS = [b"hello", b"\x00\xff", b""]
CLOSED = LedgerMetadata(
    3, 3, 2, LedgerState.CLOSED, (Fragment(0, ("b1:1", "b2:1", "b3:1")), Fragment(2, ("b1:1", "b4:1", "b3:1"))), 2, 7, password=b"secret"
)
OPEN = LedgerMetadata(3, 2, 2, LedgerState.OPEN, (Fragment(0, ("b1:1", "b2:1", "b3:1")),))


class Handle:
    last_add_confirmed = 2
    metadata = CLOSED

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read_runs(self, first: int, last: int) -> Iterator[Any]:
        chosen = PAYLOADS[first : last + 1]
        offsets = array("q", [0])
        for payload in chosen:
            offsets.append(offsets[-1] + len(payload))
        yield SimpleNamespace(first_entry_id=first, count=len(chosen), values=b"".join(chosen), offsets=memoryview(offsets))


class Client:
    def __init__(self) -> None:
        self.ledgers = {4: CLOSED, 9: OPEN}
        self.garbled: dict[int, bytes] = {}
        self.created_ms: int | None = None  # on the metadata store's clock
        self.store = self

    def read_ledger(self, ledger_id: int) -> Versioned:
        if ledger_id not in {**self.ledgers, **self.garbled}:
            raise NoNodeError(f"no ledger {ledger_id}")
        data = self.garbled.get(ledger_id) or metadata_codec.encode(self.ledgers[ledger_id])
        return Versioned(data, 0, self.created_ms)

    def read_ledgers(self, ledger_ids: Iterable[int]) -> Iterator[tuple[int, Versioned | None]]:
        for ledger_id in ledger_ids:
            try:
                yield ledger_id, self.read_ledger(ledger_id)
            except NoNodeError:
                yield ledger_id, None

    def list_ledgers(self) -> list[int]:
        return sorted({**self.ledgers, **self.garbled})

    def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        if ledger_id not in self.ledgers:
            raise NoSuchLedgerError(f"no ledger {ledger_id}")
        return self.ledgers[ledger_id]

    def open_ledger(self, ledger_id: int, *, password: bytes, digest_type: str | None) -> Handle:
        self.ledger_metadata(ledger_id)
        return Handle()

    def recover_ledger(self, ledger_id: int, *, password: bytes, digest_type: str | None) -> Handle:
        return Handle()

    def delete_ledger(self, ledger_id: int, *, even_if_listed: bool) -> None:
        del self.ledgers[ledger_id]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()

    @contextmanager
    def connected(uri: str, protocol: str) -> Iterator[Client]:
        assert (uri, protocol) == (URI, "v2")
        yield made

    for commands in (ledgers, ledger_entries):
        monkeypatch.setattr(commands, "connected", connected)
    monkeypatch.setattr(logs, "connected", connected)
    monkeypatch.setenv(output.URI_VARIABLE, URI)
    return made


def test_ls(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["ledger", "ls"]) == 0
    text = capsys.readouterr().out
    assert "CLOSED" in text and "3/2/2" in text and "2 ledgers" in text
    assert cli.run(["ledger", "ls", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["ledger"], first["lastEntryId"], first["length"]) == (4, 2, 7)
    assert (second["state"], second["lastEntryId"]) == ("OPEN", None)


def test_ls_shows_when_ledgers_were_made(client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made, day = 1_700_000_000_000, 86_400_000
    monkeypatch.setattr(ledgers, "now_ms", lambda: made + 3 * day)
    client.ledgers[4] = replace(CLOSED, ctime_ms=made)
    client.created_ms = made + 2 * day + 5  # what metadata without a time goes by, as in Java
    assert cli.run(["ledger", "ls"]) == 0
    closed, opened = capsys.readouterr().out.splitlines()[1:3]
    assert closed.split()[-3:] == ["2023-11-14", "22:13:20", "3d"] and opened.split()[-3:] == ["2023-11-16", "22:13:20", "23h"]
    assert cli.run(["ledger", "ls", "--json"]) == 0
    assert [json.loads(line)["createdMs"] for line in capsys.readouterr().out.splitlines()] == [made, client.created_ms]
    assert cli.run(["ledger", "show", "9"]) == 0
    text = capsys.readouterr().out
    assert "2023-11-16 22:13:20" in text and ["age", "23h"] in [line.split() for line in text.splitlines()]
    assert cli.run(["ledger", "show", "9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["createdMs"] == client.created_ms


def test_ls_shows_what_all_copies_take(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    """Three entries of 7 bytes in all, each with a header of 32 bytes and a CRC32C of 4, on three bookies."""
    assert cli.run(["ledger", "ls"]) == 0
    assert f" {3 * (7 + 3 * (32 + 4))} " in capsys.readouterr().out
    assert cli.run(["ledger", "ls", "--json"]) == 0
    assert [json.loads(line)["storedBytes"] for line in capsys.readouterr().out.splitlines()] == [345, None]


def test_ls_shows_a_ledger_that_cannot_be_understood(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.garbled[5] = b"something else"
    assert cli.run(["ledger", "ls"]) == 0
    said = capsys.readouterr()
    assert "UNREADABLE" in said.out and "3 ledgers" in said.out and "ledger 5: [BK-METADATA-FORMAT]" in said.err
    assert cli.run(["ledger", "ls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[1])["state"] == "UNREADABLE"


@pytest.mark.parametrize(
    ("change", "shown", "told"),
    [
        ({}, True, "yes"),
        ({"password": b""}, False, "no"),
        ({"stores_password": False, "password": b"given by a caller"}, None, "not known: the metadata stores none"),
    ],
)
def test_show_says_if_there_is_a_password(
    change: dict[str, Any], shown: bool | None, told: str, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    client.ledgers[4] = replace(CLOSED, **change)
    assert client.ledgers[4].has_password is shown
    assert cli.run(["ledger", "show", "4"]) == 0
    assert told in next(line for line in capsys.readouterr().out.splitlines() if line.startswith("password"))
    assert cli.run(["ledger", "show", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hasPassword"] is shown


def test_show_names_ensembles_and_no_password(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["ledger", "show", "4"]) == 0
    text = capsys.readouterr().out
    assert "b4:1" in text and "CRC32C" in text and "secret" not in text
    assert cli.run(["ledger", "show", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fragments"][1] == {"firstEntryId": 2, "ensemble": ["b1:1", "b4:1", "b3:1"]}


def test_read(client: Client, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert cli.run(["ledger", "read", "4"]) == 0
    text = capsysbinary.readouterr().out.decode()
    assert "hello" in text and "0x00ff" in text
    assert cli.run(["ledger", "read", "4", "--first", "1", "--last", "99", "--raw"]) == 1
    assert capsysbinary.readouterr().out == b"\x00\xff\n\n"
    assert cli.run(["ledger", "read", "4", "--last", "0", "--json"]) == 0
    assert json.loads(capsysbinary.readouterr().out) == {"entry": 0, "bytes": 5, "payload": "aGVsbG8="}


def test_recover_and_remove(client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.run(["ledger", "recover", "9"]) == 0
    assert "CLOSED, last entry 2" in capsys.readouterr().out
    monkeypatch.setattr("click.confirm", lambda *_args, **_options: (_ for _ in ()).throw(KeyboardInterrupt))
    assert cli.run(["ledger", "rm", "4"]) == 130
    assert 4 in client.ledgers
    assert cli.run(["ledger", "rm", "4", "--yes"]) == 0
    assert 4 not in client.ledgers


def test_errors_are_one_line(client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.run(["ledger", "rm", "5", "--yes"]) == 1
    assert capsys.readouterr().err == "error: [BK-NO-LEDGER] no ledger 5\n"
    monkeypatch.delenv(output.URI_VARIABLE)
    assert cli.run(["ledger", "ls"]) == 2
    assert "--uri" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b"", ""),
        (b"abc", "abc"),
        ("ü".encode(), "ü"),
        (b"a\nb", "0x610a62"),
        (b"x" * 81, "x" * 80 + " ..."),
        (b"\xff" * 400, "0x" + "f" * 78 + " ..."),
    ],
)
def test_preview(payload: bytes, shown: str) -> None:
    assert preview(payload) == shown
