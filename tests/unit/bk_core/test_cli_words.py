"""Words of the command line: what reaches a terminal, questions without an answer, reads that end early, new clusters and bookies."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

import bk_core
from bk_core import cli
from bk_core.bookie.server import EmbeddedBookie
from bk_core.cli import local, output
from bk_core.cli.terminal import SafeStream, safe_json, safe_streams
from bk_core.display.words import safe
from bk_core.errors import ClusterExistsError
from bk_core.metadata import open_store, paths
from bk_core.metadata.store import MetadataStore
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import LedgerState

# Colours, a title, a C1 introducer, a right-to-left override, an isolate, a line separator, a delete and half a character.
HOSTILE = "a\x1b[31mb\x1b]0;owned\x07c\x9b31md\u202egnp\u2066e\u2028f\x7fg\rh"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataStore]:
    uri = f"memory://{tmp_path.name}"
    store = open_store(uri)
    store.initialize_cluster()
    bookies = [EmbeddedBookie(tmp_path / str(i), "127.0.0.1", 0, store).start() for i in range(3)]
    monkeypatch.setenv(output.URI_VARIABLE, uri)
    yield store
    for bookie in bookies:
        bookie.close()
    store.close()


@pytest.fixture
def client(store: MetadataStore, tmp_path: Path) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(f"memory://{tmp_path.name}") as client:
        yield client


def is_text(shown: str) -> bool:
    return all(line.replace("\t", " ").isprintable() for line in shown.split("\n"))


def test_the_banner_has_the_whole_address_of_ipv6(capsys: pytest.CaptureFixture[str]) -> None:
    """Rich takes letters in brackets for a colour or a style."""
    uri = "zk://[fe80::1]:2181/ledgers"
    local._banner(uri, "embedded", ["[fe80::2]:3181"], None, [])
    out = capsys.readouterr().out
    assert out.count(uri) == 4 and "bookie: [fe80::2]:3181" in out


@pytest.mark.parametrize("command", ["ledger read 4", "ledger tail 4", "log tail events", "bookie cookie get b:1"])
def test_an_output_has_one_form(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(output.URI_VARIABLE, "memory://nobody asks it")
    assert cli.run([*command.split(), "--raw", "--json"]) == 2
    assert "--raw and --json exclude each other" in capsys.readouterr().err


# --- what reaches a terminal ---------------------------------------------------------------------------------------------


def test_nothing_of_a_ledger_reaches_the_terminal_raw(client: bk_core.BookKeeper, capsys: pytest.CaptureFixture[str]) -> None:
    with client.create_ledger(custom={HOSTILE: HOSTILE.encode()}) as ledger:
        ledger.append(HOSTILE.encode())
    for command in (["show"], ["show", "--json"], ["read"], ["read", "--json"]):
        assert cli.run(["ledger", command[0], str(ledger.ledger_id), *command[1:]]) == 0
        out, err = capsys.readouterr()
        assert is_text(out) and is_text(err), (command, out)
        if command == ["show"]:
            assert r"\x1b[31m" in out.replace("\n", "")
        elif command == ["show", "--json"]:
            assert list(json.loads(out)["custom"]) == [HOSTILE]


def test_nothing_of_errors_questions_and_log_lines_reaches_the_terminal_raw(
    client: bk_core.BookKeeper, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    @click.argument("how")
    def hostile(how: str) -> None:
        if how == "error":
            raise bk_core.BkError(HOSTILE)
        if how == "usage":
            raise click.UsageError(HOSTILE)
        if how == "os":
            raise OSError(HOSTILE)
        if how == "line":
            click.echo(HOSTILE)
        if how == "question":
            click.confirm(HOSTILE, abort=True, err=True)
        if how == "log":
            logging.getLogger("bk_core.words").addHandler(logging.lastResort or logging.NullHandler())
            logging.getLogger("bk_core.words").error("%s", HOSTILE)
        output.say_table([HOSTILE], [[HOSTILE]], title=HOSTILE)

    monkeypatch.setitem(cli.cli.commands, "hostile", hostile)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    for how, status in (("error", 1), ("usage", 2), ("os", 1), ("line", 0), ("question", 0), ("log", 0), ("table", 0)):
        assert cli.run(["hostile", how]) == status
        out, err = capsys.readouterr()
        assert is_text(out) and is_text(err), (how, out, err)
        shown = (out + err).replace("\n", "")
        assert r"\x1b]0;owned" in shown and r"a\x1b[31mb" in shown, how


@pytest.mark.parametrize(
    "code", [*range(0x20), *range(0x7F, 0xA0), 0x61C, *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
)
def test_every_control_and_direction_is_spelled_out(code: int) -> None:
    one = chr(code)
    if one not in "\n\t":
        assert safe(f"a{one}b") == f"a{ascii(one)[1:-1]}b"
    line = safe_json({"key": one})
    assert line.isprintable() and json.loads(line) == {"key": one}


def test_what_is_no_danger_stays_as_it_is() -> None:
    text = "log ü 日本 – [bold] \\x1b\nnext\tcolumn"
    assert safe(text) == text and safe("a\nb", kept="") == "a\\nb"


def test_a_stream_without_unicode_gets_ascii() -> None:
    raw = io.BytesIO()
    stream = SafeStream(io.TextIOWrapper(raw, encoding="ascii"))
    stream.writelines(["ü\n", HOSTILE])
    stream.flush()
    assert raw.getvalue().startswith(b"\\xfc\na\\x1b[31mb")


def test_streams_are_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with pytest.raises(ValueError), safe_streams(), safe_streams():
        assert isinstance(sys.stdout, SafeStream) and not isinstance(sys.stdout.inner, SafeStream)
        raise ValueError
    assert (sys.stdout, sys.stderr) == before


# --- questions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "words"), [("", "give --yes"), ("n\n", "not confirmed, nothing more was done")])
def test_a_question_without_a_yes_says_so(
    client: bk_core.BookKeeper, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str, words: str
) -> None:
    client.create_ledger(ledger_id=7).close()
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    assert cli.run(["ledger", "rm", "7"]) == 1
    err = capsys.readouterr().err
    assert words in err and "interrupted" not in err and list(client.list_ledgers()) == [7]


# --- reads that end early --------------------------------------------------------------------------------------------------


def test_a_read_of_an_open_ledger_says_how_far_it_is_confirmed(client: bk_core.BookKeeper, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = client.create_ledger()
    ledger.append(b"0")
    ledger.close()
    live = client.create_ledger()
    for n in range(3):
        live.append(b"%d" % n)
    with client.open_ledger(live.ledger_id) as reader:
        assert reader.wait_for(2, 60)
    assert cli.run(["ledger", "read", str(live.ledger_id), "--raw"]) == 0
    out, err = capsys.readouterr()
    assert out == "0\n1\n2\n"
    hint = f". Read again if its writer lives; if it is gone, `bk ledger recover {live.ledger_id}` finds and fixes the end\n"
    assert err == f"ledger {live.ledger_id} is OPEN and confirmed up to entry 2 so far{hint}"
    assert cli.run(["ledger", "read", str(live.ledger_id), "--last", "9"]) == 1
    beyond = f"ledger {live.ledger_id} is OPEN and confirmed up to entry 2 so far: entry 9 lies beyond{hint}"
    assert capsys.readouterr().err == beyond
    assert cli.run(["ledger", "read", str(ledger.ledger_id)]) == 0
    assert capsys.readouterr().err == ""
    assert cli.run(["ledger", "read", str(ledger.ledger_id), "--last", "5"]) == 1
    assert capsys.readouterr().err == f"ledger {ledger.ledger_id} ends at entry 0: entry 5 lies beyond\n"
    assert cli.run(["ledger", "read", str(ledger.ledger_id), "--first", "5"]) == 0
    assert capsys.readouterr().err == f"ledger {ledger.ledger_id} ends at entry 0: entry 5 lies beyond\n"


def test_a_read_of_a_ledger_without_a_confirmed_entry_does_not_say_that_it_has_none(
    client: bk_core.BookKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    live = client.create_ledger()
    live.append_many([b"a", b"b", b"c"])
    live.abandon()
    number = str(live.ledger_id)
    unconfirmed = (
        f"ledger {number} is OPEN, and none of its entries is confirmed yet (what was acknowledged last is confirmed with the next entry): "
        f"nothing is shown. Read again if its writer lives; if it is gone, `bk ledger recover {number}` finds and fixes the end\n"
    )
    for bounds, status in (([], 0), (["--last", "2"], 1)):
        assert cli.run(["ledger", "read", number, *bounds]) == status
        assert capsys.readouterr() == ("", unconfirmed)
    stored = client.store.read_ledger(live.ledger_id)
    recovering = replace(metadata_codec.decode(stored.data), state=LedgerState.IN_RECOVERY)
    client.store.write_ledger(live.ledger_id, metadata_codec.encode(recovering), stored.version)
    assert cli.run(["ledger", "read", number]) == 0
    err = capsys.readouterr().err
    assert (
        f"ledger {number} is IN_RECOVERY, and none of its entries is confirmed yet: nothing is shown. Read again when its recovery" in err
    )
    assert cli.run(["ledger", "recover", number]) == 0
    assert cli.run(["ledger", "read", number, "--raw"]) == 0
    assert capsys.readouterr().out.endswith("a\nb\nc\n")
    empty = client.create_ledger()
    empty.close()
    assert cli.run(["ledger", "read", str(empty.ledger_id)]) == 0
    assert capsys.readouterr().err == f"ledger {empty.ledger_id} is CLOSED and has no entry\n"
    assert cli.run(["ledger", "read", str(empty.ledger_id), "--last", "4"]) == 1
    assert capsys.readouterr().err == f"ledger {empty.ledger_id} is CLOSED and has no entry: entry 0 lies beyond\n"


@pytest.mark.parametrize("command", [["ledger", "read", "8"], ["log", "segments", "a"]])
def test_a_range_that_ends_before_it_begins_is_a_wrong_command_line(
    store: MetadataStore, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert cli.run([*command, "--first", "1", "--last", "0"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Error: --last 0 lies before --first 1\n" in err


def test_a_writer_that_was_fenced_does_not_blame_another_client(client: bk_core.BookKeeper) -> None:
    """WR-11: with the program's own recovery, before and behind the first confirmed entry."""
    for entries, later in ((0, "its entries"), (1, "entries after 0")):
        ledger = client.create_ledger()
        for _ in range(entries):
            ledger.append(b"x")
        client.recover_ledger(ledger.ledger_id).close()
        with pytest.raises(bk_core.BkError) as caught:
            ledger.append(b"y")
        wanted = f"ledger {ledger.ledger_id} was fenced by a recovery (this program's or another's); {later} may or may not be part of it: "
        assert str(caught.value) == f"[BK-FENCED] {wanted}read the ledger, and write on in a new one"
        ledger.abandon()


