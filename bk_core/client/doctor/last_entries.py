"""Reads the last entry of every CLOSED ledger: the metadata may be there while the entries are on no bookie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bk_core.background import WorkerPool
from bk_core.client.doctor.findings import SHOWN_MAX, Finding
from bk_core.display.words import counted
from bk_core.errors import MetadataFormatError, NoSuchLedgerError, OperationTimeoutError
from bk_core.protocol.log.identity import LOG_KEY

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

AT_ONCE = 8
_CHUNK = 64


def judge_last_entries(client: BookKeeper, closed: Sequence[int], step: Callable[[int, int], None]) -> Iterator[Finding]:
    """Yield the finding about those of the ``closed`` ledgers whose last entry no bookie of its write set has, although all of them answer.

    A few ledgers are looked at at the same time, each by the first and the last entry of its replicas.
    """
    lost: list[int] = []
    count = 0
    listed = False
    pool = WorkerPool("bk-doctor", AT_ONCE)
    try:
        for start in range(0, len(closed), _CHUNK):
            part = closed[start : start + _CHUNK]
            for ledger_id, found in [(one, pool.call(partial(_log_of_lost, client, one))) for one in part]:
                log = found.result()
                if log is not None:
                    count, listed = count + 1, listed or bool(log)
                    lost += [ledger_id] if count <= SHOWN_MAX else []
            step(min(start + _CHUNK, len(closed)), len(closed))
    finally:
        pool.close()
    if count:
        what = f"{counted(count, 'ledger')} of which no bookie has the last entry, although all that should have it answer"
        advice = "bring back a bookie or a disk that has the entries; to give them up, `bk ledger rm ID`"
        advice += " --even-if-listed, and then `bk log repair NAME` where a log lists the ledger" if listed else ""
        yield Finding("last-entry-lost", what, advice, f"bk ledger check {lost[0]} --full", ledgers=tuple(lost), count=count)


def _log_of_lost(client: BookKeeper, ledger_id: int) -> str | None:
    """Return the log that a ledger names whose last entry is lost, "" if it names none; None if the entry is there, or cannot be judged."""
    try:
        report = client.check_ledger(ledger_id)
    except (NoSuchLedgerError, MetadataFormatError, OperationTimeoutError):
        return None
    last = report.metadata.last_entry_id
    asked = [one for fragment in report.fragments for one in fragment.replicas if one.last_stored == last]
    if not asked or not all(last in one.missing for one in asked):
        return None
    return report.metadata.custom.get(LOG_KEY, b"").decode(errors="replace")
