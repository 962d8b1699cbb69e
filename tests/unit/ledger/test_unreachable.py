"""Nobody who may know can be reached: readers, LAC readers and recoveries ask again for as long as their patience lasts (RD-13)."""

from __future__ import annotations

import pytest

from bk_core.errors import NoSuchEntryError, NoSuchLedgerError, ReadError, RecoveryFailedError
from bk_core.protocol.events import Outcome
from bk_core.protocol.ledger.read import lac_reader
from bk_core.protocol.ledger.read.lac_reader import LacReader, TryLacReader
from bk_core.protocol.ledger.read.reader import AGAIN, RangeReader
from bk_core.protocol.ledger.read.unreachable import Unreachable, only_unreachable
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import Status
from tests.unit.ledger.reader_world import LEDGER, World, closed, good, lac_answer, metadata, payload
from tests.unit.ledger.recovery_script import NO, Script

S = 1_000_000_000
OPEN = metadata()
TEN = closed(OPEN, 9)
GONE, SILENT = Status.UNAVAILABLE, Status.TIMEOUT


def reader(first: int = 4, last: int = 4, md: object = TEN, **options: object) -> World:
    settings: dict[str, object] = {"start": 0, "batch": True, "version": 1, **options}
    return World(RangeReader(LEDGER, md, first, last, **settings)).start()  # type: ignore[arg-type]


def refuse_all(world: World, *statuses: Status) -> None:
    for status in statuses:
        (ask,) = world.asks
        world.answer(ask, status)


# --- what counts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "confirmed", "unconfirmed"),
    [
        ((GONE, GONE, GONE), True, True),
        ((GONE, SILENT, SILENT), True, True),
        ((GONE, Status.NO_ENTRY, Status.NO_LEDGER), True, False),
        ((SILENT, SILENT, SILENT), False, False),
        ((Status.NO_ENTRY, Status.NO_ENTRY), False, False),
        ((GONE, None), False, False),
        ((GONE, Status.IO_ERROR), False, False),
        ((GONE, Status.UNAUTHORIZED), False, False),
        ((), False, False),
    ],
)
def test_what_is_a_reason_to_ask_again(statuses: tuple[Status | None, ...], confirmed: bool, unconfirmed: bool) -> None:
    """RD-13: nobody could be reached, or nobody else said more than that an entry, which exists, is not there."""
    assert only_unreachable(statuses, denials_count=True) is confirmed
    assert only_unreachable(statuses, denials_count=False) is unconfirmed


