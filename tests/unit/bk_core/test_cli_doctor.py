"""``bk cluster doctor`` finds what was broken, exactly that, and nothing on a healthy cluster."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core.client.doctor.bookies import READ_ONLY, judge_bookies
from bk_core.client.doctor.findings import CODES, Finding
from bk_core.client.doctor.probe import BookieProbe
from bk_core.client.log.intents import Intent, create_intended, intent_here, intents_of, record_intent
from bk_core.metadata.cookies import Cookie, decode_cookie, encode_cookie
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.log.segments import LogProperties
from tests.unit.bk_core.conftest import Bk

ROOT = Path(bk_core.__file__).resolve().parents[1]
OLD_MS = 1_600_000_000_000


def found(bk: Bk, *arguments: str) -> list[dict[str, Any]]:
    """The findings, after a look at the summary and the exit status."""
    lines = [json.loads(line) for line in bk_lines(bk, *arguments)]
    *findings, summary = lines
    grave = [one for one in findings if one["severity"] != "note"]
    assert summary["good"] is not bool(grave)
    assert summary["errors"] + summary["warnings"] == len(grave) and summary["notes"] == len(findings) - len(grave)
    assert all(CODES[one["code"]][0] == one["severity"] for one in findings)
    return findings


def bk_lines(bk: Bk, *arguments: str) -> list[str]:
    try:
        return bk("doctor", "--json", *arguments, group="cluster").splitlines()
    except AssertionError:
        if not bk.out.strip():
            raise
    return bk.out.splitlines()


def codes(bk: Bk, *arguments: str) -> list[str]:
    return [one["code"] for one in found(bk, *arguments)]


def healthy(client: bk_core.BookKeeper) -> int:
    """Ledgers in all states that are fine, and a log. Returns the id of the closed one."""
    with client.create_ledger() as ledger:
        ledger.append_many([b"x"] * 10)
    with client.create_log("events", entry_format="raw").writer() as writer:
        writer.append(b"row")
    return ledger.ledger_id


def stored(client: bk_core.BookKeeper, ledger_id: int) -> LedgerMetadata:
    return client.ledger_metadata(ledger_id)


def write(client: bk_core.BookKeeper, ledger_id: int, metadata: LedgerMetadata) -> None:
    client.store.write_ledger(ledger_id, metadata_codec.encode(metadata), client.store.read_ledger(ledger_id).version)


@contextmanager
def registered(client: bk_core.BookKeeper, port: int) -> Iterator[str]:
    """A registration with a cookie like those of the others, and nothing but this test behind it."""
    bookie = f"127.0.0.1:{port}"
    like = client.bookies().writable[0]
    cookie = replace(decode_cookie(client.store.read_cookie(like).data), bookie_id=bookie)
    client.store.write_cookie(bookie, encode_cookie(cookie), None)
    registration = client.store.register_bookie(bookie, "127.0.0.1", port)
    try:
        yield bookie
    finally:
        registration.close()


def test_nothing_is_wrong_with_a_healthy_cluster(bk: Bk, client: bk_core.BookKeeper) -> None:
    healthy(client)
    with client.create_ledger() as open_ledger, client.create_log("live", entry_format="raw").writer() as writer:
        open_ledger.append(b"x")
        writer.append(b"row")
        assert found(bk) == []
        assert "nothing wrong" in bk("doctor", group="cluster")
        before = {ledger_id: client.store.read_ledger(ledger_id) for ledger_id in client.list_ledgers()}
        assert found(bk, "--clock") == []
        assert {ledger_id: client.store.read_ledger(ledger_id) for ledger_id in client.list_ledgers()} == before
        open_ledger.append(b"it is not fenced")
        writer.append(b"nor is this")


def test_a_bookie_that_refuses_and_one_that_is_silent(bk: Bk, client: bk_core.BookKeeper) -> None:
    with socket.socket() as closed, socket.socket() as silent:
        closed.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with registered(client, closed.getsockname()[1]) as refusing, registered(client, silent.getsockname()[1]) as quiet:
            problems = found(bk, "--timeout", "0.3")
            assert [(one["code"], one["bookies"]) for one in problems] == [
                ("bookie-unreachable", [bookie]) for bookie in sorted((refusing, quiet))
            ]
            told = {one["bookies"][0]: one["what"] for one in problems}
            assert "refuses" in told[refusing] and "silent" in told[quiet]
            assert found(bk, "--timeout", "0.3")[0]["command"] == f"bk bookie health {sorted((refusing, quiet))[0]}"


def test_a_lost_bookie(bk: Bk, client: bk_core.BookKeeper) -> None:
    ledger_id = healthy(client)
    metadata = stored(client, ledger_id)
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        with registered(client, port.getsockname()[1]) as bookie:
            pass
    down = found(bk)
    assert [(one["code"], one["bookies"]) for one in down] == [("bookie-down", [bookie])]
    assert "no ledger names it" in down[0]["what"]

    ensemble = (bookie, *metadata.fragments[0].ensemble[1:])
    write(client, ledger_id, replace(metadata, fragments=(Fragment(0, ensemble),)))
    down, short, nobody = found(bk)
    assert (down["code"], short["code"]) == ("bookie-down", "under-replicated") and "1 ledger names it" in down["what"]
    assert (nobody["code"], nobody["count"]) == ("autorecovery-absent", 1)
    assert (short["ledgers"], short["bookies"], short["count"]) == ([ledger_id], [bookie], 1)

    write(client, ledger_id, replace(metadata, fragments=(Fragment(0, (bookie, *("127.0.0.1:1", "127.0.0.1:2"))),)))
    assert codes(bk) == ["no-live-copy", "bookie-down", "under-replicated"]

    opened = replace(metadata, fragments=(Fragment(0, ensemble),), state=LedgerState.OPEN, last_entry_id=-1, length=0)
    write(client, ledger_id, opened)
    assert codes(bk) == ["bookie-down", "open-tail-lost"]


def test_a_striped_ledger_loses_entries_only_if_a_whole_write_set_is_gone(bk: Bk, client: bk_core.BookKeeper) -> None:
    ledger_id = healthy(client)
    a, b, c = client.bookies().writable
    gone = ("127.0.0.1:1", "127.0.0.1:2")
    striped = replace(stored(client, ledger_id), ensemble_size=4, write_quorum_size=2, ack_quorum_size=2)
    write(client, ledger_id, replace(striped, fragments=(Fragment(0, (gone[0], a, gone[1], b)),)))
    assert codes(bk) == ["under-replicated", "autorecovery-absent"]
    write(client, ledger_id, replace(striped, fragments=(Fragment(0, (gone[0], a, b, gone[1])),)))
    assert codes(bk) == ["no-live-copy", "under-replicated"]
    only = replace(striped, last_entry_id=2)  # of the write sets only those of entries 0, 1 and 2 were used
    write(client, ledger_id, replace(only, fragments=(Fragment(0, (gone[0], a, b, gone[1])),)))
    assert codes(bk) == ["under-replicated", "autorecovery-absent"]
    write(client, ledger_id, replace(only, last_entry_id=-1, length=0, fragments=(Fragment(0, (*gone, b, c)),)))
    assert codes(bk) == []


def test_a_recovery_that_nobody_finishes(bk: Bk, client: bk_core.BookKeeper) -> None:
    ledger_id = healthy(client)
    write(client, ledger_id, replace(stored(client, ledger_id), state=LedgerState.IN_RECOVERY, last_entry_id=-1, length=0))
    assert codes(bk) == []
    assert "(1 in recovery): nothing wrong" in bk("doctor", group="cluster").replace(", 1 log", "")
    (stuck,) = found(bk, "--stuck-after", "0ms")
    assert (stuck["code"], stuck["ledgers"], stuck["command"]) == ("recovery-stuck", [ledger_id], f"bk ledger recover {ledger_id}")
    bk(*stuck["command"].split()[2:], group="ledger")
    assert codes(bk, "--stuck-after", "0ms") == []


def test_metadata_that_cannot_be_understood(bk: Bk, client: bk_core.BookKeeper) -> None:
    ledger_id = healthy(client)
    client.store.write_ledger(ledger_id, b"BookieMetadataFormatVersion\t9\n", client.store.read_ledger(ledger_id).version)
    (unreadable,) = found(bk)
    assert (unreadable["code"], unreadable["ledgers"]) == ("ledger-unreadable", [ledger_id])
    bk("rm", str(ledger_id), "--yes", group="ledger", status=1)
    assert "--even-if-listed" in bk.err and ledger_id in list(client.list_ledgers())
    bk("rm", str(ledger_id), "--yes", "--even-if-listed", group="ledger")  # as the doctor says
    assert ledger_id not in list(client.list_ledgers())


def test_cookies(bk: Bk, client: bk_core.BookKeeper) -> None:
    first, second, third = client.bookies().writable
    client.store.delete_cookie(first, client.store.read_cookie(first).version)
    cookie = client.store.read_cookie(second)
    foreign = replace(decode_cookie(cookie.data), instance_id="another")
    client.store.write_cookie(second, encode_cookie(foreign), cookie.version)
    client.store.write_cookie(third, b"9\n", client.store.read_cookie(third).version)
    problems = {one["bookies"][0]: one["code"] for one in found(bk)}
    assert problems == {first: "cookie-missing", second: "cookie-foreign", third: "cookie-foreign"}


def test_a_log_that_has_lost_a_ledger(bk: Bk, client: bk_core.BookKeeper) -> None:
    healthy(client)
    (segment,) = client.log("events").segments()
    client.delete_ledger(segment.ledger_id, even_if_listed=True)
    (lost,) = found(bk)
    assert (lost["code"], lost["logs"], lost["ledgers"]) == ("log-ledgers-missing", ["events"], [segment.ledger_id])
    bk(*lost["command"].split()[2:], group="log", status=1)


def test_lists_that_cannot_be_read_or_are_not_ours(bk: Bk, client: bk_core.BookKeeper) -> None:
    healthy(client)
    client.store.create("logs/broken", b"{")
    data = json.loads(client.store.read("logs/events").data)
    client.store.create("logs/theirs", json.dumps({**data, "cluster": "another"}).encode())
    assert [(one["code"], one["logs"]) for one in found(bk)] == [("log-unreadable", ["broken"]), ("log-foreign", ["theirs"])]


def test_a_node_that_cannot_be_a_log_hides_none(bk: Bk, client: bk_core.BookKeeper) -> None:
    healthy(client)
    stray = "evil<i> log"
    client.store.create(f"logs/{stray}", b"{}")
    (problem,) = found(bk)
    assert problem["code"] == "log-stray" and "'evil<i> log'" in problem["what"] and problem["logs"] == []
    assert client.logs() == ["events"]
    assert [json.loads(line)["log"] for line in bk("ls", "--json", group="log").splitlines()] == ["events"]
    bk("check", "--all", group="log")


def test_a_command_has_the_id_of_a_bookie_as_one_word(bk: Bk, client: bk_core.BookKeeper) -> None:
    """Whoever may write cookies does not decide what an operator's shell runs."""
    healthy(client)
    cookie = decode_cookie(client.store.read_cookie(client.bookies().writable[0]).data)
    client.store.write_cookie("x;id", encode_cookie(replace(cookie, bookie_id="x;id")), None)
    commands = [one["command"] for one in found(bk) if "x;id" in one["bookies"]]
    assert commands and all("'x;id'" in command for command in commands)


