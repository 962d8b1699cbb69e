"""``bk ledger check``, ``bk ledger repair``, ``bk bookie decommission``: what is printed and with which exit status."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from bk_core import cli
from bk_core.cli import output, replication
from bk_core.client.repair.report import DecommissionReport, LedgerReport, Moved, Refilled, RepairReport, StillNamed
from bk_core.errors import InvalidArgumentError, MetadataUnavailableError, NoNodeError, NoSuchLedgerError, OperationTimeoutError
from bk_core.metadata.store import BookieView
from bk_core.metadata.underreplication import MemoryUnderreplication, MemoryUnderreplicationState
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.replication import EntryRanges, FragmentReport, FragmentSpan, ReplicaReport
from bk_core.protocol.wire.messages import Status

URI = "zk://127.0.0.1:1/ledgers"
ABC = ("a:1", "b:1", "c:1")
CLOSED = LedgerMetadata(3, 3, 2, LedgerState.OPEN, (Fragment(0, ABC),)).closed(9, 10)
OPEN = LedgerMetadata(3, 3, 2, LedgerState.OPEN, (Fragment(0, ABC), Fragment(4, ABC)))


def report(ledger_id: int, *replicas: ReplicaReport, metadata: LedgerMetadata = CLOSED, **more: Any) -> LedgerReport:
    return LedgerReport(ledger_id, metadata, False, (FragmentReport(FragmentSpan(0, 9, ABC), replicas),), **more)


GOOD = ReplicaReport(0, "a:1", True, 0, 9, 2)
DAMAGED = ReplicaReport(1, "b:1", True, 0, 9, 10, EntryRanges(((0, 0), (2, 2), (4, 4), (6, 6), (8, 8))), EntryRanges(((9, 9),)))
GONE = ReplicaReport(2, "c:1", False, 0, 9)
SILENT = ReplicaReport(2, "c:1", True, 0, 9, silent=Status.TOO_MANY_REQUESTS)
EMPTY = ReplicaReport(1, "b:1", True)


class Client:
    def __init__(self) -> None:
        self.reports: dict[int, LedgerReport] = {4: report(4, GOOD, EMPTY), 9: report(9, GOOD, DAMAGED, GONE)}
        self.repairs: dict[int, RepairReport] = {4: RepairReport(4), 9: RepairReport(9)}
        self.decommission = DecommissionReport("c:1", registered=True)
        self.options: dict[str, Any] = {}
        self.writable: tuple[str, ...] = ()
        self.unknown = self.interrupted = False
        self.trouble: Exception | None = None
        self.troubled: int | None = None
        self.store = SimpleNamespace(
            underreplication=lambda: MemoryUnderreplication(MemoryUnderreplicationState()),
            read_cookie=self._no_cookie,
            children=lambda _: [],
            other_log_roots=lambda: None,
        )

    def _no_cookie(self, bookie: str) -> None:
        raise NoNodeError("no cookie")

    def bookies(self) -> BookieView:
        return BookieView(self.writable, ())

    def list_ledgers(self) -> list[int]:
        return [*sorted(self.reports), 77]

    def check_ledger(self, ledger_id: int, **options: Any) -> LedgerReport:
        self.options = options
        if ledger_id not in self.reports:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        if self.trouble is not None and self.troubled in (None, ledger_id):
            raise self.trouble
        return self.reports[ledger_id]

    def repair_ledger(self, ledger_id: int, **options: Any) -> RepairReport:
        self.options = options
        if ledger_id == self.troubled and self.trouble is not None:
            raise self.trouble
        if ledger_id not in self.repairs:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        return self.repairs[ledger_id]

    def decommission_bookie(self, bookie: str, **options: Any) -> DecommissionReport:
        self.options = options
        if self.unknown:
            raise InvalidArgumentError(f"there is no bookie {bookie}")
        options["on_ledger"](1, 2, 9)
        for changed in self.decommission.changes:
            options["on_change"](changed)
        if self.trouble is not None:
            raise self.trouble
        if self.interrupted:
            raise KeyboardInterrupt
        return self.decommission


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()

    @contextmanager
    def connected(uri: str, protocol: str) -> Iterator[Client]:
        assert (uri, protocol) == (URI, "v2")
        yield made

    monkeypatch.setattr(replication, "connected", connected)
    monkeypatch.setenv(output.URI_VARIABLE, URI)
    return made


def test_check_of_one_ledger_lists_every_replica(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["ledger", "check", "4"]) == 0
    text = capsys.readouterr().out
    assert "a:1" in text and "good (stores nothing here)" in text and "0 in need of repair" in text
    assert client.options["full"] is False and client.options["bytes_per_second"] is None
    assert cli.run(["ledger", "check", "9", "--full", "--rate", "1.5"]) == 1
    text = capsys.readouterr().out
    assert "0, 2, 4, 6 and 1 more range" in text and "damaged" in text and "bookie is gone" in text and "1 in need of repair" in text
    assert client.options["full"] is True and client.options["bytes_per_second"] == 1_500_000


def test_check_of_all_lists_only_what_is_bad(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.reports[12] = report(12, GOOD, SILENT, metadata=OPEN, open_tail_lost=("c:1",))
    assert cli.run(["ledger", "check", "--all"]) == 1
    text = capsys.readouterr().out
    assert "a:1" not in text and "no answer (too many requests)" in text
    assert "ledger 12: OPEN, entries from 4 on are not decided" in text and "names bookies that are gone: c:1" in text
    assert "3 ledgers checked" in text and "2 in need of repair" in text  # 77 was deleted since it was listed


def test_check_as_json(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["ledger", "check", "9", "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert (shown["ledger"], shown["good"], shown["unsealed"]) == (9, False, False)
    first, second, third = shown["fragments"][0]["replicas"]
    assert first["good"] and second["corrupt"] == [[9, 9]] and not third["registered"] and third["noAnswer"] is None


def test_an_unsealed_guaranteed_ledger_is_in_need_of_repair(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    """G-27."""
    marked = LedgerMetadata(3, 3, 2, LedgerState.OPEN, (Fragment(0, ABC),), custom={"gwq": b"1"}).closed(9, 10)
    client.reports[4] = report(4, GOOD, metadata=marked)
    assert cli.run(["ledger", "check", "4"]) == 1
    assert "nobody has sealed it yet" in capsys.readouterr().out


def test_a_ledger_or_all(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["ledger", "check"]) == 2
    assert cli.run(["ledger", "repair", "4", "--all"]) == 2
    assert cli.run(["ledger", "check", "77"]) == 1
    assert cli.run(["ledger", "repair", "77"]) == 1
    assert "does not exist" in capsys.readouterr().err


def test_repair_says_what_it_did_and_what_it_could_not(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    moved, refilled = Moved(0, 2, "c:1", "x:1", 10), Refilled(0, 1, "b:1", 6)
    client.repairs[4] = RepairReport(4, [moved], [refilled], recovered=True, sealed=True, entries_copied=16, bytes_copied=2_500_000)
    assert cli.run(["ledger", "repair", "4", "--lost", "c:1"]) == 1
    assert "there is no bookie c:1" in capsys.readouterr().err
    client.writable = ("a:1", "b:1", "c:1")
    assert cli.run(["ledger", "repair", "4", "--lost", "c:1", "--recover-open", "--grace", "2"]) == 0
    text = capsys.readouterr().out
    for wanted in ("moved", "x:1", "filled in", "was recovered", "sealed", "1 changed, 16 entries (2.5 MB) copied, 0 not fully"):
        assert wanted in text
    assert (client.options["lost"], client.options["recover_open"], client.options["grace_s"]) == (("c:1",), True, 2.0)
    client.repairs[9] = RepairReport(9, locked_by="worker-7", open_tail_lost=("c:1",), problems=["entry 3 is readable nowhere"])
    assert cli.run(["ledger", "repair", "--all"]) == 1
    text = capsys.readouterr().out
    assert "worker-7 is replicating it" in text and "--recover-open" in text and "readable nowhere" in text and "was deleted" in text
    assert "1 not fully repaired" in text


def test_of_very_many_ledgers_the_first_are_shown_and_all_are_counted(
    client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "SHOWN_MAX", 2)
    client.reports = {ledger_id: report(ledger_id, GOOD, DAMAGED) for ledger_id in range(5)}
    client.repairs = {ledger_id: RepairReport(ledger_id, [Moved(0, 2, "c:1", "x:1", 10)], entries_copied=10) for ledger_id in range(5)}
    assert cli.run(["ledger", "check", "--all"]) == 1
    text = capsys.readouterr().out
    assert text.count("damaged") == 2 and "and 3 more ledgers with replicas that are not good, or with a note: --json has all" in text
    assert "5 ledgers checked" in text and "5 in need of repair" in text
    assert cli.run(["ledger", "repair", "--all"]) == 0
    text = capsys.readouterr().out
    assert text.count("moved") == 2 and "and 4 more ledgers that were changed, or have a note: --json has all" in text
    assert "6 ledgers looked at, 5 changed, 50 entries" in text  # 77 was deleted since it was listed
    assert cli.run(["ledger", "check", "--all", "--json"]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_repair_as_json(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.repairs[4] = RepairReport(4, [Moved(0, 2, "c:1", "x:1", 10)])
    assert cli.run(["ledger", "repair", "--all", "--json"]) == 0
    first, *_ = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["moved"] == [{"firstEntryId": 0, "position": 2, "from": "c:1", "to": "x:1", "entries": 10}]
    assert first["complete"] and first["lockedBy"] is None


def test_disabled_auto_recovery_is_said(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.store.underreplication = lambda: SimpleNamespace(is_disabled=lambda: True)
    assert cli.run(["ledger", "repair", "4"]) == 0
    assert "auto-recovery is disabled" in capsys.readouterr().err


def test_a_line_names_its_ledger_once(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    """The texts of most errors name the ledger by themselves."""
    stays = "ledger 9 stays IN_RECOVERY: no good answer from a:1"
    client.repairs = {9: RepairReport(9, problems=[stays, "entry 3 is readable nowhere", "nothing moved in ledger 9 for 60 s"])}
    client.repairs[10] = RepairReport(10, problems=["entry 3 of ledger 101 is readable nowhere"])
    client.reports[10] = client.reports[9]
    assert cli.run(["ledger", "repair", "--all"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert {stays, "ledger 9: entry 3 is readable nowhere", "nothing moved in ledger 9 for 60 s"} <= {*lines}
    assert "ledger 10: entry 3 of ledger 101 is readable nowhere" in lines, "101 is another"
    client.decommission.note(client.repairs[9])
    client.decommission.still_named = [StillNamed(9, LedgerState.CLOSED)]
    assert cli.run(["bookie", "decommission", "c:1"]) == 1
    assert stays in capsys.readouterr().out.splitlines()
    client.reports, client.trouble = {9: client.reports[9]}, OperationTimeoutError("ledger 9: no answer within 60 s")
    assert cli.run(["ledger", "check", "--all"]) == 1
    assert "[BK-TIMEOUT] ledger 9: no answer within 60 s" in capsys.readouterr().err.splitlines()


def test_decommission_says_what_to_do_next(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.decommission.note(RepairReport(9, [Moved(0, 2, "c:1", "x:1", 10)]))
    assert cli.run(["bookie", "decommission", "c:1"]) == 0
    shown = capsys.readouterr()
    assert "no fragment of any ledger names c:1" in shown.out and "it is read-only" in shown.out and "x:1" in shown.out
    assert "ledger 9 (1 of 2" in shown.err and "is writable" not in shown.err
    client.writable = ("c:1",)
    client.decommission.writable = True  # RR-14: done for the moment, but not for good
    assert cli.run(["bookie", "decommission", "c:1"]) == 1
    shown = capsys.readouterr()
    assert "make it read-only or stop it first" in shown.err and "at any time: stop it now" in shown.out
    client.writable, client.decommission.writable = (), False
    client.decommission.registered, client.decommission.cookie_deleted = False, True
    assert cli.run(["bookie", "decommission", "c:1", "--delete-cookie", "--yes", "--wait", "3"]) == 0
    assert capsys.readouterr().out.endswith("it cannot start again on its old data\n")
    assert client.options["delete_cookie"] is True and client.options["wait_s"] == 3.0
    assert client.options["stopped"] is False
    client.decommission.cookie_deleted = False
    client.decommission.unseen = "its id is no address"
    assert cli.run(["bookie", "decommission", "c:1", "--delete-cookie", "--yes"]) == 1
    said = "nobody can tell whether its process has ended: its id is no address; a process that is frozen or cut off would go on without it"
    shown = capsys.readouterr().out
    assert said in shown and shown.endswith("then run `bk bookie decommission c:1 --delete-cookie --stopped`\n")
    assert cli.run(["bookie", "decommission", "c:1", "--delete-cookie", "--yes", "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["unseen"] == "its id is no address"
    client.decommission.unseen = ""
    assert cli.run(["bookie", "decommission", "c:1", "--delete-cookie", "--stopped", "--yes"]) == 0
    assert client.options["stopped"] is True
    capsys.readouterr()
    assert cli.run(["bookie", "decommission", "c:1", "--delete-cookie", "--yes"]) == 0
    assert "it had no cookie" in capsys.readouterr().out
    client.decommission.registered = True  # emptied, and not stopped before the wait was over: what was asked for is not done
    assert cli.run(["bookie", "decommission", "c:1", "--delete-cookie", "--yes"]) == 1
    assert "stop it, then run" in capsys.readouterr().out
    assert cli.run(["bookie", "decommission", "c:1"]) == 0
    capsys.readouterr()
    client.decommission.registered, client.decommission.runs_at = False, ("::1", 3181)
    assert cli.run(["bookie", "decommission", "c:1", "--delete-cookie", "--yes"]) == 1
    assert "takes connections at [::1]:3181, as a frozen process does" in capsys.readouterr().out
    assert cli.run(["bookie", "decommission", "c:1", "--delete-cookie", "--yes", "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["runsAt"] == "[::1]:3181"
    client.decommission.runs_at = None
    client.decommission.still_named = [StillNamed(9, LedgerState.OPEN, written=True, log="events"), StillNamed(12, LedgerState.CLOSED)]
    client.decommission.still_named.append(StillNamed(13, problem="not a protobuf message"))
    assert cli.run(["bookie", "decommission", "c:1"]) == 1
    out = capsys.readouterr().out
    assert "still named by 3 ledgers; 1 in use" in out and "being written to the bookie  events" in out and "CLOSED, not moved yet" in out
    assert "not known: not a protobuf message" in out
    assert cli.run(["bookie", "decommission", "c:1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["namedBy"] == [9, 12, 13]


def test_what_was_changed_is_told_even_if_an_error_ends_the_whole(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    """It stays changed, and whoever runs the command again gets no other account of it."""
    lost = MetadataUnavailableError("there is no connection to ZooKeeper")
    client.decommission.note(RepairReport(9, [Moved(0, 2, "c:1", "x:1", 10)]))
    client.repairs[4], client.troubled, client.trouble = RepairReport(4, [Moved(0, 2, "c:1", "x:1", 10)]), 9, lost
    for command in (["ledger", "repair", "--all"], ["bookie", "decommission", "c:1"]):
        assert cli.run(command) == 1
        shown = capsys.readouterr()
        assert "moved" in shown.out and "x:1" in shown.out and "no connection to ZooKeeper" in shown.err
        assert cli.run([*command, "--json"]) == 1
        (told,) = map(json.loads, capsys.readouterr().out.splitlines())
        assert told["moved"][0]["to"] == "x:1"
    client.trouble, client.interrupted = None, True
    assert cli.run(["bookie", "decommission", "c:1"]) == 130
    assert "x:1" in capsys.readouterr().out
    client.interrupted, client.decommission.still_named = False, [StillNamed(12, LedgerState.CLOSED)]
    client.decommission.note(RepairReport(12, problems=["entry 3 is readable nowhere"]))
    assert cli.run(["bookie", "decommission", "c:1", "--json"]) == 1
    assert [json.loads(line).get("ledger") for line in capsys.readouterr().out.splitlines()] == [9, 12, None]


def test_what_was_found_is_told_even_if_an_error_ends_a_check(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.reports[12] = client.reports[9]
    client.troubled, client.trouble = 12, MetadataUnavailableError("there is no connection to ZooKeeper")
    assert cli.run(["ledger", "check", "--all"]) == 1
    shown = capsys.readouterr()
    assert "damaged" in shown.out and "no connection to ZooKeeper" in shown.err


def test_an_interrupted_decommission_says_how_it_leaves_the_bookie(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.interrupted = True
    assert cli.run(["bookie", "decommission", "c:1"]) == 130
    assert "what was moved stays where it is: run the same command again to go on" in capsys.readouterr().err


def test_http_is_for_a_bookie_that_is_to_turn_read_only(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bookie", "decommission", "c:1", "--http", "h:8080"]) == 2
    assert "--http is for --read-only" in capsys.readouterr().err and not client.options


def test_stopped_is_for_a_cookie_that_is_to_be_deleted(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bookie", "decommission", "c:1", "--stopped"]) == 2
    assert "--stopped is for --delete-cookie" in capsys.readouterr().err and not client.options


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 1), ("", 1)])
def test_a_bookie_is_forgotten_only_after_a_question(
    answer: str, status: int, client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.decommission.registered, client.decommission.cookie_deleted = False, True
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    assert cli.run(["bookie", "decommission", "c:1", "--delete-cookie", "--json"]) == status
    shown = capsys.readouterr()
    assert "forget it for good" in shown.err and ("cookieDeleted" in shown.out) is (status == 0)
    assert bool(client.options) is (status == 0)


def test_a_bookie_nobody_knows_is_an_error(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.unknown = True
    assert cli.run(["bookie", "decommission", "z:1"]) == 1
    assert "there is no bookie z:1" in capsys.readouterr().err
