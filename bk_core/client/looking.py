"""The calls of a client that look inside ledgers and logs. They neither fence nor write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from bk_core.arguments import COUNT, ID, POSITIVE, SECRET, checked
from bk_core.client.access import digest_type_of
from bk_core.protocol.ledger.metadata import BookieId, DigestName, DigestType, LedgerAccess

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper
    from bk_core.client.diff import ReplicaDiff
    from bk_core.client.log.tracing import BatchTrace, EntryTrace
    from bk_core.client.repair.report import OnProgress
    from bk_core.client.xray import Xray


class LooksInside:
    """A part of ``BookKeeper``: looks at what bookies have, and where it came from."""

    @checked(ledger_id=ID, first=COUNT, last=COUNT, password=SECRET, bytes_per_second=POSITIVE)
    def xray(
        self,
        ledger_id: int,
        *,
        first: int = 0,
        last: int | None = None,
        full: bool = False,
        digest_type: DigestType | DigestName | None = None,
        password: bytes | None = None,
        bytes_per_second: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Xray:
        """Look at each copy of each entry of ledger ``ledger_id``, and return which bookie has which: there, missing, or wrong.

        Nothing is fenced or written, also of a ledger that is being written. The entries ``first`` to ``last`` are looked at, both
        inclusive; without ``last`` up to the end. Bookies that list their entries are asked for the list, and the first and last copy of
        it is read; of other bookies, and with ``full`` of all, every copy is read and its digest checked. ``digest_type`` and
        ``password`` are used where metadata stores none. ``bytes_per_second`` bounds how fast copies are read. ``on_progress`` is called
        with a ``Progress`` now and then.

        Raises NoSuchLedgerError, and OperationTimeoutError when nothing moves any more. A bookie that is gone or does not answer is a
        finding, and no error.

        >>> found = client.xray(7, full=True)
        >>> print([(one.bookie, one.stretch.first, one.stretch.state.name) for one in found.problems])
        """
        from bk_core.client.xray import xray_ledger

        how: dict[str, Any] = {"full": full, "bytes_per_second": bytes_per_second, "on_progress": on_progress}
        return xray_ledger(cast("BookKeeper", self), ledger_id, first=first, last=last, access=_access(digest_type, password), **how)

    @checked(ledger_id=ID, first=COUNT, last=COUNT, password=SECRET)
    def diff(
        self,
        ledger_id: int,
        bookie: BookieId,
        other: BookieId,
        *,
        first: int = 0,
        last: int | None = None,
        digest_type: DigestType | DigestName | None = None,
        password: bytes = b"",
        on_progress: OnProgress | None = None,
    ) -> ReplicaDiff:
        """Compare the copies of ledger ``ledger_id`` on ``bookie`` with those on ``other``, byte by byte, and return what differs.

        The entries ``first`` to ``last`` that both should have are compared, both inclusive; without ``last`` up to the last add
        confirmed. Nothing is fenced or written. ``digest_type`` and ``password`` are as in ``open_ledger``. ``on_progress`` is called with
        a ``Progress`` after each part.

        Raises NoSuchLedgerError; WrongPasswordError; WrongDigestTypeError; InvalidArgumentError for a bookie that the ledger does not
        name; BookieUnavailableError if one of the two gives no answer; and what ``open_ledger`` raises of a ledger that is not CLOSED.

        >>> client.diff(7, "10.0.0.1:3181", "10.0.0.2:3181").differences
        """
        from bk_core.client.diff import diff_replicas

        client = cast("BookKeeper", self)
        with client.open_ledger(ledger_id, password=password, digest_type=digest_type) as handle:
            end = handle.last_add_confirmed if last is None else min(last, handle.last_add_confirmed)
            metadata = handle.metadata
        return diff_replicas(client, ledger_id, metadata, (bookie, other), first, end, on_progress)

    @checked(batch=COUNT)
    def trace_batch(self, log: str, query: str | None = None, batch: int | None = None) -> BatchTrace:
        """Return the segments, ledgers, entries and bookies that hold one batch of a query of Spark in ``log``.

        ``query`` is the id of the query, or its beginning; it may be left out where one query alone writes the log. ``batch`` is the number
        of the batch, by default the last. Bookies are not asked.

        Raises NoSuchLogError; NoSuchBatchError for what the log does not know; MetadataFormatError.

        >>> client.trace_batch("flights", batch=17).bookies
        """
        from bk_core.client.log.tracing import trace_batch

        return trace_batch(cast("BookKeeper", self), log, query, batch)

    @checked(ledger_id=ID, entry_id=ID)
    def trace_entry(self, ledger_id: int, entry_id: int) -> EntryTrace:
        """Return the log, segment, query and batch of entry ``entry_id`` of ledger ``ledger_id``, as far as they are known.

        Bookies are not asked.

        Raises NoSuchLedgerError; InvalidArgumentError for an entry after the end of the ledger; MetadataFormatError.

        >>> client.trace_entry(42, 7).batch_id
        """
        from bk_core.client.log.tracing import trace_entry

        return trace_entry(cast("BookKeeper", self), ledger_id, entry_id)


def _access(digest_type: DigestType | DigestName | None, password: bytes | None) -> LedgerAccess:
    return LedgerAccess(None if digest_type is None else digest_type_of(digest_type), password)