def test_what_a_dead_writer_left(bk: Bk, client: bk_core.BookKeeper) -> None:
    healthy(client)
    here = intent_here(0, "")
    dead = Intent(999, "", here.host, 2**22 + 1, OLD_MS, 1, here.boot, cluster=client.store.cluster_id())
    for log, ledger_id in (("events", 999), ("never", 998)):
        assert record_intent(client, log, replace(dead, ledger_id=ledger_id))
    left = found(bk)
    assert [(one["code"], one["logs"], one["ledgers"]) for one in left] == [
        ("intents-left", ["events"], [999]),
        ("intents-left", ["never"], [998]),
    ]
    for one in left:
        bk(*one["command"].split()[2:], group="log")
    assert found(bk) == []


def test_a_ledger_that_is_listed_and_has_an_intent_is_no_worry(bk: Bk, client: bk_core.BookKeeper) -> None:
    """Its rows are committed, and they stay when the ledger is closed. So each Spark application that has ended is seen."""
    healthy(client)
    (segment,) = client.log("events").segments()
    here = intent_here(0, "")
    dead = Intent(segment.ledger_id, "", here.host, 2**22 + 1, OLD_MS, 1, here.boot, cluster=client.store.cluster_id())
    assert record_intent(client, "events", dead)
    (left,) = found(bk)
    assert (left["code"], left["severity"], left["ledgers"]) == ("ledgers-left", "note", [segment.ledger_id])
    bk(*left["command"].split()[2:], group="log")
    assert found(bk) == [] and [one.ledger_id for one in client.log("events").segments()] == [segment.ledger_id]