def test_a_tail_beyond_the_end_of_a_closed_ledger_is_refused(client: bk_core.BookKeeper) -> None:
    with client.create_ledger() as ledger:
        ledger.append(b"0")
    with client.open_ledger(ledger.ledger_id) as reader:
        assert list(reader.tail(1)) == []  # where one that was at the end goes on
        with pytest.raises(bk_core.BkError, match=f"entry 2 lies beyond the last entry 0 of ledger {ledger.ledger_id}"):
            next(reader.tail(2))


# --- passwords -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "given", "words"),
    [
        (b"secret", b"", "was created with a password and none was given"),
        (b"secret", b"other", "is not the one it was created with"),
        (b"", b"other", "was created without a password, but one was given"),
    ],
)
def test_a_wrong_password_says_what_is_wrong(client: bk_core.BookKeeper, wanted: bytes, given: bytes, words: str) -> None:
    client.create_ledger(ledger_id=3, password=wanted).close()
    with pytest.raises(bk_core.BkError, match=words) as caught:
        client.open_ledger(3, password=given)
    assert "secret" not in str(caught.value) and "other" not in str(caught.value)
    assert bk_core.errors.WrongPasswordError.given_by in str(caught.value)


# --- clusters and bookies --------------------------------------------------------------------------------------------------


