"""The end of a write: one compare-and-set per log publishes all segments of a batch and its mark, or nothing. An abort cleans up.

The ledger list alone decides about a batch. Spark commits a batch again after a crash, and aborts batches whose commit succeeded but whose
answer was lost (spark-connectors.md 5.9), so both look there first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bk_core.client.identity import recover_own
from bk_core.client.log.history import history_of, update_ledger_list
from bk_core.client.log.intents import DATA, forget_intent, intents_of
from bk_core.client.log.janitor import check_listable
from bk_core.client.log.list_store import agree, read_versioned, store_now_ms
from bk_core.client.log.lists import create_log
from bk_core.errors import BkError, LogDataLossError, LogError, LogSchemaError, NoSuchLedgerError, NoSuchLogError
from bk_core.protocol.log.batches import Standing
from bk_core.protocol.log.ledger_list import ONE_SHOT, LedgerList
from bk_spark.clients import client_for
from bk_spark.options.table import Options
from bk_spark.sink.batch_order import Batch, BatchOrder
from bk_spark.sink.intents import claim
from bk_spark.sink.messages import CommitMessage, LogPart, parts_by_log
from bk_spark.sink.plan import check_fixed, check_own_password, same_kind, wanted_properties
from bk_spark.sink.schema import extends
from bk_spark.sink.sweep import delete_condemned, delete_unlisted, sweep

_log = logging.getLogger("bk_spark.sink")
ONE_SHOTS_KEPT = 64
ONE_SHOT_AGE_MS = 10 * 60_000


def commit(options: Options, messages: Sequence[CommitMessage], batch: Batch) -> None:
    """Publish log by log, in the order of their names. Each log is exactly once by itself; nothing is atomic across logs.

    With several logs all of them are judged before the first is changed, so that foreseeable failures publish nothing.
    """
    client = client_for(options.uri, options.protocol)
    commits = [_LogCommit(client, options, log, parts, batch) for log, parts in parts_by_log(messages).items()]
    if len(commits) > 1:
        for one in commits:
            one.judge()
    for one in commits:
        one.publish()
    for one in commits:
        one.tidy_up()


class _LogCommit:
    """The commit of one batch to one log. ``parts`` come in the order of their partitions."""

    def __init__(self, client: Any, options: Options, log: str, parts: Sequence[LogPart], batch: Batch) -> None:
        self.log = log
        self._client = client
        self._options = options
        self._parts = parts
        self._ranges = [r for part in parts for r in part.ranges]
        self._batch = batch
        self._log_ids = {part.log_id for part in parts if part.log_id}
        self._rows, self._bytes = sum(r.rows for r in self._ranges), sum(r.bytes for r in self._ranges)
        self._order = BatchOrder(options, log, batch, self._rows, self._bytes)
        self._at_ms = 0
        self._replayed: Standing | None = None
        self._listed: LedgerList | None = None
        self._freed: tuple[int, ...] = ()
        self._agreed = False

    def judge(self) -> None:
        """Raise what ``publish`` would raise now, without changing anything or stopping anybody."""

        def look(listed: LedgerList) -> LedgerList:
            if not self._is_done(listed):
                self._check(listed)
                if self._options.overwrite_schema:  # nothing that is there needs to fit
                    return listed
                for schema, base in {(part.schema, part.base) for part in self._parts}:
                    self._with_schema(listed, schema, base)
            return listed

        try:
            update_ledger_list(self._client, self.log, look, read=self._read)
        except NoSuchLogError:
            if self._log_ids or not self._options.create_logs:
                raise

    def publish(self) -> None:
        started = time.monotonic()
        self._at_ms = store_now_ms(self._client)
        if not self._log_ids and self._options.create_logs:
            self._check_still_there()
            self._check_listable("")  # a write that is refused makes no log
            create_log(self._client, self.log, wanted_properties(self._options), exist_ok=True)
        try:
            self._listed = update_ledger_list(self._client, self.log, self._change, read=self._read)
        except NoSuchLogError:
            if not self._order.follows:
                raise
            raise LogDataLossError(f"log {self.log!r} was deleted during the write; nothing was published", log=self.log) from None
        query_id, batch_id = self._batch.mark or ("", -1)
        facts = {
            "log": self.log,
            "query": query_id,
            "batch": batch_id,
            "rows": self._rows,
            "bytes": self._bytes,
            "segments": len(self._ranges),
            "ledgers": len({r.ledger_id for r in self._ranges}),
            "ms": round((time.monotonic() - started) * 1000),
        }
        if self._replayed is Standing.SAME:
            _log.info("BK-SINK-REPLAY the batch was committed before; nothing is published again", extra={"context": facts})
        elif self._replayed is not None:
            told = self._order.told_of_replay(self._listed)
            _log.warning("BK-SINK-REPLAY %s; option failOnDifferentReplay=true makes this an error", told, extra={"context": facts})
        else:
            _log.info("BK-SINK-COMMIT published %d rows", facts["rows"], extra={"context": facts})

    def _check_still_there(self) -> None:
        """Check, before a log is made, that it is not missing: it may have been there for the batches before this one."""
        if self._order.follows:
            try:
                update_ledger_list(self._client, self.log, lambda current: current, read=self._read)
            except NoSuchLogError:
                self._order.check_follows(None)

    def tidy_up(self) -> None:
        """Clean up without failing the commit; the next janitor finds what is left undone."""
        try:
            assert self._listed is not None
            listed = {segment.ledger_id for segment in self._listed.segments}
            for ledger_id in {i for part in self._parts for i in part.closed} & listed:
                forget_intent(self._client, self.log, ledger_id)  # it is closed and listed, so nobody needs to look after it
            condemned = [i for i in self._freed if i in self._listed.condemned]  # by the change that was applied, not by one that lost
            delete_condemned(self._client, self.log, condemned, self._options.secret, self._listed.adopted)
            sweep(self._client, self._options, self.log, self._batch.owner)
        except BkError as error:
            _log.warning("BK-SINK-TIDY left for the next janitor: %s", error, extra={"context": {"log": self.log}})

    # --- the list -----------------------------------------------------------------------------------------------------

    def _read(self, client: Any, name: str) -> tuple[LedgerList, int]:
        """Read the list. One that lacks what the batch knows of is read again behind an agreement of the metadata store's servers, once:
        who planned the batch, and who committed the one before, may have had other sessions."""
        try:
            listed, version = read_versioned(client, name)
            if self._agreed or not self._lacks(listed):
                return listed, version
        except NoSuchLogError:
            if self._agreed or not (self._log_ids or self._order.follows):
                raise
        agree(client)
        self._agreed = True
        return read_versioned(client, name)

    def _lacks(self, listed: LedgerList) -> bool:
        """Return True for a list of another log than the batch was written for, or without the batches before, or without columns that the
        log had when the batch was planned."""
        known = {"", *listed.schemas}
        return (
            bool(self._log_ids - {listed.log_id})
            or self._order.lacks(listed)
            or any(part.schema not in known and part.base not in known for part in self._parts)
        )

    # --- the change, which is run again on every newer list -------------------------------------------------------------

    def _change(self, listed: LedgerList) -> LedgerList:
        self._replayed = self._order.replayed(listed) if self._is_done(listed) else None
        if self._replayed is not None:
            return listed
        self._check(listed)
        changed = listed
        if self._options.take_over and (self._ranges or self._batch.overwrite):
            changed = self._closed_live(changed)
        if self._batch.overwrite:
            changed = self._emptied(changed)
        first_seq = changed.next_seq
        for part in self._parts:
            changed = self._appended(changed, part)
        if (whose := self._batch.whose) is not None:
            changed = changed.note_batch(*whose, first_seq)
        if self._batch.mark is not None:
            marked = changed.mark_committed(*self._batch.mark, self._at_ms, self._rows, self._bytes)
            changed = _without_old_one_shots(marked, self._at_ms)
        self._check_listable(listed.log_id)
        return changed

    def _check_listable(self, log_id: str) -> None:
        check_listable(self._client, self.log, log_id, sorted({r.ledger_id for r in self._ranges}))

    def _is_done(self, listed: LedgerList) -> bool:
        return self._batch.mark is not None and not self._log_ids - {listed.log_id} and listed.is_committed(*self._batch.mark)

    def _check(self, listed: LedgerList) -> None:
        if self._log_ids - {listed.log_id}:
            raise LogDataLossError(f"log {self.log!r} was deleted and created again during the write; nothing was published", log=self.log)
        self._order.check_follows(listed)
        check_fixed(self._options, self.log, listed.properties)
        check_own_password(self._client, self._options, self.log, listed)  # another first write may have come in between
        raw = listed.properties.entry_format == "raw"
        planned_new = any(part.ranges and not part.log_id for part in self._parts)
        if any(raw == bool(part.schema) for part in self._parts) or (planned_new and not same_kind(self._options, listed.properties)):
            raise LogError(
                f"another writer created log {self.log!r} otherwise during this write; nothing was published. Run the write again",
                log=self.log,
            )

    def _closed_live(self, listed: LedgerList) -> LedgerList:
        """Fence and recover the ledgers of an exclusive writer, and list what they hold (``takeOver``, LOG-1 (2))."""
        password = self._options.secret
        for segment in listed.live_segments:
            try:
                with recover_own(self._client, self.log, listed.log_id, segment.ledger_id, password, listed.adopted) as ended:
                    last, size = ended.last_add_confirmed, ended.length
            except NoSuchLedgerError:
                raise LogDataLossError(f"log {self.log!r} lists ledger {segment.ledger_id}, which does not exist", log=self.log) from None
            listed = listed.close_live(segment.ledger_id, last, size, self._at_ms)
        return listed

    def _emptied(self, listed: LedgerList) -> LedgerList:
        """Trim everything. A ledger with an intent may still be written to, perhaps by another query, so it is left to the janitor."""
        watched = {*intents_of(self._client, self.log), *(r.ledger_id for r in self._ranges)}
        load = history_of(self._client, self.log, listed.log_id)
        changed, self._freed = listed.trim(listed.next_seq, load, watched)
        return changed

    def _appended(self, listed: LedgerList, part: LogPart) -> LedgerList:
        listed = self._with_schema(listed, part.schema, part.base)
        return listed.append_segments(part.ranges, self._at_ms, schema=part.schema or None)

    def _with_schema(self, listed: LedgerList, schema: str, base: str) -> LedgerList:
        """Make the schema that the rows were written with the log's, if it is new. The plan checked it against ``base``, the log's schema
        at that time.

        Raises LogSchemaError if the log has been given columns since that the rows would add to without ``mergeSchema``, or if its columns
        were replaced (LOG-19), because dropped columns must not come back with these rows.
        """
        current = listed.properties.schema
        if not schema or schema == current:
            return listed
        if self._options.overwrite_schema:
            return listed.replace_schema(schema)
        if schema in listed.schemas and extends(schema, current):
            return listed
        replaced = base != "" and base not in listed.schemas
        uninvited = current != "" and not self._options.merge_schema
        if replaced or uninvited or not extends(current, schema):
            raise LogSchemaError(
                f"another writer gave log {self.log!r} other columns during this write; nothing was published. Run the write again",
                log=self.log,
            )
        return listed.evolve_schema(schema)


def _without_old_one_shots(listed: LedgerList, at_ms: int) -> LedgerList:
    """Drop old one-shot marks. Such a mark serves its own commit and abort, minutes at most; a ``df.write`` per second would fill the list
    with them."""
    shots = sorted((m.at_ms, q) for q, m in listed.committed.items() if q.startswith(ONE_SHOT))
    old = {q for ms, q in shots[: max(0, len(shots) - ONE_SHOTS_KEPT)] if at_ms - ms > ONE_SHOT_AGE_MS}
    return replace(listed, committed={q: m for q, m in listed.committed.items() if q not in old}) if old else listed


def abort(options: Options, messages: Sequence[CommitMessage], batch: Batch) -> None:
    """Clean up after a batch that failed. A batch that is committed is not touched.

    The workers of a stream go on with their ledgers, so those are left to the janitor. Tasks of a failed one-shot write may still be
    running, and Spark does not tell which, so this goes by intents. The order makes it safe: a ledger is claimed (nobody else goes on with
    it), condemned in the list (no commit, however late, can name it), and only then fenced (a zombie fails), deleted, and forgotten. What a
    zombie creates after that is left to the janitor.
    """
    client = client_for(options.uri, options.protocol)
    logs = {part.log for message in messages for part in message.parts} | ({options.log} if options.log is not None else set())
    for log in sorted(logs):
        facts = {"log": log, "query": batch.mark[0] if batch.mark else "", "batch": batch.mark[1] if batch.mark else -1}
        deleted: Sequence[int] = ()
        if _is_committed(client, log, batch):
            _log.warning("BK-SINK-ABORT of a batch that is committed; it stays", extra={"context": facts})
            continue
        if batch.owner.startswith(ONE_SHOT):
            deleted = _delete_ledgers_of(client, options, log, batch)
        _log.warning("BK-SINK-ABORT nothing of the batch is visible", extra={"context": {**facts, "deleted": len(deleted)}})


def _is_committed(client: Any, log: str, batch: Batch) -> bool:
    try:
        listed = update_ledger_list(client, log, lambda current: current)
    except NoSuchLogError:
        return False
    return batch.mark is not None and listed.is_committed(*batch.mark)


def _delete_ledgers_of(client: Any, options: Options, log: str, batch: Batch) -> Sequence[int]:
    mine = [i.ledger_id for i in intents_of(client, log).values() if i.query_id == batch.owner and i.purpose == DATA]
    claimed = [ledger_id for ledger_id in mine if claim(client, log, ledger_id, batch.owner)]
    return delete_unlisted(client, log, claimed, options.secret, lambda listed: batch.mark is not None and listed.is_committed(*batch.mark))