def test_a_log_whose_writer_is_gone(bk: Bk, client: bk_core.BookKeeper) -> None:
    log = client.create_log("events", entry_format="raw")
    with bk_core.connect(bk.uri) as dying:
        writer = dying.log("events").writer()
        writer.append(b"row")
        (ledger_id,) = [one.ledger_id for one in log.segments()]
        metadata = stored(client, ledger_id)
        tag = {**json.loads(metadata.custom["writer"]), "pid": 2**22 + 1, "started": 1}
        write(client, ledger_id, replace(metadata, custom={**metadata.custom, "writer": json.dumps(tag).encode()}))
        gone = found(bk)
        assert [(one["code"], one["logs"], one["ledgers"]) for one in gone] == [("writer-gone", ["events"], [ledger_id])]
        bk(*gone[0]["command"].split()[2:], group="log")
        assert found(bk) == []
        with pytest.raises(bk_core.BkError):
            writer.append(b"row")
            writer.close()


def test_ledgers_of_a_log_that_is_gone(bk: Bk, client: bk_core.BookKeeper) -> None:
    healthy(client)
    (segment,) = client.log("events").segments()
    client.store.delete("logs/events")
    (orphans,) = found(bk)
    assert (orphans["code"], orphans["logs"], orphans["ledgers"]) == ("orphans", ["events"], [segment.ledger_id])
    bk(*orphans["command"].split()[2:], group="log")
    assert found(bk) == []


