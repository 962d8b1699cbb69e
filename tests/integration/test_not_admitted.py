"""Clients that bookies do not admit: they know nothing of copies, so nothing is missing, marked or moved because of them (RR-19)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import AutoRecoveryOptions, RecoveryEvent, cli
from bk_core.bookie.door import Door
from bk_core.bookie.embedded_process import EmbeddedBookieProcess
from bk_core.bookie.local_cluster import local_cluster
from bk_core.client.log.history import read_log
from bk_core.errors import BookieAuthError, BookieSecurityError, BookieTlsError
from bk_core.protocol.ledger.metadata import LedgerMetadata
from tests.integration.dead_bookies import die
from tests.integration.patience import PATIENT, until
from tests.integration.secured_bookies import EmbeddedCluster
from tests.integration.secured_zookeeper import Authority
from tests.integration.test_log_history import LIMITS, Appender

QUICK = AutoRecoveryOptions(look_s=0.1, grace_s=0.5)
STRANGERS = ("no options", "no user", "wrong password", "wrong CA")


@dataclass
class World:
    """A cluster that wants TLS and a password, a CLOSED ledger in it, and the URIs of clients that it does not admit."""

    uri: str
    bookies: list[str]
    ledger_id: int
    strangers: Mapping[str, str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("strangers")
    (directory / "wrong").write_text("nope")
    ca = Authority.made(directory / "ca", "another")
    with local_cluster(3, directory / "cluster", tls=True, sasl=True) as cluster:
        with bk_core.connect(cluster.uri, limits=PATIENT) as bk:
            with bk.create_ledger(ensemble_size=3, write_quorum_size=2, ack_quorum_size=2) as ledger:
                ledger.append_many([b"x"] * 20)
        strangers = (
            cluster.uri.partition("?")[0],
            re.sub("&bookie_(user|password_file)=[^&]*", "", cluster.uri),
            re.sub("(bookie_password_file)=[^&]*", rf"\1={directory / 'wrong'}", cluster.uri),
            re.sub("(bookie_ca_file)=[^&]*", rf"\1={ca.certificate}", cluster.uri),
        )
        assert len({cluster.uri, *strangers}) == 5
        yield World(cluster.uri, cluster.bookie_ids, ledger.ledger_id, dict(zip(STRANGERS, strangers, strict=True)))


def marked(uri: str) -> list[int]:
    with bk_core.connect(uri) as bk:
        return list(bk.store.underreplication().marked_ledgers())


def ran(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[Any], str]:
    capfd.readouterr()
    status = cli.run(list(arguments))
    found = capfd.readouterr()
    return status, [json.loads(line) for line in found.out.splitlines()], found.err


# --- check, repair, decommission ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["v2", "v3"])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_finds_nothing_missing(world: World, stranger: str, full: bool, protocol: Any) -> None:
    with bk_core.connect(world.strangers[stranger], protocol=protocol) as bk:
        report = bk.check_ledger(world.ledger_id, full=full)
        assert (report.status, report.is_good, report.not_admitting) == ("unknown", False, tuple(sorted(world.bookies)))
        assert not any(replica.damaged or replica.unreadable for fragment in report.fragments for replica in fragment.replicas)
        repaired = bk.repair_ledger(world.ledger_id, full=full)
        assert repaired.not_admitting == {*world.bookies} and not repaired.is_complete and not repaired.changed
        assert all("does not admit this client" in problem for problem in repaired.problems)
    with bk_core.connect(world.uri) as bk:
        assert bk.check_ledger(world.ledger_id, full=True).status == "good"


ADVICE = {
    "no options": "bookie_ca_file",
    "no user": "add bookie_user and bookie_password_file",
    "wrong password": "see bookie_user and bookie_password_file",
    "wrong CA": "see bookie_ca_file",
}


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("command", ["check", "repair"])
def test_the_command_says_that_it_could_not_look(world: World, stranger: str, command: str, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("ledger", command, str(world.ledger_id), "--uri", world.strangers[stranger])
    status, (facts,), err = ran(capfd, *arguments, "--json")
    assert status == 1 and facts["notAdmitting"] == sorted(world.bookies) and facts.get("status", "unknown") == "unknown"
    assert "3 bookies do not admit this client (" in err and ADVICE[stranger] in err
    cli.run(list(arguments))
    out = capfd.readouterr().out
    assert "damaged" not in out
    if command == "check":
        assert "unknown (not admitted)" in out and "0 in need of repair, 1 unknown: this client is not admitted" in out


@pytest.mark.parametrize("full", [(), ("--full",)])
@pytest.mark.parametrize("stranger", STRANGERS)
def test_an_x_ray_by_a_stranger_finds_nothing_in_need_of_repair(
    world: World, stranger: str, full: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["ledger", "xray", str(world.ledger_id), "--uri", world.strangers[stranger], *full]) == 1
    out = capfd.readouterr().out
    assert "none in need of repair, 40 unknown: this client is not admitted" in out and "cannot be read there" not in out
    assert out.count("silent (not admitted)") == 3


# --- auto-recovery ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stranger", "kind"), list(zip(STRANGERS, [BookieAuthError] * 3 + [BookieTlsError], strict=True)))
def test_auto_recovery_of_a_stranger_does_not_begin(
    world: World, stranger: str, kind: type[BookieSecurityError], capfd: pytest.CaptureFixture[str]
) -> None:
    with bk_core.connect(world.strangers[stranger]) as bk:
        running = bk.auto_recovery(QUICK)
        with pytest.raises(kind, match="auto-recovery does not begin: 3 of 3 bookies do not admit this client") as error:
            running.start()
        assert ADVICE[stranger] in str(error.value)
        assert not any(thread.is_alive() for thread in running._threads)
        assert bk.store.underreplication().auditor() is None
    status, out, err = ran(capfd, "autorecovery", "--uri", world.strangers[stranger])
    assert (status, out) == (1, []) and err.count("\n") == 1 and f"error: [{kind.code}] auto-recovery does not begin" in err
    assert marked(world.uri) == []


# --- the doctor ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stranger", STRANGERS)
def test_the_doctor_says_once_and_first_that_it_is_not_admitted(world: World, stranger: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, (first, *rest, summary), _ = ran(capfd, "cluster", "doctor", "--json", "--read-last", "--uri", world.strangers[stranger])
    assert status == 1 and (first["code"], first["severity"], first["count"]) == ("not-admitted", "error", 3)
    assert first["what"].startswith("3 of 3 bookies do not admit this client (") and ADVICE[stranger] in first["advice"]
    assert first["bookies"] == sorted(world.bookies)
    assert [one for one in rest if not one["code"].startswith("disk")] == []
    assert summary["unchecked"] == ["copies on 3 bookies by which this client is not admitted"]
    assert cli.run(["cluster", "doctor", "--uri", world.strangers[stranger]]) == 1
    out = capfd.readouterr().out
    assert out.startswith("ERROR    not-admitted: ") and "--lost" not in out and "the copies there were not judged" in " ".join(out.split())


def test_a_history_that_a_stranger_cannot_read_is_not_broken(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    with bk_core.connect(world.uri, limits=PATIENT) as bk:
        log = bk.create_log("long", entry_format="raw")
        appender = Appender(bk, "long", "query")
        for batch in range(2 * LIMITS.tail_max):
            appender.commit(batch)
        assert read_log(bk, "long").listed.history, "all segments are in the list itself"
        try:
            for stranger in STRANGERS:
                _, found, _ = ran(capfd, "cluster", "doctor", "--json", "--uri", world.strangers[stranger])
                assert [one["code"] for one in found[:-1] if not one["code"].startswith("disk")] == ["not-admitted"]
                assert found[-1]["unchecked"][1:] == ["the history of log long"]
                status, (check,), _ = ran(capfd, "log", "check", "long", "--json", "--uri", world.strangers[stranger])
                assert status == 1 and {one["problem"] for one in check["problems"]} == {"not-admitted"}
        finally:
            log.delete()


@pytest.mark.parametrize("stranger", STRANGERS)
def test_copies_of_a_log_are_unknown_to_a_stranger(world: World, stranger: str, capfd: pytest.CaptureFixture[str]) -> None:
    with bk_core.connect(world.uri, limits=PATIENT) as bk:
        log = bk.create_log("seen", entry_format="raw")
        try:
            with log.writer() as writer:
                writer.append(b"row")
            status, (found,), _ = ran(capfd, "log", "verify", "seen", "--json", "--uri", world.strangers[stranger])
            assert (status, found["good"], found["copies"], found["damaged"], found["unknown"]) == (1, False, 0, 0, 3)
            assert [one["problem"] for one in found["listProblems"]] == ["not-admitted"]
            assert cli.run(["log", "verify", "seen", "--uri", world.strangers[stranger]]) == 1
            assert "none in need of repair, 3 unknown: this client is not admitted" in capfd.readouterr().out
            assert log.verify().is_good
        finally:
            log.delete()


def test_the_doctor_judges_the_copies_on_other_bookies(divided: Divided, capfd: pytest.CaptureFixture[str]) -> None:
    """A copy on a bookie that is down is missing, and the other one, where this client is refused, counts as there."""
    with bk_core.connect(divided.of("bob"), limits=PATIENT) as bob:
        ledger_id = on_last_two(bob, divided)
        die(divided, 1)
        _, found, _ = ran(capfd, "cluster", "doctor", "--json", "--uri", divided.of("ann"))
        told = {one["code"]: one for one in found[:-1]}
        assert found[0]["code"] == "not-admitted" and told["not-admitted"]["bookies"] == [divided.bookie_ids[2]]
        assert "no-live-copy" not in told and told["under-replicated"]["ledgers"] == [ledger_id]
        assert told["under-replicated"]["bookies"] == [divided.bookie_ids[1]] and "--lost" not in told["under-replicated"]["command"]


# --- a cluster of which some bookies do not admit this client -----------------------------------------------------------


class Divided(EmbeddedCluster):
    """Two bookies admit ann and bob, the last one admits bob alone."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        for name, users in (("both", "ann:moss\nbob:fern\n"), ("bob", "bob:fern\n")):
            (directory / name).write_text(users)
        for name, password in (("ann-password", "moss"), ("bob-password", "fern")):
            (directory / name).write_text(password)
        self._files = directory
        super().__init__(directory / "cluster", Door(users_file=str(directory / "both")))

    def _make_bookie(self, index: int) -> EmbeddedBookieProcess:
        bookie = super()._make_bookie(index)
        if index == 2:
            bookie._door = Door(users_file=str(self._files / "bob"))
        return bookie

    def of(self, user: str) -> str:
        return f"{self.uri}?bookie_user={user}&bookie_password_file={self._files / user}-password&session_timeout_ms=2000"


