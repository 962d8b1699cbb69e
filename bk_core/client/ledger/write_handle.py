"""The writer's handle of one ledger: blocking calls and futures over the reactor. It may be used from several threads."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from bk_core.arguments import checked, whole
from bk_core.client.ledger.add_window import Batch
from bk_core.client.ledger.appending import Appending
from bk_core.client.operations import LeftOpen, must_not_block, wait
from bk_core.client.payloads import Buffer, Payloads
from bk_core.client.session import Session
from bk_core.errors import BkError, ClientClosedError, InvalidArgumentError, LedgerFencedError, LeftOpenError, OperationTimeoutError
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.write.options import WriterOptions
from bk_core.protocol.ledger.write.writer import ENTRY_ID_MAX, WriterState
from bk_core.threads import SafeFuture, is_ending


class WriteHandle(Appending):
    """The writer of one ledger. Appends are acknowledged in order.

    After an error the outcome of what was pending is unknown until the ledger is CLOSED; then an entry exists if it is not above the
    last one. If this handle closed the ledger, an entry that failed does not exist (WR-13).

    A handle that nobody refers to any more stops once what is pending has its outcome, with a ResourceWarning; its ledger stays OPEN.
    """

    def __init__(
        self, session: Session, ledger_id: int, metadata: LedgerMetadata, version: int, options: WriterOptions | None = None
    ) -> None:
        self.tells_when_dropped = True  # False if another object tells it, such as the writer of a log
        super().__init__(session, ledger_id, metadata, version, options)
        self._left_open = LeftOpen(self._leave)
        session.close_with(self._left_open)

    @property
    def metadata(self) -> LedgerMetadata:
        """The newest metadata of the ledger that this writer knows."""
        return self._machine.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The id of the last entry up to which all are acknowledged; -1 if none is."""
        return self._machine.last_add_confirmed

    @property
    def last_add_fully_replicated(self) -> int:
        """The LAFR: the last entry that is, like all before it, on every bookie of its write set (G-1)."""
        return self._machine.last_add_fully_replicated

    @property
    def length(self) -> int:
        """The payload bytes of all entries handed in so far."""
        return self._machine.length

    def append(self, payload: Buffer, *, entry_id: int | None = None) -> int:
        """Append ``payload`` as one entry, wait for its acknowledgement, and return its id. ``entry_id`` is as in ``append_run_future``.

        Raises what ``append_run_future`` raises, and the error of an append that failed.
        """
        return self._appended_in_time(lambda: self.append_future(payload, entry_id=entry_id), entry_id)

    def append_future(self, payload: Buffer, *, entry_id: int | None = None) -> Future[int]:
        """Append ``payload`` as one entry, and return a future, which has its id once it is acknowledged. ``entry_id`` is as in
        ``append_run_future``.

        Blocks and raises as ``append_run_future`` does.
        """
        return self._append(self._one(payload, entry_id), entry_id)

    def append_many(self, payloads: Sequence[Buffer], *, entry_id: int | None = None) -> int:
        """Append ``payloads``, bytes each, as one run, wait for its acknowledgement, and return the id of the last one. ``entry_id`` is as
        in ``append_run_future``.

        Raises InvalidArgumentError if there are none, ArgumentTypeError if they are no bytes, what ``append_run_future`` raises, and the
        error of an append that failed.
        """
        return self._appended_in_time(lambda: self.append_many_future(payloads, entry_id=entry_id), entry_id)

    def append_many_future(self, payloads: Sequence[Buffer], *, entry_id: int | None = None) -> Future[int]:
        """Append ``payloads``, bytes each, as one run, and return a future, which has the last one's id. ``entry_id`` is as in
        ``append_run_future``.

        Blocks and raises as ``append_run_future`` does. Raises InvalidArgumentError if there are none, ArgumentTypeError if they are no
        bytes.
        """
        return self._append(self._many(payloads, entry_id), entry_id)

    def append_run(self, payloads: Buffer, offsets: Buffer, *, entry_id: int | None = None) -> int:
        """Append a run, wait for its acknowledgement, and return the id of its last entry. ``payloads``, ``offsets`` and ``entry_id`` are
        as in ``append_run_future``.

        Raises what ``append_run_future`` raises, and the error of an append that failed.
        """
        return self._appended_in_time(lambda: self.append_run_future(payloads, offsets, entry_id=entry_id), entry_id)

    def append_run_future(self, payloads: Buffer, offsets: Buffer, *, entry_id: int | None = None) -> Future[int]:
        """Append ``len(offsets) - 1`` entries, and return a future, which has the id of the last one once all are acknowledged.

        Entry i is ``payloads[offsets[i]:offsets[i + 1]]``; ``offsets`` are int64. ``payloads`` that are read-only are not copied: leave
        them alone until then. ``entry_id`` is the id of the first entry of the run in a ledger created with ``caller_ids``, and must be
        left out in others. Ids may come in any order, each once, or the future fails with DuplicateEntryIdError; an acknowledgement waits
        for all lower ids. The call blocks while more than ``pending_bytes_max`` are in flight, or while another thread is in the middle of
        a long run.

        Raises InvalidArgumentError for a payload over the frame limit, before anything is sent; OperationTimeoutError when there was no
        turn and no room within ``operation_timeout_s`` of the call, or no room for the next piece of a long run within that of the last;
        BlockingCallError in a completion callback that would have to wait, and, before anything is sent, in a handler of a signal (or a
        finalizer) that would have to wait for what it interrupts.

        Rule: WR-2.
        """
        return self._append(self._run(payloads, offsets, entry_id), entry_id)

    def _one(self, payload: Buffer, entry_id: int | None) -> Payloads:
        self._session.check()
        return self._numbered(self._payloads.one(payload), entry_id)

    def _many(self, payloads: Sequence[Buffer], entry_id: int | None) -> Payloads:
        self._session.check()
        return self._numbered(self._payloads.many(payloads), entry_id)

    def _run(self, payloads: Buffer, offsets: Buffer, entry_id: int | None) -> Payloads:
        self._session.check()
        return self._numbered(self._payloads.run(payloads, offsets), entry_id)

    def _numbered(self, run: Payloads, entry_id: int | None) -> Payloads:
        """Check that ``entry_id`` is given if the caller chooses ids, and only then, and is a possible id for ``run``. Return the run.

        Rule: WR-2.
        """
        if (entry_id is not None) != self._options.caller_ids:
            how = (
                "needs entry_id: it was created with caller_ids" if self._options.caller_ids else "numbers its entries itself: no entry_id"
            )
            raise InvalidArgumentError(f"ledger {self.ledger_id} {how}", ledger=self.ledger_id)
        if entry_id is not None:
            whole(0, ENTRY_ID_MAX - run.entries + 1)("entry_id", entry_id)
        return run

    def _appended_in_time(self, append: Callable[[], Future[int]], entry_id: int | None) -> int:
        """Append and wait for the outcome, within one timeout from now."""
        what = f"append to ledger {self.ledger_id}"
        if entry_id is not None:
            what = f"append of entry {entry_id} to ledger {self.ledger_id} (acknowledged once all lower ids are)"
        must_not_block(what)
        since_s = time.monotonic()
        return int(wait(append(), self._session.config.operation_timeout_s, what, since_s=since_s))

    def flush(self) -> None:
        """Wait until everything appended so far is acknowledged, whatever others append meanwhile.

        Raises the error that ended this handle, or that of an append that failed if nobody has seen it; OperationTimeoutError after
        ``operation_timeout_s``.
        """
        self._await_answers()
        self.raise_failure()

    def _await_answers(self) -> None:
        self._session.check()
        self._nudge()
        if not self._share.batch.is_done:
            must_not_block(f"flushing ledger {self.ledger_id}")
            until_now = self._adds.mark(self._share, Batch())
            if not self._answered.until(lambda: until_now.is_done, self._session.config.operation_timeout_s):
                raise OperationTimeoutError(self._unacknowledged())
            until_now.before = None

    def raise_failure(self) -> None:
        """Raise the error that ended this handle, or that of an append that failed if nobody has seen it. It waits for nothing."""
        self._raise_end()
        lost = self._losses.take()
        if lost is not None:
            raise lost

    def _raise_end(self) -> None:
        if self._machine.error is not None:
            self._losses.told(self._machine.error)
            raise self._machine.error

    def force(self) -> int:
        """Make everything acknowledged so far durable on all bookies of the ensemble, and return the new LAC (WR-17, ``deferred_sync``).

        In a ledger without ``deferred_sync`` acknowledged entries are durable already: this then sends nothing and returns the LAC.
        """
        return int(wait(self.force_future(), self._session.config.operation_timeout_s, f"forcing ledger {self.ledger_id}"))

    def force_future(self) -> Future[int]:
        """Do the same as ``force``, and return a future at once."""
        self._session.check()
        future: Future[int] = SafeFuture()
        self._check_open()
        self._hand_in(lambda token: self._machine.force(token, self._session.reactor.now_ns()), future)
        return future

    @checked()
    def close(self, *, forced: bool = False) -> LedgerMetadata:
        """Wait for what was appended (and with ``deferred_sync`` force it), close the ledger at its last entry, and return its metadata.

        Closing a closed ledger has no effect, nor has closing in a forked child. ``forced`` waits for nothing and gives up what is not
        acknowledged, with ``deferred_sync`` also what was not forced. A ledger with guaranteed write quorum is closed once every entry is
        on all of its write set, which takes a bookie for every position; ``abandon`` gives up such a close and leaves the ledger to a
        recovery.

        Raises LedgerFencedError, at every call, for a ledger that another client fenced or closed elsewhere; LeftOpenError, at every call,
        if its client was closed before: what was acknowledged is safe, and a recovery closes the ledger. Raises OperationTimeoutError
        when closing lasts longer than ``operation_timeout_s``; the close goes on then. The first call raises the error of appends that
        failed, after it has closed the ledger without them, unless that error was raised already: ``result()`` or ``exception()`` of one of
        their futures was called, or a call of this handle raised it. A completion callback that does not look at its future has
        not seen it. After a call that raised, the attribute ``metadata`` says how the ledger ended.

        Rules: G-10, G-11.
        """
        if not self._session.home.is_here:
            return self.metadata
        must_not_block(f"closing ledger {self.ledger_id}")
        if not self._closed and not forced and self._machine.error is None:
            self._await_answers()
            self._raise_end()
            if self._options.deferred_sync:
                self.force()
        # A ledger that is CLOSED needs nobody, so closing again has no effect once the client is closed, too.
        metadata = self.metadata if self._machine.state is WriterState.CLOSED else self._close(forced)
        if forced:
            self._losses.forgive()
        lost = self._losses.take()
        if lost is not None:
            raise lost
        return metadata

    def _close(self, forced: bool = False) -> LedgerMetadata:
        # After a timeout or an interrupt it is still being tried (CL-5: a later call waits for the same result).
        metadata = wait(self._begin_close(forced), self._session.config.operation_timeout_s, f"closing ledger {self.ledger_id}")
        assert isinstance(metadata, LedgerMetadata)
        return metadata

    def _begin_close(self, forced: bool) -> Future[LedgerMetadata]:
        try:
            self._session.check()
        except ClientClosedError as error:
            if isinstance(self._machine.error, LedgerFencedError):  # its closing is somebody else's
                raise
            how = f"what was acknowledged is safe, and recover_ledger({self.ledger_id}) closes it"
            told = f"{error.args[0]}, before the writer of ledger {self.ledger_id}, which stays open: {how}"
            raise LeftOpenError(told, ledger=self.ledger_id) from None
        future: Future[LedgerMetadata] = SafeFuture()
        future.add_done_callback(lambda _: self._session.reactor.post(self._end))
        self._closed = True
        self._hand_in(lambda token: self._machine.close(token, self._session.reactor.now_ns(), forced=forced), future)
        return future

    def abandon(self) -> None:
        """Stop without closing the ledger, which somebody will have to recover. Entries in flight fail, and may or may not be in it."""
        if not self._session.home.is_here:
            return
        self._closed = True

        def stop() -> None:
            try:
                self._take_in()
            finally:
                self._driver.step(self._machine.abandon, self._session.reactor.now_ns())
                self._end()

        self._session.reactor.post(stop)

    def _leave(self) -> None:
        if self._machine.state is WriterState.OPEN:
            self.abandon()

    def __del__(self) -> None:
        """Stop a handle that was dropped. Nothing is pending, because that would refer to the handle."""
        if getattr(self, "_closed", True) or is_ending() or self._session.is_over or not self._session.home.is_here:
            return
        message = f"unclosed {self!r}"
        self.abandon()
        if self.tells_when_dropped:
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the ledger if there was no error; this raises the error of appends that failed if nobody has seen it."""
        if kind is None:
            self.close()
            return
        if not self._session.home.is_here:
            return
        try:
            self._close()
        except BkError:
            pass  # the error on its way out is the one to show

    def __repr__(self) -> str:
        return f"<WriteHandle ledger {self.ledger_id} {self._machine.state.name} last add confirmed {self.last_add_confirmed}>"
