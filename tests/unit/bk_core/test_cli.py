"""The command line over a client made of a few lines: what is printed, what is an error, and what is asked first."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from bk_core import cli
from bk_core.cli import ledgers, logs, output
from bk_core.display.words import preview
from bk_core.errors import NoSuchLedgerError
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

    def list_ledgers(self) -> list[int]:
        return sorted(self.ledgers)

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

    monkeypatch.setattr(ledgers, "connected", connected)
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