@pytest.fixture
def divided(tmp_path: Path) -> Iterator[Divided]:
    with Divided(tmp_path / "divided") as cluster:
        yield cluster


def on_last_two(bk: bk_core.BookKeeper, cluster: Divided) -> int:
    """A ledger with its copies on the last two bookies."""
    while True:
        with bk.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2) as ledger:
            ledger.append_many([b"x"] * 20)
        if {*bk.ledger_metadata(ledger.ledger_id).fragments[0].ensemble} == {*cluster.bookie_ids[1:]}:
            return int(ledger.ledger_id)
        bk.delete_ledger(ledger.ledger_id)


def stored(bk: bk_core.BookKeeper, ledger_id: int) -> LedgerMetadata:
    return bk.ledger_metadata(ledger_id)


def test_an_auditor_marks_nothing_where_it_is_refused(divided: Divided) -> None:
    """It goes on, because other bookies admit it, and does not note the look at all ledgers as done."""
    events: list[RecoveryEvent] = []
    with bk_core.connect(divided.of("bob"), limits=PATIENT) as bob, bk_core.connect(divided.of("ann"), limits=PATIENT) as ann:
        ledger_id = on_last_two(bob, divided)
        with ann.auto_recovery(QUICK, on_event=events.append):
            until(lambda: any(event.kind == "checked" for event in events), "the look at all ledgers")
        told = [event for event in events if event.kind == "trouble"]
        assert [(event.bookies, event.count) for event in told] == [((divided.bookie_ids[2],), 1)], told
        marks = bob.store.underreplication()
        assert list(marks.marked_ledgers()) == [] and marks.checked_ms() is None
        assert bob.check_ledger(ledger_id).is_good


