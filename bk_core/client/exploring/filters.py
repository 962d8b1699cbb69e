"""The conditions of a table of ledgers: cheap ones on ids, which spare the reading of metadata, and others on the ledgers themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict

from bk_core.arguments import COUNT, ID, TEXT, is_items
from bk_core.client.exploring.ledger import Ledger
from bk_core.display.ledgers import UNREADABLE
from bk_core.errors import ArgumentTypeError, InvalidArgumentError
from bk_core.near import meant
from bk_core.protocol.ledger.metadata import BookieId, LedgerState

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

STATES = (*LedgerState.__members__, UNREADABLE)


class LedgerFilters(TypedDict, total=False):
    """The conditions that ``BookKeeper.ledgers`` and ``Ledgers.where`` take by name, for type checkers."""

    ids: Iterable[int]
    first_id: int
    last_id: int
    listed_by: str
    state: str | LedgerState | Collection[str | LedgerState]
    bookie: BookieId | Collection[BookieId]
    log: str
    created_after: datetime
    created_before: datetime
    min_length: int
    max_length: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """The ledgers that a table has: all conditions hold for each of them.

    ``sources`` return ids, of which a ledger must be in each; ``tests`` look at the ledger. ``told`` says all of them in words.
    """

    sources: tuple[Callable[[BookKeeper], Iterable[int]], ...] = ()
    first_id: int = 0
    last_id: int | None = None
    tests: tuple[Callable[[Ledger], bool], ...] = ()
    told: tuple[str, ...] = ()

    def with_filters(self, given: Mapping[str, Any], predicate: Callable[[Ledger], bool] | None = None) -> Wanted:
        """Return these conditions and the ``given`` ones. InvalidArgumentError, ArgumentTypeError."""
        found = self
        for name, value in given.items():
            if name not in LedgerFilters.__annotations__:
                hint = meant(name, LedgerFilters.__annotations__, 1) or f"there are {', '.join(LedgerFilters.__annotations__)}"
                raise InvalidArgumentError(f"ledgers are not filtered by {name!r}; {hint}")
            if value is not None:
                found = _MADE[name](found, value)
        if predicate is not None:
            if not callable(predicate):
                raise ArgumentTypeError(f"predicate must be a function of a Ledger, not of type {type(predicate).__name__}")
            found = replace(found, tests=(*found.tests, predicate), told=(*found.told, "a function holds"))
        return found

    def ids(self, client: BookKeeper) -> Iterator[int]:
        """Yield the ids that the cheap conditions leave, ascending. Not all of them need exist, where ids were given."""
        if not self.sources:
            ids: Iterable[int] = client.list_ledgers()
        else:
            left = set(self.sources[0](client))
            for source in self.sources[1:]:
                left &= set(source(client))
            ids = sorted(left)
        for ledger_id in ids:
            if self.last_id is not None and ledger_id > self.last_id:
                return
            if ledger_id >= self.first_id:
                yield ledger_id

    def meets(self, ledger: Ledger) -> bool:
        """Return True if the ledger has what the other conditions want."""
        return all(test(ledger) for test in self.tests)

    @property
    def is_cheap(self) -> bool:
        """True if ids alone decide, and all of them exist."""
        return not self.tests and not self.sources

    def _and(self, told: str, test: Callable[[Ledger], bool]) -> Wanted:
        return replace(self, tests=(*self.tests, test), told=(*self.told, told))


# --- each condition -----------------------------------------------------------------------------------------------------------


def _ids(wanted: Wanted, value: Any) -> Wanted:
    if not is_items(value):
        raise ArgumentTypeError(f"ids must be a collection of numbers, not of type {type(value).__name__}")
    ids = frozenset(value)
    for one in ids:
        ID("ids", one)
    return replace(wanted, sources=(*wanted.sources, lambda client: ids), told=(*wanted.told, f"one of {len(ids):,} ids"))


def _first_id(wanted: Wanted, value: Any) -> Wanted:
    ID("first_id", value)
    return replace(wanted, first_id=max(wanted.first_id, value), told=(*wanted.told, f"id >= {value}"))


def _last_id(wanted: Wanted, value: Any) -> Wanted:
    ID("last_id", value)
    last = value if wanted.last_id is None else min(wanted.last_id, value)
    return replace(wanted, last_id=last, told=(*wanted.told, f"id <= {value}"))


def _listed_by(wanted: Wanted, value: Any) -> Wanted:
    TEXT("listed_by", value)

    def listed(client: BookKeeper) -> set[int]:
        from bk_core.client.log.history import read_log

        return {segment.ledger_id for segment in read_log(client, value).segments()}

    return replace(wanted, sources=(*wanted.sources, listed), told=(*wanted.told, f"listed by log {value!r}"))


def _state(wanted: Wanted, value: Any) -> Wanted:
    given = value if is_items(value) else [value]
    states = {one.name if isinstance(one, LedgerState) else str(one).upper() for one in given}
    for one in sorted(states.difference(STATES)):
        hint = meant(one, STATES, 1) or f"there are {', '.join(STATES)}"
        raise InvalidArgumentError(f"no ledger has the state {one!r}; {hint}")
    return wanted._and(f"state {' or '.join(sorted(states))}", lambda ledger: ledger.state in states)


def _bookie(wanted: Wanted, value: Any) -> Wanted:
    bookies = {value} if isinstance(value, str) else set(value) if is_items(value) else None
    if bookies is None or not all(isinstance(one, str) for one in bookies):
        raise ArgumentTypeError(f"bookie must be the id of a bookie, or a collection of them, not of type {type(value).__name__}")
    return wanted._and(f"on {' or '.join(sorted(bookies))}", lambda ledger: not bookies.isdisjoint(ledger.bookies))


def _log(wanted: Wanted, value: Any) -> Wanted:
    TEXT("log", value)
    return wanted._and(f"made for log {value!r}", lambda ledger: ledger.log == value)


def _created(name: str, after: bool) -> Callable[[Wanted, Any], Wanted]:
    def make(wanted: Wanted, value: Any) -> Wanted:
        if not isinstance(value, datetime):
            raise ArgumentTypeError(f"{name} must be a datetime, not of type {type(value).__name__}")
        if value.tzinfo is None:
            raise InvalidArgumentError(f"{name}={value.isoformat()} names no time zone: give one, for example with tzinfo=UTC")

        def test(ledger: Ledger) -> bool:
            at = ledger.created_at
            return at is not None and (at >= value if after else at < value)

        return wanted._and(f"created {'at or after' if after else 'before'} {value.isoformat(' ', 'seconds')}", test)

    return make


def _length(name: str, most: bool) -> Callable[[Wanted, Any], Wanted]:
    def make(wanted: Wanted, value: Any) -> Wanted:
        COUNT(name, value)

        def test(ledger: Ledger) -> bool:
            length = None if ledger.problem is not None else ledger.length
            return length is not None and (length <= value if most else length >= value)

        return wanted._and(f"length {'<=' if most else '>='} {value:,}", test)

    return make


_MADE: Mapping[str, Callable[[Wanted, Any], Wanted]] = {
    "ids": _ids,
    "first_id": _first_id,
    "last_id": _last_id,
    "listed_by": _listed_by,
    "state": _state,
    "bookie": _bookie,
    "log": _log,
    "created_after": _created("created_after", True),
    "created_before": _created("created_before", False),
    "min_length": _length("min_length", False),
    "max_length": _length("max_length", True),
}
