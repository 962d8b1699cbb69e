"""Learning the LAC: who must answer, what counts, and what a failure is called."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from bk_core.errors import OperationTimeoutError, ReadError, ReadTimeoutError, UnauthorizedError
from bk_core.protocol.events import BookieLost, ReadReply
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.protocol.ledger.read.lac_reader import LacReader, TryLacReader
from bk_core.protocol.wire.messages import AddResponse, ReadLacRequest, ReadLacResponse, ReadRequest, ReadResponse, Response, Status
from tests.unit.ledger.reader_world import LEDGER, World, body, closed, lac_answer, metadata

OPEN = metadata()
SECOND = metadata((3, 3, 2), (0, "abc"), (5, "abd"))


def reader(md: LedgerMetadata = OPEN, *, explicit: bool = True) -> World:
    return World(LacReader(LEDGER, md, "t", explicit=explicit, version=1)).start()


def trying(known: int) -> World:
    return World(TryLacReader(LEDGER, OPEN, "t", known)).start()


def test_all_bookies_of_the_last_fragment_are_asked_without_fencing() -> None:
    """LC-1, OP-3, OP-5."""
    assert [(a.bookie, type(a.message)) for a in reader(SECOND).asks] == [(b, ReadLacRequest) for b in "abd"]
    for ask in reader(explicit=False).asks:
        assert isinstance(ask.message, ReadRequest) and ask.message.entry_id == -1 and not ask.message.fence


def test_a_closed_ledger_is_never_asked_for() -> None:
    """LC-4."""
    world = reader(closed(OPEN, 9))
    assert world.asks == [] and world.ends == [9]


def test_the_lac_is_the_highest_heard() -> None:
    """LC-1: the field in the highest entry, the explicit slot, whichever is higher."""
    world = reader()
    world.answer("a", lac_answer(9, lac=7))
    assert world.ends == []
    world.answer("b", lac_answer(5, lac=4, explicit=8))
    assert world.ends == [8]
    plain = reader(explicit=False)
    plain.answer("a", ReadResponse(0, Status.OK, LEDGER, -1, body(9, lac=6)))
    plain.answer("b", Status.NO_ENTRY)
    assert plain.ends == [6]


def test_an_explicit_lac_beside_a_failure_counts() -> None:
    """wire-protocol.md 8.8: EIO from a bookie with an explicit LAC and no entries. LC-1: denials count as heard, with -1."""
    world = reader()
    world.answer("a", lac_answer(None, explicit=8, status=Status.IO_ERROR))
    world.answer("b", Status.NO_LEDGER)
    assert world.ends == [8]


@pytest.mark.parametrize(("first", "second"), [(Status.NO_ENTRY, Status.NO_LEDGER), (Status.TIMEOUT, Status.NO_ENTRY)])
def test_an_empty_last_fragment_does_not_hide_the_entries_before_it(first: Status, second: Status) -> None:
    """D5, scenario 43."""
    world = reader(SECOND)
    world.answer("a", first)
    world.answer("b", second)
    if not world.ends:
        world.answer("d", Status.NO_LEDGER)
    assert world.ends == [4]


@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 2, 2), (5, 3, 2), (6, 3, 2), (5, 3, 3), (3, 2, 1)])
def test_it_is_done_exactly_when_every_write_set_is_covered(quorums: tuple[int, int, int]) -> None:
    """LC-1, Q-4, Q-8: for every subset of bookies that answer first."""
    size = quorums[0]
    distribution = Distribution(*quorums)
    for count in range(1, size + 1):
        for heard in itertools.combinations(range(size), count):
            world = reader(metadata(quorums))
            asks = list(world.asks)
            for position in heard[:-1]:
                world.answer(asks[position], lac_answer(3, lac=2))
            before = bool(world.ends)
            assert before == distribution.covered(heard[:-1])
            world.answer(asks[heard[-1]], lac_answer(3, lac=2))
            assert bool(world.ends) == distribution.covered(heard)


def test_half_of_the_bookies_down() -> None:
    """Scenario 44, Q-6: 6/3/2 with 0 and 3 down gives a value, with 0 and 2 down an error."""
    for down, works in (("ad", True), ("ac", False)):
        world = reader(metadata((6, 3, 2)))
        for ask in list(world.asks):
            world.answer(ask, Status.IO_ERROR if ask.bookie in down else lac_answer(3, lac=2))
        (end,) = world.ends
        assert end == 2 if works else type(end) is ReadError


@pytest.mark.parametrize(
    "answer",
    [
        ReadLacResponse(0, Status.OK, LEDGER, None, body(3, corrupt=True)),
        ReadLacResponse(0, Status.OK, LEDGER, None, body(3, ledger_id=8)),
        ReadLacResponse(0, Status.OK, LEDGER, b"short", None),
        ReadLacResponse(0, Status.OK, LEDGER, None, None),
        AddResponse(0, Status.OK, LEDGER, 3),
    ],
)
def test_a_bad_answer_is_not_heard(answer: Response) -> None:
    """LC-1: digest-checked values only; it does not even cover."""
    world = reader()
    world.answer("a", answer)
    world.answer("b", lac_answer(3, lac=2))
    assert world.ends == []
    world.answer("c", answer)
    (error,) = world.ends
    assert type(error) is ReadError and "a: corrupt answer" in str(error)


@pytest.mark.parametrize(("last", "kind"), [(Status.TIMEOUT, ReadTimeoutError), (Status.IO_ERROR, ReadError)])
def test_not_covered_gives_the_last_error(last: Status, kind: type[ReadError]) -> None:
    """LC-1, OP-3: a timeout is a timeout, anything else a read error."""
    world = reader()
    for bookie, status in zip("abc", (Status.TIMEOUT, Status.IO_ERROR, last), strict=True):
        world.answer(bookie, status)
    (error,) = world.ends
    assert type(error) is kind
    assert isinstance(error, OperationTimeoutError) == (last is Status.TIMEOUT)
    assert "a: timeout" in str(error) and "b: io error" in str(error)


def test_unauthorized_fails_at_once() -> None:
    """LC-1."""
    world = reader()
    world.answer("a", Status.UNAUTHORIZED)
    (error,) = world.ends
    assert isinstance(error, UnauthorizedError)


def test_it_completes_once() -> None:
    """R28: an error after success, a second answer, and what means nothing to it."""
    world = reader()
    first = world.asks[0]
    world.answer("a", lac_answer(3, lac=2))
    world.answer(first, lac_answer(9, lac=8))  # delivered twice: still one bookie
    world.perform(world.machine.handle(BookieLost("a"), 0))
    assert world.ends == []
    world.answer("b", lac_answer(3, lac=2))
    world.answer("c", Status.TIMEOUT)
    world.change(closed(OPEN, 7), 9)
    assert world.ends == [2]


def test_a_new_ensemble_is_asked_from_the_start() -> None:
    """OP-6, R29: answers of the old one count no more."""
    world = reader()
    old = list(world.asks)
    world.answer(old[0], lac_answer(3, lac=2))
    world.change(SECOND, 2)
    assert [a.bookie for a in world.asks[-3:]] == ["a", "b", "d"]
    world.answer(old[1], lac_answer(3, lac=2))
    world.answer(old[2], lac_answer(3, lac=2))
    assert world.ends == []
    fresh = [a for a in world.asks if a not in old]
    world.answer(fresh[0], lac_answer(9, lac=8))
    world.answer(fresh[2], Status.NO_ENTRY)
    assert world.ends == [8]


def test_metadata_that_leaves_the_last_fragment_alone_changes_nothing() -> None:
    """OP-6, META-11: another state, or an old version."""
    world = reader()
    world.change(replace(OPEN, state=LedgerState.IN_RECOVERY), 2)
    world.change(SECOND, 1)
    assert len(world.all_asks) == 3


def test_a_close_ends_the_question() -> None:
    """LC-4."""
    world = reader()
    world.change(closed(OPEN, 7), 2)
    assert world.ends == [7]


# --- LC-3 ----------------------------------------------------------------------------------------------------------------


def test_a_try_is_done_with_the_first_higher_value() -> None:
    """LC-3."""
    world = trying(2)
    world.answer("a", lac_answer(3, lac=2))
    assert world.ends == []
    world.answer("b", lac_answer(9, lac=8))
    assert world.ends == [8]
    assert world.machine.handle(ReadReply(2, "c", Status.OK, lac_answer(20, lac=19)), 0) == []


def test_a_try_without_a_higher_value_gives_the_known_one_when_all_have_answered() -> None:
    """LC-3: whatever they answered."""
    world = trying(5)
    world.answer("a", lac_answer(3, lac=2))
    world.answer("b", Status.UNAUTHORIZED)
    assert world.ends == []
    world.answer("c", Status.TIMEOUT)
    assert world.ends == [5]
