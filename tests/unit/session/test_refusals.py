"""The reason why bookies do not admit this client is told where an operation fails for it, and only there (LINK-10)."""

from __future__ import annotations

from bk_core.errors import BookieAuthError, BookieHostNameError, BookieTlsError, NotEnoughBookiesError, OperationTimeoutError, ReadError
from bk_core.protocol.session.refusals import Refusals


def test_a_refusal_explains_until_it_is_over() -> None:
    """LINK-10: the class is that of the refusal, and the text of both is told."""
    refusals = Refusals()
    lacks = NotEnoughBookiesError("no bookie is left", ledger=7)
    assert refusals.explained(lacks) is None
    assert refusals.happened("a", BookieTlsError("a has a bad certificate"))
    told = refusals.explained(lacks)
    assert type(told) is BookieTlsError and told.args[0] == "no bookie is left; a has a bad certificate" and told.context == {"ledger": 7}
    refusals.over("b")
    assert refusals.explained(lacks) is not None
    refusals.over("a")
    assert refusals.explained(lacks) is None


def test_the_same_reason_is_news_once() -> None:
    refusals = Refusals()
    assert refusals.happened("a", BookieTlsError("one")) and not refusals.happened("a", BookieTlsError("one"))
    assert refusals.happened("a", BookieTlsError("two")) and refusals.happened("b", BookieTlsError("two"))
    refusals.over("a")
    assert refusals.happened("a", BookieTlsError("two"))


def test_of_several_reasons_all_are_told_and_the_latest_gives_the_class() -> None:
    refusals = Refusals()
    for bookie, error in (("a", BookieAuthError("x")), ("b", BookieHostNameError("y")), ("c", BookieHostNameError("y"))):
        refusals.happened(bookie, error)
    told = refusals.explained(NotEnoughBookiesError("none"))
    assert type(told) is BookieHostNameError and told.args[0] == "none; x; y"
    refusals.happened("a", BookieAuthError("x"))
    assert type(refusals.explained(NotEnoughBookiesError("none"))) is BookieAuthError


def test_a_read_that_failed_for_another_reason_is_left_alone() -> None:
    refusals = Refusals()
    refusals.happened("a", BookieTlsError("x"))
    assert refusals.explained(ReadError("a bad copy", status="DIGEST")) is None
    assert refusals.explained(ReadError("not admitted", status="NOT_ADMITTED")) is not None
    assert refusals.explained(OperationTimeoutError("slow")) is None  # a refusal comes at once


def test_of_bookies_that_are_gone_no_refusal_is_left() -> None:
    refusals = Refusals()
    for bookie in "abc":
        refusals.happened(bookie, BookieTlsError(bookie))
    refusals.over("a", "c", "d")
    told = refusals.explained(NotEnoughBookiesError("none"))
    assert told is not None and told.args[0] == "none; b"
