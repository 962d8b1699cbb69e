"""The most telling cells of the fault table on real bookies and a real Spark; all of them: ``make faults`` (README.md)."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from bk_core.bookie.apache import find_java
from bk_core.errors import BookieUnavailableError
from tests.faults.cells import OPERATIONS, Spec, cells, gateway_cells
from tests.faults.harness import LEDGERS, Cell, Verdict, World
from tests.faults.metadata import ETCD, KINDS
from tests.faults.run import line, made_world, play, table

SEED = int(os.environ.get("BK_SEED") or random.SystemRandom().randrange(1 << 32))
SEED_IN_LEDGERS = int(os.environ.get("BK_SEED") or 14)
QUICK = [spec for spec in cells() if spec.quick]
QUICK_IN_LEDGERS = [spec for spec in gateway_cells() if spec.quick]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    try:
        find_java()
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    print(f"\nseed {SEED} (BK_SEED repeats its choices)", flush=True)
    with made_world(tmp_path_factory.mktemp("faults")) as world:
        yield world


@pytest.mark.parametrize("spec", QUICK, ids=lambda spec: spec.name)
def test_exactly_once_whatever_fails(world: World, spec: Spec) -> None:
    """spark-connectors.md 5.9: missing 0, doubled 0, leftover ledgers 0 after a collection of garbage."""
    verdict = play(world, spec, str(SEED))
    assert verdict.good, f"{line(verdict)}\n" + "\n".join(verdict.errors)


@pytest.mark.deep
@pytest.mark.timeout(1200)  # it plays an undisturbed query beside it
@pytest.mark.parametrize("spec", QUICK_IN_LEDGERS, ids=lambda spec: spec.name)
def test_exactly_once_with_the_checkpoint_in_ledgers(world: World, monkeypatch: pytest.MonkeyPatch, spec: Spec) -> None:
    """The rows and the state are those of a query that nothing happened to, and nothing is left over."""
    monkeypatch.setattr(world, "checkpoint", LEDGERS)
    verdict = play(world, spec, str(SEED_IN_LEDGERS))
    assert verdict.good and verdict.states, f"{line(verdict)}\n" + "\n".join(verdict.errors)


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_exactly_once_while_all_leases_of_etcd_are_lost(tmp_path: Path) -> None:
    """No bookie is registered any more when the first entry shall be written, and the rows are there once all the same."""
    spec = next(spec for spec in cells(metadata=ETCD.name) if spec.name == "before the first add / all leases revoked")
    with made_world(tmp_path, metadata=ETCD.name) as world:
        verdict = play(world, spec, str(SEED))
    assert verdict.good and verdict.fired, f"{line(verdict)}\n" + "\n".join(verdict.errors)


def test_the_judge_sees_what_is_wrong(world: World) -> None:
    cell = Cell(world, "judge")
    cell.add_files()
    cell.run_to_the_end()
    right = Verdict("none", "none")
    cell.judge(right)
    assert right.good and right.ledgers >= 1
    here = sorted(cell.expected)
    cell.expected = [*here[2:], 999_999_999]  # two rows too many, one too few
    wrong = Verdict("none", "none")
    with world.client.create_ledger(custom={"log": cell.log.encode()}):
        cell.judge(wrong)
    cell.remove()
    assert (wrong.missing, wrong.doubled, wrong.foreign, wrong.leftovers) == (1, 0, 2, 1)
    assert not wrong.good


def test_the_table_sums_up() -> None:
    good, bad = Verdict("a", "b", runs=2), Verdict("a", "b", runs=3, missing=4, doubled=1, leftovers=1, intents=1, states=6)
    assert table([good, bad]).splitlines()[2:] == [
        "| a | b | 2 | 5 | 4 | 1 | 2 | 6 | 0 | **1 bad** |",
        "| **all** | 1 cells | 2 | 5 | 4 | 1 | 2 | 6 | 0 | **1 bad** |",
    ]


def test_every_cell_has_a_name_of_its_own() -> None:
    names = [spec.name for spec in cells(LEDGERS, ETCD.name)]
    assert len(set(names)) == len(names) > 200


def test_etcd_meets_what_zookeeper_meets_and_more() -> None:
    over_zookeeper, over_etcd = ({spec.name for spec in cells(LEDGERS, kind)} for kind in KINDS)
    assert over_zookeeper < over_etcd
    assert {name.partition(" / ")[2] for name in over_etcd - over_zookeeper} == {"all leases revoked"}


@pytest.mark.parametrize("fault", ["driver killed", "executors killed", "bookie killed", "metadata store killed"])
def test_every_operation_of_the_gateway_meets_every_kill(fault: str) -> None:
    names = {spec.name for spec in gateway_cells()}
    assert len(OPERATIONS) == 9
    for name, _ in OPERATIONS.values():
        assert {f"checkpoint: before {name} / {fault}", f"checkpoint: {name} done, not answered / {fault}"} <= names