def test_a_new_cluster_is_refused_where_there_is_one(store: MetadataStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """OWN-13."""
    uri = f"memory://{tmp_path.name}"
    assert cli.run(["cluster", "init", uri]) == 1
    assert f"there is a cluster at {uri} already: {store.instance_id()}" in capsys.readouterr().err
    with pytest.raises(ClusterExistsError):
        store.initialize_cluster(new=True)
    assert cli.run(["cluster", "init", "host:2181/ledgers"]) == 2
    assert "is not the URI of a metadata store" in capsys.readouterr().err
    fresh = open_store(f"{uri}-second")  # a store in memory is there as long as somebody has it
    assert cli.run(["cluster", "init", f"{uri}-second", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"uri": f"{uri}-second", "cluster": fresh.instance_id()}
    fresh.close()


@pytest.mark.parametrize(
    ("root", "around"),
    [
        ("/ledgers", []),
        ("/a/ledgers", ["/a"]),
        ("/a/b/c", ["/a", "/a/b"]),
        ("/ledgers-logs/x", ["/ledgers-logs", "/ledgers"]),
        ("/l-logs", ["/l"]),
    ],
)
def test_where_a_new_cluster_would_lie_in_another(root: str, around: list[str]) -> None:
    """OWN-13."""
    assert paths.around(root) == around


def test_bookies_are_listed_with_those_that_are_down(store: MetadataStore, capsys: pytest.CaptureFixture[str]) -> None:
    up = store.bookies().writable
    store.write_cookie("gone:3181", b"", None)
    store.register_bookie("full", "10.0.0.7", 3181, readonly=True)
    assert cli.run(["bookie", "ls", "--json"]) == 0
    found: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {one["bookie"]: one["state"] for one in found} == {**dict.fromkeys(up, "writable"), "full": "read-only", "gone:3181": "down"}
    by_id = {one["bookie"]: one for one in found}
    assert by_id["full"] == {"bookie": "full", "state": "read-only", "address": "10.0.0.7:3181", "cookie": False}
    assert by_id["gone:3181"]["address"] is None and by_id["gone:3181"]["cookie"] and by_id[up[0]]["address"] == up[0]
    assert cli.run(["bookie", "ls"]) == 0
    assert "5 bookies: 3 writable, 1 read-only, 1 down" in capsys.readouterr().out


def test_the_option_beats_the_variable(
    store: MetadataStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(output.URI_VARIABLE, "nothing that can be")
    assert cli.run(["ledger", "ls", "--uri", f"memory://{tmp_path.name}"]) == 0
    capsys.readouterr()
    assert cli.run(["ledger", "ls"]) == 2
    assert "'nothing that can be' is not the URI of a metadata store" in capsys.readouterr().err
