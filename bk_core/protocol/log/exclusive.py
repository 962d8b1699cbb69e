"""Decides if an exclusive writer may write a log, from the list and from what is known of transactional writers, before any fencing. Pure.

A log belongs to transactional writers (queries, Spark's sink) as long as its list has a mark of one, or an intent tells of one that is not
known to be gone. Marks of one-shot writes do not count, because such a write is over when it is marked. The entries of an ``arrow`` log are
Arrow record batches, and only a program that makes such batches can append them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bk_core.errors import LogFormatError, LogOfQueriesError, LogWriterAliveError
from bk_core.protocol.log.ledger_list import ONE_SHOT, LedgerList

_NAMED = 3


@dataclass(frozen=True, slots=True)
class Insisted:
    """The things that a writer which wants the log for itself was told to do: fence an exclusive writer, stop queries, append Arrow
    entries. ``gone``: live ledgers whose writers are certainly gone, which it takes over without being told to fence anybody."""

    take_over: bool = True
    take_over_queries: bool = False
    arrow_entries: bool = False
    gone: frozenset[int] = frozenset()


INSIST_NOTHING = Insisted()


def queries_of(listed: LedgerList, writing: Collection[str]) -> tuple[str, ...]:
    """Return the ids of the queries that the log belongs to, sorted: those with a mark, and those of ``writing``, which have ledgers open
    now."""
    marked = {query for query in listed.committed if not query.startswith(ONE_SHOT)}
    return tuple(sorted(marked | {query for query in writing if query}))


def check_exclusive(
    name: str, listed: LedgerList, writing: Collection[str], insisted: Insisted, live: Collection[int], writer: str, alive: bool = False
) -> None:
    """Raise LogOfQueriesError for a log of queries, LogFormatError for one of Arrow entries, and LogWriterAliveError for one with a
    writer, unless insisted (GRD-1).

    ``writing``: query ids of intents whose writers are not known to be gone. ``live``: live ledgers of others that
    are not ``gone``. ``writer``: a name of their writer. ``alive``: it is seen running.
    """
    if listed.properties.entry_format == "arrow" and not insisted.arrow_entries:
        raise LogFormatError(
            f"log {name!r} is for Arrow record batches, as Spark writes them; other bytes would make it unreadable. Append to a log "
            "that was created with entry_format='raw', or say arrow_entries=True if every payload is a record batch of the log's schema",
            log=name,
        )
    queries = queries_of(listed, writing)
    if queries and not insisted.take_over_queries:
        more = f" and {len(queries) - _NAMED} more" if len(queries) > _NAMED else ""
        raise LogOfQueriesError(
            f"log {name!r} is written by queries ({', '.join(queries[:_NAMED])}{more}), which an exclusive writer stops. Insist with "
            "take_over_queries=True (--take-over-queries); of a query that is gone for good forget the mark: bk log marks --forget",
            log=name,
        )
    if live and not insisted.take_over:
        ledgers = ", ".join(map(str, sorted(live)))
        has = "is being written" if alive else "has a writer, or one that died"
        raise LogWriterAliveError(f"log {name!r} {has} ({writer}; ledger {ledgers}); take_over=True (--take-over) fences it", log=name)