# --- commands about what has a password ----------------------------------------------------------------------------------

PASSWORD = b"moss"


def pasted(bk: Bk, command: str, directory: Path, status: int = 0) -> None:
    """Run a command as it was printed, with the name of a file in place of FILE."""
    (directory / "password").write_bytes(PASSWORD)
    program, group, *arguments = command.replace("--password-file FILE", f"--password-file {directory / 'password'}").split()
    assert program == "bk" and command.endswith(" --password-file FILE")
    bk(*arguments, group=group, status=status)


def locked(client: bk_core.BookKeeper) -> int:
    """A log with a password; returns its only ledger."""
    client.create_log("locked", entry_format="raw", password=PASSWORD)
    with client.log("locked", password=PASSWORD).writer() as writer:
        writer.append(b"row")
    (segment,) = client.log("locked", password=PASSWORD).segments()
    return int(segment.ledger_id)


def test_a_dead_writer_of_a_log_with_a_password(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path) -> None:
    locked(client)
    writer = create_intended(client, "locked", LogProperties(entry_format="raw"), password=PASSWORD)
    writer.append(b"row")
    (intent,) = intents_of(client, "locked").values()
    for node in client.store.children("intents/locked"):
        client.store.delete(f"intents/locked/{node}")
    assert record_intent(client, "locked", replace(intent, pid=2**22 + 1, created_ms=OLD_MS, started=1))
    (left,) = found(bk)
    assert left["code"] == "intents-left" and left["advice"].endswith("FILE has its password")
    bk("gc", group="log", status=1)
    assert "locked: with the password of its ledgers in FILE: bk log gc locked --password-file FILE" in bk.err
    pasted(bk, left["command"], tmp_path)
    assert found(bk) == []
    with pytest.raises(bk_core.BkError):
        writer.append(b"row")
        writer.close()


