"""X-rays of real bookies: what was lost, what went bad and who is dead is found, and nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import pytest

import bk_core
from bk_core import cli
from bk_core.bookie import apache
from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from bk_core.client.xray import Xray
from bk_core.display.xray import verdict
from bk_core.errors import BookieUnavailableError, NoSuchLedgerError
from bk_core.protocol.ledger.xray import EntryState
from tests.integration.copies import NOBODY, made_by_hand
from tests.integration.patience import PATIENT

ENTRIES = 120
NO_EXPLICIT_LAC = replace(PATIENT, explicit_lac_ns=3_600_000_000_000)  # bookies learn the LAC from entries only


def problems(found: Xray) -> list[tuple[str, str, int, int]]:
    return sorted((one.bookie, one.stretch.state.name, one.stretch.first, one.stretch.last) for one in found.problems)


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_what_is_missing_wrong_or_on_a_dead_bookie_is_found_and_nothing_else(cluster: LocalCluster, protocol: str) -> None:
    a, b, c = sorted(cluster.bookie_ids)[:3]
    with bk_core.connect(cluster.uri, protocol=protocol, limits=PATIENT) as bk:
        fragments = [(0, (a, b, c)), (60, (a, NOBODY, c))]
        ledger_id = made_by_hand(bk, fragments, ENTRIES, missing={b: range(10, 20), c: [119]}, corrupt={a: [0, 70], c: [33]})
        gone = (NOBODY, "UNASKED", 60, 119)
        lost = [(b, "MISSING", 10, 19), (c, "MISSING", 119, 119)]
        wrong = [(a, "CORRUPT", 0, 0), (a, "CORRUPT", 70, 70), (c, "CORRUPT", 33, 33)]
        full = bk.xray(ledger_id, full=True)
        assert problems(full) == sorted([gone, *lost, *wrong])
        assert {state.name: count for state, count in full.counts.items()} == {"GOOD": 286, "UNASKED": 60, "MISSING": 11, "CORRUPT": 3}
        quick = problems(bk.xray(ledger_id))
        assert set(quick) - {*wrong} == {gone, *lost}
        assert (a, "CORRUPT", 0, 0) in quick  # the first copy is read also of a bookie that lists what it has
        assert bk.ledger_metadata(ledger_id) == full.metadata


def test_a_bookie_that_never_answers_about_lists_costs_time_once_and_no_warning(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache's with DbLedgerStorage, as the local cluster has it. Embedded ones answer."""
    a, b, c = sorted(cluster.bookie_ids)[:3]
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk:
        ledgers = [made_by_hand(bk, [(0, (a, b, NOBODY))], ENTRIES) for _ in range(2)]
        found = [bk.xray(one) for one in ledgers]
        for one in found:
            assert (one.copies, one.counts[EntryState.UNASKED]) == (2 * ENTRIES, ENTRIES)
            assert f"{2 * ENTRIES} copies looked at" in verdict(one) and f", {ENTRIES} not asked: {ENTRIES} in need" in verdict(one)
        silent = {a, b} if cluster.kind.startswith("apache") else set()
        assert bk._session.unlisting.known == silent
        assert found[1].seconds < 2.5  # a list is waited for 3 s
    assert [record for record in caplog.records if "nothing came" in record.message] == []


def test_a_striped_ledger_is_seen_through(cluster: LocalCluster) -> None:
    a, b, c = sorted(cluster.bookie_ids)[:3]
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk:
        ledger_id = made_by_hand(bk, [(0, (a, b, c))], ENTRIES, quorums=(3, 2, 2), missing={b: [40, 43]}, corrupt={c: [50]})
        held = [n for n in (40, 43) if (1 - n) % 3 < 2]
        assert held == [40, 43]
        full = bk.xray(ledger_id, full=True)
        assert [one for one in problems(full) if one[1] == "MISSING"] == [(b, "MISSING", 40, 40), (b, "MISSING", 43, 43)]
        assert [one for one in problems(full) if one[1] != "MISSING"] == [(c, "CORRUPT", 50, 50)]
        assert sum(full.counts.values()) == 2 * ENTRIES
        assert [one for one in problems(bk.xray(ledger_id)) if one[1] == "MISSING"] == [
            one for one in problems(full) if one[1] == "MISSING"
        ]


