"""Decisions that every reader of a log takes alike: whether it may go on behind a segment, and what it has lost. Pure.

``LogReaderOrder`` reads one log entry by entry (client/log_reader.py drives it). Spark's source plans batches of many logs before anything
is read, from offsets that Spark keeps: it has no position that moves by reading, reads every range in another process, and repeats
batches. So it has an order of steps of its own (bk_spark/following.py, bk_spark/stream_reader.py), decides for itself when a list is read
again (after a watch, when it is ten seconds old, or when Spark asks), and says in rows what is lost. Whether it may go on and whether
anything is lost it asks here.
"""

from __future__ import annotations

from bk_core.errors import LogDataLossError
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import Segment


def may_move_on(segment: Segment, *, closed: bool) -> bool:
    """LOG-15: the list tells where a closed segment ends. Of a live one only CLOSED does; that another is listed behind it says nothing.

    ``closed``: the ledger of the segment is CLOSED.
    """
    return closed or not segment.live


def readable_end(segment: Segment, *, closed: bool, last_add_confirmed: int) -> int:
    """The last entry of ``segment`` that may be read now; ``last_add_confirmed`` is the end of the ledger if it is ``closed``.

    Committed ranges were acknowledged when they were listed, so no LAC has to know of them, but no ledger may end before them (RD-1).
    """
    if segment.last_entry is None:
        return last_add_confirmed
    return min(segment.last_entry, last_add_confirmed) if closed else segment.last_entry


def is_trimmed(listed: LedgerList, position: Position) -> bool:
    """LOG-13: lists lose prefixes only (LOG-I5), so what is left comes after such a position."""
    return position.seq < listed.trimmed_seq


def rows_lost(trimmed_rows: int, rows_read: int | None) -> int | None:
    """LOG-13: rows that were trimmed and not read by who has read the first ``rows_read`` of the log; None if that is not known."""
    return None if rows_read is None else max(0, trimmed_rows - rows_read)


def trimmed_loss(name: str, listed: LedgerList, position: Position) -> LogDataLossError:
    """LOG-13: segments went that were not read."""
    first = listed.trimmed_seq
    message = (
        f"log {name!r}: segments {position.seq}..{first - 1} were trimmed before this reader had read them "
        f"(it was at entry {position.entry} of segment {position.seq}); the log now starts at segment {first}"
    )
    return LogDataLossError(message, log=name, seq=position.seq)


def recreated_loss(name: str, position: Position | None) -> LogDataLossError:
    """LOG-13: the log is another one."""
    rest = "" if position is None else f", from segment {position.seq} entry {position.entry} on"
    message = f"log {name!r} was deleted and created again: what this reader had not read of the old one{rest}, is lost"
    return LogDataLossError(message, log=name)


def missing_loss(name: str, segment: Segment) -> LogDataLossError:
    """LOG-11: nobody who trims deletes a ledger before it is unlisted."""
    message = f"log {name!r}: ledger {segment.ledger_id} of segment {segment.seq} does not exist; its entries are lost"
    return LogDataLossError(message, log=name, ledger=segment.ledger_id)


def cut_off_loss(name: str, segment: Segment, first: int, last: int, end: int) -> LogDataLossError:
    """RD-1: entries ``first .. last`` were acknowledged and not read, and the ledger was closed at ``end``, before them."""
    message = (
        f"log {name!r}: entries {first}..{last} of ledger {segment.ledger_id} (segment {segment.seq}) are lost: "
        f"the ledger was closed at entry {end}"
    )
    return LogDataLossError(message, log=name, ledger=segment.ledger_id, first_entry=first, last_entry=last)
