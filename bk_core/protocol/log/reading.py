"""The decisions that all readers of a log share: if they may go on behind a segment, and what they have lost. Pure.

``LogReaderOrder`` reads one log entry by entry (client/log/reader.py drives it). Spark's source plans batches of many logs before anything
is read, from offsets that Spark keeps: it has no position that moves by reading, reads every range in another process, and repeats batches.
So it has its own order of steps (bk_spark/source/following.py, bk_spark/source/stream.py), decides itself when a list is read again (after
a watch, when it is ten seconds old, or when Spark asks), and reports losses in rows. It asks here if it may go on and if anything is lost.
"""

from __future__ import annotations

from bk_core.errors import LogDataLossError
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import Segment


def may_move_on(segment: Segment, *, closed: bool) -> bool:
    """Return True if a reader may go on behind the segment. The list tells where a closed segment ends. A live one must be CLOSED; that
    another one is listed behind it proves nothing (LOG-15).

    ``closed``: the ledger of the segment is CLOSED.
    """
    return closed or not segment.live


def readable_end(segment: Segment, *, closed: bool, last_add_confirmed: int) -> int:
    """Return the last entry of ``segment`` that may be read now; ``last_add_confirmed`` is the end of the ledger if it is ``closed``.

    Committed ranges were acknowledged when they were listed, so their LAC need not be known; but no ledger may end before them (RD-1).
    """
    if segment.last_entry_id is None:
        return last_add_confirmed
    return min(segment.last_entry_id, last_add_confirmed) if closed else segment.last_entry_id


def is_trimmed(listed: LedgerList, position: Position) -> bool:
    """Return True if the position was trimmed. Lists lose prefixes only (LOG-I5), so the rest of the log comes after such a position
    (LOG-13)."""
    return position.seq < listed.trimmed_seq


def rows_lost(trimmed_rows: int, rows_read: int | None) -> int | None:
    """Return the trimmed rows that a reader of the first ``rows_read`` rows of the log has not read; None if the number is not known
    (LOG-13)."""
    return None if rows_read is None else max(0, trimmed_rows - rows_read)


def trimmed_loss(name: str, listed: LedgerList, position: Position) -> LogDataLossError:
    """Return the error for trimmed segments that were not read (LOG-13)."""
    first = listed.trimmed_seq
    message = (
        f"log {name!r}: segments {position.seq}..{first - 1} were trimmed before this reader had read them "
        f"(it was at entry {position.entry} of segment {position.seq}); the log now starts at segment {first}"
    )
    return LogDataLossError(message, log=name, seq=position.seq)


def recreated_loss(name: str, position: Position | None) -> LogDataLossError:
    """Return the error for a log that was deleted and created again (LOG-13)."""
    rest = "" if position is None else f", from segment {position.seq} entry {position.entry} on"
    message = f"log {name!r} was deleted and created again: what this reader had not read of the old one{rest}, is lost"
    return LogDataLossError(message, log=name)


def missing_loss(name: str, segment: Segment) -> LogDataLossError:
    """Return the error for a listed ledger that is missing. A trim never deletes a ledger before it is unlisted (LOG-11)."""
    message = f"log {name!r}: ledger {segment.ledger_id} of segment {segment.seq} does not exist; its entries are lost"
    return LogDataLossError(message, log=name, ledger=segment.ledger_id)


def cut_off_loss(name: str, segment: Segment, first: int, last: int, end: int) -> LogDataLossError:
    """Return the error for entries ``first .. last`` that were acknowledged and not read: the ledger was closed at ``end``, before them
    (RD-1)."""
    message = (
        f"log {name!r}: entries {first}..{last} of ledger {segment.ledger_id} (segment {segment.seq}) are lost: "
        f"the ledger was closed at entry {end}"
    )
    return LogDataLossError(message, log=name, ledger=segment.ledger_id, first_entry_id=first, last_entry_id=last)