def test_a_log_with_a_password_that_its_writer_left_open(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path) -> None:
    client.create_log("locked", entry_format="raw", password=PASSWORD)
    with bk_core.connect(bk.uri) as dying:
        writer = dying.log("locked", password=PASSWORD).writer()
        writer.append(b"row")
        (ledger_id,) = [one.ledger_id for one in client.log("locked", password=PASSWORD).segments()]
        metadata = stored(client, ledger_id)
        tag = {**json.loads(metadata.custom["writer"]), "pid": 2**22 + 1, "started": 1}
        write(client, ledger_id, replace(metadata, custom={**metadata.custom, "writer": json.dumps(tag).encode()}))
        (gone,) = found(bk)
        assert gone["code"] == "writer-gone"
        pasted(bk, gone["command"], tmp_path)
        assert found(bk) == []
        with pytest.raises(bk_core.BkError):
            writer.append(b"row")
            writer.close()


def test_a_log_with_a_password_that_lost_a_ledger(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path) -> None:
    first = locked(client)
    with client.log("locked", password=PASSWORD).writer() as writer:
        writer.append(b"row")
    client.delete_ledger(first, even_if_listed=True)
    (lost,) = found(bk)
    assert lost["code"] == "log-ledgers-missing" and "`bk log repair locked --password-file FILE` gives them up" in lost["advice"]
    pasted(bk, lost["command"], tmp_path, status=1)


def test_an_orphan_with_a_password(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path) -> None:
    ledger_id = locked(client)
    write(client, ledger_id, replace(stored(client, ledger_id), state=LedgerState.OPEN, last_entry_id=-1, length=0))
    client.store.delete("logs/locked")
    (orphans,) = found(bk)
    assert orphans["code"] == "orphans"
    bk("gc", group="log")
    assert "left; bk log gc --delete-orphans known --password-file FILE deletes it" in bk.out
    bk("gc", "--delete-orphans", "known", group="log", status=1)
    assert "with that in FILE, bk log gc --delete-orphans known --password-file FILE deletes it" in bk.err
    pasted(bk, orphans["command"], tmp_path)
    assert found(bk) == []


def test_a_stuck_recovery_of_a_ledger_with_a_password(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path) -> None:
    with client.create_ledger(password=PASSWORD) as ledger:
        ledger.append(b"x")
    metadata = stored(client, ledger.ledger_id)
    write(client, ledger.ledger_id, replace(metadata, state=LedgerState.IN_RECOVERY, last_entry_id=-1, length=0))
    (stuck,) = found(bk, "--stuck-after", "0ms")
    assert stuck["code"] == "recovery-stuck"
    pasted(bk, stuck["command"], tmp_path)
    assert found(bk, "--stuck-after", "0ms") == []


def test_marks_and_auto_recovery(bk: Bk, client: bk_core.BookKeeper) -> None:
    ledger_id = healthy(client)
    marks = client.store.underreplication()
    marks.mark(ledger_id, client.bookies().writable[:1], OLD_MS)
    (marked,) = found(bk)
    assert (marked["code"], marked["ledgers"]) == ("marked-unattended", [ledger_id]) and "no auto-recovery runs" in marked["what"]
    marks.set_disabled(True)
    assert "switched off" in found(bk)[0]["what"] and codes(bk) == ["marked-unattended", "autorecovery-off"]
    bk(*marked["command"].split()[2:], group="ledger")
    (off,) = found(bk)
    assert off["code"] == "autorecovery-off" and "none runs either" in off["what"]
    bk(*off["command"].split()[2:], group="cluster")
    assert found(bk) == []