def test_a_copy_that_is_refused_is_not_lost(divided: Divided, capfd: pytest.CaptureFixture[str]) -> None:
    """The other copy dies for good: a repair by a client that is not admitted by the bookie with the last one changes nothing, and says so;
    one that is admitted makes it again."""
    refusing = divided.bookie_ids[2]
    with bk_core.connect(divided.of("bob"), limits=PATIENT) as bob, bk_core.connect(divided.of("ann"), limits=PATIENT) as ann:
        ledger_id = on_last_two(bob, divided)
        die(divided, 1)
        before = stored(bob, ledger_id)
        report = ann.repair_ledger(ledger_id)
        assert report.not_admitting == {refusing} and not report.changed
        assert any("not found where this client is admitted" in one for one in report.problems), report.problems
        drained = ann.decommission_bookie(divided.bookie_ids[1])
        assert not drained.is_complete and drained.repairs[0].not_admitting == {refusing}
        assert stored(bob, ledger_id) == before
        arguments = ("bookie", "decommission", divided.bookie_ids[1], "--uri", divided.of("ann"), "--json")
        status, _, err = ran(capfd, *arguments)
        assert status == 1 and "1 bookie does not admit this client" in err
        assert bob.repair_ledger(ledger_id).is_complete and bob.check_ledger(ledger_id, full=True).is_good