def test_pauses_grow_up_to_a_bound_and_the_last_one_ends_with_the_patience() -> None:
    """RD-13."""
    patience = Unreachable(Limits(unreachable_ns=10 * S, read_again_ns=S, read_again_ns_max=4 * S))
    assert str(patience) == "" and not patience.waits
    now, pauses = 5 * S, []
    while (pause := patience.failed(now)) is not None:
        pauses.append(pause // S)
        now += pause
    assert pauses == [1, 2, 4, 3] and str(patience) == "; asked again for 10.0 s"
    patience.answered()
    assert not patience.waits and patience.failed(now) == S


# --- entries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [True, False])
def test_a_read_whose_replicas_all_restart_waits_for_them(batch: bool) -> None:
    """RD-13: one warning, whatever the number of rounds; then the entries, and the patience is whole again."""
    world = reader(0, 9, batch=batch)
    for _ in range(5):
        refuse_all(world, GONE, GONE, GONE)
        assert world.asks == [] and world.ends == []
        world.look(TEN, 1)
        assert len([line for line in world.logs if line.level == "warning"]) == 4  # one of each replica, one that it will be asked again
        assert len([line for line in world.logs if "asking again for up to 30 s" in line.message]) == 1
        world.now_ns += world.timers[AGAIN]
        world.fire(AGAIN)
    while not world.ends:
        world.answer_all(good)
        if world.runs:
            world.consume()
    assert world.ends == [None] and world.entries == {e: payload(e) for e in range(10)}
    assert world.machine.trouble == "" and not world.machine._unreachable.waits


def test_the_error_says_how_long_it_was_tried_and_what_each_replica_said() -> None:
    """RD-13, RD-6."""
    world = reader(limits=Limits(unreachable_ns=3 * S))
    while not world.ends:
        refuse_all(world, GONE, Status.NO_ENTRY, SILENT)
        if world.looks:
            assert "a: unavailable" in world.machine.trouble
            world.look(TEN, 1)
        if AGAIN in world.timers:
            world.now_ns += world.timers[AGAIN]
            world.fire(AGAIN)
    (error,) = world.ends
    assert type(error) is ReadError and world.now_ns == 3 * S
    assert "a: unavailable" in str(error) and "timeout" in str(error) and "no such entry" in str(error)
    assert str(error).endswith("; asked again for 3.0 s")


@pytest.mark.parametrize("last", [Status.IO_ERROR, Status.UNAUTHORIZED])
def test_an_answer_that_is_no_silence_ends_it(last: Status) -> None:
    """RD-13, RD-6: the real error beats "unavailable", at once."""
    world = reader()
    refuse_all(world, GONE, GONE, last)
    world.look(TEN, 1)
    assert AGAIN not in world.timers and type(world.ends[0]) is ReadError
    assert world.ends[0].context["status"] == last.name


def test_who_reads_what_is_not_confirmed_does_not_wait_behind_a_denial() -> None:
    """RD-13, RD-11: there may be no such entry at all."""
    world = reader(9, 9, md=OPEN, unconfirmed=True)
    refuse_all(world, Status.NO_ENTRY, GONE, Status.NO_ENTRY)
    world.look(OPEN, 1)
    assert AGAIN not in world.timers and type(world.ends[0]) is ReadError


def test_one_healthy_replica_is_asked_at_once() -> None:
    """RD-13, RD-3: no pause before it, and none after."""
    world = reader()
    refuse_all(world, GONE, GONE)
    (ask,) = world.asks
    assert AGAIN not in world.timers
    world.answer(ask, good)
    assert world.ends == [None] and AGAIN not in world.timers


def test_replicas_that_were_replaced_meanwhile_are_asked_without_a_pause() -> None:
    """RD-13, RD-7."""
    world = reader()
    refuse_all(world, GONE, GONE, GONE)
    world.look(closed(metadata((3, 3, 2), (0, "def")), 9), 2)
    (ask,) = world.asks
    assert ask.bookie in "def"
    world.fire(AGAIN)  # the old pause means nothing any more
    assert len(world.asks) == 1
    world.answer(ask, good)
    assert world.ends == [None]


def test_a_ledger_deleted_meanwhile_ends_the_wait() -> None:
    """RD-13, LOG-13."""
    world = reader()
    refuse_all(world, GONE, GONE, GONE)
    world.look(None, outcome=Outcome.NO_SUCH_LEDGER)
    assert type(world.ends[0]) is NoSuchLedgerError


def test_a_look_that_takes_long_holds_nobody_up() -> None:
    """RD-13: the metadata store may be away as well."""
    world = reader()
    refuse_all(world, GONE, GONE, GONE)
    world.fire(AGAIN)
    refuse_all(world, GONE, GONE, GONE)
    assert len(world.looks) == 1
    world.fire(AGAIN)
    world.answer(world.asks[0], good)
    assert world.ends == [None]
    world.look(TEN, 1)
    assert world.ends == [None]


def test_after_the_wait_denials_of_all_are_a_denial() -> None:
    """RD-13, RD-6, RD-7."""
    world = reader()
    refuse_all(world, GONE, GONE, GONE)
    world.look(TEN, 1)
    world.fire(AGAIN)
    refuse_all(world, *[Status.NO_ENTRY] * 3)
    assert type(world.ends[0]) is NoSuchEntryError


def test_a_ledger_closed_below_the_entry_ends_the_wait() -> None:
    """RD-13, OP-6."""
    world = reader(9, 9, md=OPEN, unconfirmed=True)
    refuse_all(world, GONE, GONE, GONE)
    world.look(closed(OPEN, 3), 2)
    assert type(world.ends[0]) is NoSuchEntryError
    world.fire(AGAIN)
    assert world.asks == [] and len(world.ends) == 1


def test_lanes_of_a_striped_ledger_wait_together() -> None:
    """RD-13: with one timer; those that are there are kept."""
    world = reader(0, 3, md=closed(metadata((4, 1, 1)), 3), batch=False)
    for ask in list(world.asks):
        world.answer(ask, GONE if ask.bookie in "bc" else good)
    looks, world.looks = world.looks, []
    assert len(looks) == 2 and world.ends == [] and world.bookies == []
    world.fire(AGAIN)
    assert sorted(world.bookies) == ["b", "c"]
    world.answer_all(good)
    assert world.ends == [None] and world.entries == {e: payload(e) for e in range(4)}


# --- the LAC ---------------------------------------------------------------------------------------------------------


def lac(md: object = OPEN, **options: object) -> World:
    return World(LacReader(LEDGER, md, "lac", version=1, **options)).start()  # type: ignore[arg-type]


def test_the_lac_is_waited_for() -> None:
    """RD-13, LC-1: who has answered well is not asked again."""
    world = lac()
    world.answer("a", GONE)
    world.answer("b", GONE)
    world.answer("c", lac_answer(3, lac=2))
    assert world.ends == []
    world.fire(lac_reader.AGAIN)
    assert world.bookies == ["a", "b"]
    world.answer("a", lac_answer(5, lac=4))
    world.answer("b", GONE)
    assert world.ends == [4]


def test_the_lac_is_given_up_when_the_patience_is_over() -> None:
    """RD-13."""
    world = lac(limits=Limits(unreachable_ns=2 * S))
    while not world.ends:
        world.answer_all(GONE)
        if not world.ends:
            world.now_ns += world.timers[lac_reader.AGAIN]
            world.fire(lac_reader.AGAIN)
    assert type(world.ends[0]) is ReadError and str(world.ends[0]).endswith("; asked again for 2.0 s")


def test_another_last_fragment_found_while_waiting_for_the_lac_is_asked() -> None:
    """RD-13, OP-6, LC-4."""
    world = lac()
    world.answer_all(GONE)
    world.look(metadata((3, 3, 2), (0, "abc"), (5, "def")), 2)
    assert world.bookies == ["d", "e", "f"]
    world.answer_all(GONE)
    world.looks.clear()
    world.change(closed(OPEN, 9), 3)
    assert world.ends == [9]
    world = lac()
    world.answer_all(GONE)
    world.look(None, outcome=Outcome.NO_SUCH_LEDGER)
    assert type(world.ends[0]) is NoSuchLedgerError


def test_who_only_tries_to_learn_a_newer_lac_does_not_wait() -> None:
    """RD-13, LC-3: what the handle knows is a good answer."""
    world = World(TryLacReader(LEDGER, OPEN, "lac", 3)).start()
    world.answer_all(GONE)
    assert world.ends == [3]


# --- recovery --------------------------------------------------------------------------------------------------------


def again(script: Script) -> None:
    assert "recovery-retry" in script.timers
    script.timer("recovery-retry")


def test_fencing_outlives_a_restart_of_all_bookies() -> None:
    """RD-13, RC-5: beyond any number of repeats."""
    script = Script(recovery_retries_max=1)
    for _ in range(5):
        script.fence("abc", GONE)
        assert script.results == []
        again(script)
    script.fence("abc")
    script.answer("abc", 0, NO)
    assert script.end == (-1, 0)


def test_recovery_reads_outlive_it_too() -> None:
    """RD-13, RC-10, RC-11: a denial that is too few proves nothing, so those that cannot be reached are asked again."""
    script = Script(recovery_retries_max=1)
    script.fence("ab")
    script.answer("a", 0, NO)
    for _ in range(5):
        script.answer("bc", 0, GONE)
        assert script.results == []
        again(script)
    script.answer("b", 0, NO)
    assert script.end == (-1, 0)


def test_a_recovery_says_how_long_it_asked_again() -> None:
    """RD-13, RC-21."""
    script = Script(recovery_retries_max=0, unreachable_ns=2 * S)
    while not script.results:
        script.fence("abc", GONE)
        if not script.results:
            script.now_ns += script.timers["recovery-retry"]
            again(script)
    assert isinstance(script.result, RecoveryFailedError)
    assert "a (UNAVAILABLE), b (UNAVAILABLE), c (UNAVAILABLE); asked again for 2.0 s" in str(script.result)