def test_a_ledger_whose_entries_are_on_no_bookie_is_found_by_reading(bk: Bk, client: bk_core.BookKeeper) -> None:
    """A closed ledger whose metadata is there; the doctor reads no entry unless it is told to."""
    ledger_id = healthy(client)
    listed = next(iter(client.log("events").segments())).ledger_id
    highest = max(client.list_ledgers())
    assert codes(bk, "--read-last") == []
    for other, of in ((highest + 10, ledger_id), (highest + 11, listed)):
        client.store.create_ledger(other, client.store.read_ledger(of).data)
    assert codes(bk) == []
    lost, _ = bk.json("doctor", "--read-last", group="cluster", status=1)
    assert (lost["code"], lost["severity"], lost["count"]) == ("last-entry-lost", "error", 2)
    assert lost["ledgers"] == [highest + 10, highest + 11] and "bk log repair NAME" in lost["advice"]
    bk(*lost["command"].split()[2:], group="ledger", status=1)


def test_a_mark_that_nobody_can_see_to(bk: Bk, client: bk_core.BookKeeper) -> None:
    """A ledger without a live copy is not told to be waited for, nor to be repaired; the other one is."""
    lost_id = healthy(client)
    with client.create_ledger() as other:
        other.append(b"entry")
    write(client, lost_id, replace(stored(client, lost_id), fragments=(Fragment(0, ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")),)))
    marks = client.store.underreplication()
    for one in (lost_id, other.ledger_id):
        marks.mark(one, client.bookies().writable[:1], OLD_MS)
    told = {one["code"]: one for one in found(bk)}
    assert told.keys() == {"no-live-copy", "under-replicated", "marked-unattended", "marked-stuck"}
    assert (told["marked-stuck"]["ledgers"], told["marked-unattended"]["ledgers"]) == ([lost_id], [other.ledger_id])
    assert "waiting does not help" in told["marked-stuck"]["advice"] and told["marked-stuck"]["count"] == 1
    assert told["marked-stuck"]["command"] == f"bk ledger check {lost_id}"
    info = bk.json("info", group="cluster")[0]
    assert (info["markedLedgers"], info["marked"]) == (2, [lost_id, other.ledger_id])
    assert f"2: {lost_id}, {other.ledger_id}" in bk("info", group="cluster")


def test_too_few_bookies_for_a_log(bk: Bk, client: bk_core.BookKeeper) -> None:
    client.create_log("wide", entry_format="raw", ensemble_size=4, write_quorum_size=2, ack_quorum_size=2)
    (few,) = found(bk)
    assert few["code"] == "bookies-too-few" and "3 bookies" in few["what"] and "needs 4" in few["what"]


def test_the_clocks_of_writers(bk: Bk, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger_id = healthy(client)
    metadata = stored(client, ledger_id)
    assert metadata.ctime_ms is not None
    write(client, ledger_id, replace(metadata, ctime_ms=metadata.ctime_ms + 3_700_000))
    (skew,) = found(bk)
    assert (skew["code"], skew["ledgers"]) == ("clock-skew", [ledger_id]) and "1h ahead" in skew["what"]
    write(client, ledger_id, metadata)
    ahead = datetime.now(UTC).timestamp() + 7200
    monkeypatch.setattr("bk_core.client.doctor.examine.time.time_ns", lambda: int(ahead * 1e9))
    monkeypatch.setattr(type(client.store), "clock_ms", lambda self: int(ahead * 1000) - 7_200_000)
    assert codes(bk) == []
    assert codes(bk, "--clock") == ["clock-skew"] and "ahead" in json.loads(bk.out.splitlines()[0])["what"]


@pytest.mark.usefixtures("limits_of_disks")
def test_full_disks_and_mixed_releases(bk: Bk, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = client.bookies().writable
    spaces = {first: 1.0, second: 6.0, third: 60.0}

    def probed(client: Any, bookies: Any, **_: Any) -> dict[str, BookieProbe]:
        like = BookieProbe("", "answers", round_trips_ns={"v2": (1,)}, total_bytes=100)
        return {one: replace(like, bookie=one, free_bytes=int(spaces[one]), batch_reads=one != third) for one in bookies}

    monkeypatch.setattr("bk_core.client.doctor.examine.probe_bookies", probed)
    assert [(one["code"], one["bookies"]) for one in found(bk)] == [
        ("disk-full", [first]),
        ("disk-nearly-full", [second]),
        ("versions-mixed", [third]),
    ]
    spaces |= {first: 50.0, second: 50.0}
    assert codes(bk) == ["versions-mixed"]
    assert "nothing" not in bk("doctor", group="cluster")  # a note, and exit status 0 nevertheless


@pytest.mark.usefixtures("limits_of_disks")
@pytest.mark.parametrize(
    ("total", "free", "said", "command"),
    [
        (100 << 30, 4 << 30, ": 96% of its disks are used", "bk bookie show b:1"),
        (48 << 20, 40 << 20, ": only 41.9 MB are free on its disks", "bk bookie show b:1"),
        (100 << 30, 60 << 30, "; 40% of its disks are used", "bk bookie read-only b:1 off"),
    ],
    ids=["nearly full", "small and with little room", "with much room"],
)
def test_why_a_bookie_is_read_only(client: bk_core.BookKeeper, total: int, free: int, said: str, command: str) -> None:
    """A small share that is used says little of a small disk: the bookie keeps room for recoveries whatever its size."""
    probe = BookieProbe("b:1", "answers", total_bytes=total, free_bytes=free)
    client.store.write_cookie("b:1", b"9\n", None)
    (finding,) = (one for one in judge_bookies(client, {"b:1": READ_ONLY}, {"b:1": probe}, {}) if one.code == "bookie-read-only")
    assert finding.what == f"bookie b:1 is read-only{said}" and finding.command == command
    assert ("becomes writable by itself" in finding.advice) is (command == "bk bookie show b:1")


def test_a_bookie_with_several_disks_may_be_read_only_for_one_that_is_full(client: bk_core.BookKeeper) -> None:
    """It tells how much is used of all of them together, which says nothing of one."""
    probe = BookieProbe("b:1", "answers", total_bytes=100 << 30, free_bytes=60 << 30)
    cookie = Cookie("b:1", ("/j",), ("/first", "/second"), None)
    client.store.write_cookie("b:1", encode_cookie(cookie), None)
    (finding,) = (one for one in judge_bookies(client, {"b:1": READ_ONLY}, {"b:1": probe}, {}) if one.code == "bookie-read-only")
    assert finding.what == "bookie b:1 is read-only; 40% of its disks are used, all together"
    assert finding.advice.startswith("one of its 2 ledger directories is full or failed") and finding.command == "bk bookie show b:1"


def test_what_people_read_fits_into_a_terminal(bk: Bk, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        with registered(client, port.getsockname()[1]):
            pass
    lines = bk("doctor", group="cluster", status=1).splitlines()
    assert lines[0].startswith("WARNING  bookie-down: bookie 127.0.0.1") and any(line.lstrip().startswith("$ bk bookie") for line in lines)
    assert all(len(line) <= 80 for line in lines[:-1])


@pytest.mark.parametrize(("width", "most"), [("60", 60), ("0", 160), ("wide", 160), (None, 160)])
def test_tables_are_as_wide_as_columns_says(bk: Bk, monkeypatch: pytest.MonkeyPatch, width: str | None, most: int) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", width)
    long = "the disks of one host " * 20
    monkeypatch.setattr("bk_core.display.cluster.bookie_counts", lambda _: long)
    for command in (("info", "cluster"), ("ls", "bookie")):
        lines = bk(command[0], group=command[1]).splitlines()
        assert max(map(len, lines)) <= most, command
        assert command[0] != "info" or max(map(len, lines)) > most - 20, "and no narrower"


def test_a_notebook_shows_it(client: bk_core.BookKeeper) -> None:
    shown = client.doctor()
    assert shown.is_good and "nothing wrong" in shown._repr_html_() and "0 errors" in repr(shown)
    worse = replace(shown, findings=(Finding("orphans", "<b>", "x"),))
    assert not worse.is_good and "&lt;b&gt;" in worse._repr_html_()


def test_every_code_is_documented() -> None:
    text = (ROOT / "docs/site/pages/guides/operating.md").read_text()
    for code, (severity, _) in CODES.items():
        assert f"| `{code}` | {severity} |" in text, code
