"""Decides what a batch is to its log: the next one, a replay that is not written again, or one behind a batch that the log has lost."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from bk_core.errors import LogDataLossError, LogReplayError
from bk_core.protocol.log.batches import Standing, standing_of
from bk_core.protocol.log.ledger_list import LedgerList
from bk_spark.options.table import Options

_log = logging.getLogger("bk_spark.sink")


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch that is committed.

    ``owner`` is the query or one-shot write that owns its ledgers. ``mark`` (id, batch id) makes it exactly once; with None it is appended
    even if Spark repeats it (exactlyOnce=false). ``number`` is that of a stream's batch, None for other writes.
    """

    owner: str
    mark: tuple[str, int] | None
    overwrite: bool = False
    number: int | None = None

    @property
    def whose(self) -> tuple[str, int] | None:
        """The query, or the write, and the batch that its segments are traced to; None if there is no number."""
        return self.mark if self.mark is not None or self.number is None else (self.owner, self.number)


class BatchOrder:
    """One batch and one log. ``rows`` and ``size`` count what was written for it, the size in payload bytes.

    ``follows`` is True for a log that a stream names: it gets each batch, so one behind the first finds the mark of the one before. Logs
    that rows are routed to may be new at any batch, and a batch that replaces all of a log misses none.
    """

    def __init__(self, options: Options, log: str, batch: Batch, rows: int, size: int) -> None:
        self.follows = bool(batch.number) and options.log is not None and not batch.overwrite
        self._options = options
        self._log = log
        self._batch = batch
        self._rows = rows
        self._size = size
        self._warned = False

    def replayed(self, listed: LedgerList) -> Standing:
        """Return the standing of a batch that the log has. Raises LogReplayError for rows other than those, if the option asks for it
        (BAT-2)."""
        standing = self._standing(listed)
        if standing is not Standing.SAME and self._options.fail_on_different_replay:
            message = f"{self.told_of_replay(listed)}; failOnDifferentReplay=false warns, and goes on without them"
            raise LogReplayError(message, log=self._log)
        return standing

    def _standing(self, listed: LedgerList) -> Standing:
        """Return the standing of the batch. Writes that are not a stream's have no consecutive numbers, and write no rows if they are done
        when planned."""
        if self._batch.mark is None or self._batch.number is None:
            return Standing.SAME
        query_id, batch_id = self._batch.mark
        return standing_of(listed.committed.get(query_id), batch_id, self._rows, self._size)

    def told_of_replay(self, listed: LedgerList) -> str:
        """Return a message with both counts."""
        assert self._batch.mark is not None
        query_id, batch_id = self._batch.mark
        mark = listed.committed[query_id]
        had = "rows that were not counted" if mark.rows is None else f"{mark.rows:,} rows ({mark.bytes:,} bytes)"
        again = f"batch {batch_id} of query {query_id} comes again with {self._rows:,} rows ({self._size:,} bytes); log {self._log!r} has"
        if mark.batch_id == batch_id:
            return f"{again} it with {had}. That stays, and these rows are not written"
        return (
            f"{again} its batches up to {mark.batch_id}, the last one with {had}: the checkpoint was rolled back, or is a copy. Those "
            "stay, and these rows are not written; with a new checkpoint they would be"
        )

    def lacks(self, listed: LedgerList) -> bool:
        """Return True if the batches before this one are not in the log (BAT-1)."""
        return self.follows and self._batch.mark is not None and self._standing(listed) is Standing.BEHIND_LOSS

    def check_follows(self, listed: LedgerList | None) -> None:
        """Raise LogDataLossError if the batches before this one are not in the log, or there is none (None), unless the option says to go
        on (BAT-1). An earlier batch of the query wrote to it, so what it had is gone.
        """
        if not self.follows:
            return
        if listed is None:
            self._lost(f"there is no log {self._log!r}: it was deleted, with what the query had written")
        elif self._batch.mark is not None and self.lacks(listed):
            mark = listed.committed.get(self._batch.mark[0])
            self._lost(
                f"log {self._log!r} has no mark of it: the log was deleted and created again, or the query wrote to another one before, or "
                "the mark was dropped (committedRetention, bk log marks --forget)"
                if mark is None
                else f"log {self._log!r} has its batches up to {mark.batch_id} only: was its list restored from a backup?"
            )

    def _lost(self, what: str) -> None:
        message = f"query {self._batch.owner} is at batch {self._batch.number}, but {what}"
        if self._options.fail_on_data_loss:
            raise LogDataLossError(f"{message}. Nothing was published; failOnDataLoss=false goes on with this batch", log=self._log)
        if not self._warned:
            self._warned = True
            _log.warning("BK-SINK-LOSS %s; going on, as failOnDataLoss=false asks", message, extra={"context": {"log": self._log}})