def test_an_open_ledger_is_looked_at_and_its_writer_goes_on(cluster: LocalCluster) -> None:
    with bk_core.connect(cluster.uri, limits=NO_EXPLICIT_LAC) as bk, bk_core.connect(cluster.uri, limits=PATIENT) as other:
        with bk.create_ledger(ack_quorum_size=3) as ledger:
            ledger.append_many([b"x" * 100] * 50)
            for full in (False, True):
                found = other.xray(ledger.ledger_id, full=full)
                assert (found.is_good, found.last, found.metadata.state.name) == (True, 49, "OPEN")
                assert sum(found.counts.values()) == 150
                assert not list(found.on_their_way)
            ledger.append(b"still alive")
            lacs = {one.lac for one in other.xray(ledger.ledger_id).bookies}
            assert lacs == {49}
        assert other.xray(ledger.ledger_id, full=True).lac == 50


def test_a_ledger_that_a_bookie_does_not_know_is_missing_there(cluster: LocalCluster) -> None:
    a, b, c = sorted(cluster.bookie_ids)[:3]
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk:
        ledger_id = made_by_hand(bk, [(0, (a, b, c))], ENTRIES, missing={b: range(ENTRIES)})
        for full in (True, False):
            assert problems(bk.xray(ledger_id, full=full)) == [(b, "MISSING", 0, ENTRIES - 1)]
        with pytest.raises(NoSuchLedgerError):
            bk.xray(987654321)


def test_the_command_draws_a_map_and_tells_by_its_status(cluster: LocalCluster, capfd: pytest.CaptureFixture[str]) -> None:
    a, b, c = sorted(cluster.bookie_ids)[:3]
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk:
        good = made_by_hand(bk, [(0, (a, b, c))], ENTRIES)
        bad = made_by_hand(bk, [(0, (a, b, c))], ENTRIES, missing={b: range(20, 40)})
    assert cli.run(["ledger", "xray", str(good), "--uri", cluster.uri]) == 0
    assert "none in need of repair" in capfd.readouterr().out
    assert cli.run(["ledger", "xray", str(bad), "--full", "--width", "12", "--uri", cluster.uri]) == 1
    out = capfd.readouterr().out
    assert f"{b:{max(map(len, (a, b, c)))}}  ██○○████████\n" in out
    assert "20 in need of repair" in out
    assert cli.run(["ledger", "xray", str(bad), "--full", "--json", "--uri", cluster.uri]) == 1
    sys.stdout.flush()
    shown: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert shown["counts"] == {"good": 340, "missing": 20}
    assert [one["stretches"] for one in shown["replicas"] if one["bookie"] == b] == [
        [[0, 19, 20, "good"], [20, 39, 20, "missing"], [40, 119, 80, "good"]]
    ]


# --- bookies whose files lose something --------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[LocalCluster]:
    """Embedded bookies of the test's own, because their data is damaged."""
    try:
        apache.find_java()
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    with local_cluster(3, tmp_path) as cluster:
        yield cluster


def damage(cluster: LocalCluster, bookie: str, change: Callable[[Any, Any], None]) -> None:
    """Change a bookie's database while it is down. ``change`` gets a transaction and the table of runs."""
    index = cluster.bookie_ids.index(bookie)
    cluster.stop_bookie(index)
    path = Path(cluster.directory) / f"bookie-{index}" / "data" / "current"
    with closing(lmdb.open(str(path), max_dbs=8, map_size=1 << 30)) as environment:
        runs = environment.open_db(b"runs")
        with environment.begin(write=True) as transaction:
            change(transaction, runs)
    cluster.restart(index)


def test_an_entry_that_a_bookie_lost_from_its_database_is_found(alone: LocalCluster) -> None:
    with bk_core.connect(alone.uri, limits=PATIENT) as bk:
        with bk.create_ledger(ack_quorum_size=3) as ledger:
            ledger.append_many([b"%d" % n + b"x" * 60_000 for n in range(20)])  # as large as a run is stored: one entry each
        victim = alone.bookie_ids[1]

        def forget(transaction: Any, runs: Any) -> None:
            key = ledger.ledger_id.to_bytes(8, "big") + (7).to_bytes(8, "big")
            assert transaction.delete(key, db=runs)

        damage(alone, victim, forget)
        for full in (True, False):
            assert problems(bk.xray(ledger.ledger_id, full=full)) == [(victim, "MISSING", 7, 7)]


def test_a_bookie_that_is_killed_is_gone_and_the_others_are_read(alone: LocalCluster) -> None:
    with bk_core.connect(alone.uri, limits=PATIENT) as bk:
        with bk.create_ledger(ack_quorum_size=3) as ledger:
            ledger.append_many([b"x"] * 100)
        alone.kill(2)
        found = bk.xray(ledger.ledger_id, full=True)
        dead = alone.bookie_ids[2]
        # until its registration is gone it is asked, and does not answer
        assert [(one[0], one[2], one[3]) for one in problems(found)] == [(dead, 0, 99)]
        assert problems(found)[0][1] in ("SILENT", "UNASKED")
        assert found.counts[min(found.counts)] == 200
