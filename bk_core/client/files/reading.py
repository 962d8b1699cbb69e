"""Reads the bytes of files from the data ledgers that hold them.

A read fences nobody. It reads up to the last entry that a file names, also where the ledger's last add confirmed is lower. Every entry
that a file names was acknowledged before the file was made.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from bk_core.client.log.list_store import LogClient
from bk_core.errors import ClientClosedError, FileDataLostError, InvalidArgumentError, NoSuchEntryError, NoSuchLedgerError
from bk_core.protocol.files.content import Content, Extent
from bk_core.threads import Home, holds_lock

OPEN_MAX = 8  # data ledgers that stay open between reads
INLINE_CHUNK = 1 << 20
LOOKS_MAX = 5  # so often one reading of a file looks for its content


def present_chunks(content_of: Callable[[], Content], chunks_of: Callable[[Content], Iterable[bytes]]) -> Iterator[bytes]:
    """The chunks of a file, by what ``chunks_of`` reads of one content of it. The file is looked for at once by ``content_of``, and again
    if its bytes are gone before the first chunk was read, because it may have been replaced. FileDataLostError if it was not, and if a
    later chunk is gone."""
    return _present_chunks(content_of(), content_of, chunks_of)


def _present_chunks(
    content: Content, content_of: Callable[[], Content], chunks_of: Callable[[Content], Iterable[bytes]]
) -> Iterator[bytes]:
    for left in reversed(range(LOOKS_MAX)):
        try:
            chunks = iter(chunks_of(content))
            first = next(chunks, None)
        except FileDataLostError:
            before, content = content, content_of() if left else content
            if content == before:
                raise
            continue
        if first is not None:
            yield first
            yield from chunks
        return


class ContentReader:
    """Reads contents of one store's files. Any thread. ``close`` it. ``on_lost`` is told of each data ledger that turns out to be gone."""

    def __init__(self, client: LogClient, log: str, password: bytes, on_lost: Callable[[int], None] | None = None) -> None:
        self._client = client
        self._log = log
        self._on_lost = on_lost
        self._password = password
        self._home = Home()
        self._lock = RLock()
        self._handles: dict[int, _Handle] = {}
        self._closed = False

    def chunks(self, content: Content, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """The bytes from ``offset`` on, at most ``length`` of them, in pieces that are not empty. FileDataLostError; ForkedClientError for
        each piece that a forked child asks for, because it has none of the threads that would bring it."""
        if offset < 0 or (length is not None and length < 0):
            raise InvalidArgumentError(f"offset and length must not be negative, not {offset} and {length}")
        end = content.size if length is None else min(content.size, offset + length)
        return self._here(self._inline(content.inline, offset, end) if not content.extents else self._spans(content, offset, end))

    def _here(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        while True:
            self._home.check("file store")
            chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk

    @staticmethod
    def _inline(data: bytes, offset: int, end: int) -> Iterator[bytes]:
        for at in range(offset, end, INLINE_CHUNK):
            yield data[at : min(end, at + INLINE_CHUNK)]

    def _spans(self, content: Content, offset: int, end: int) -> Iterator[bytes]:
        at = 0
        for extent in content.extents:
            first, last = max(offset - at, 0), min(end - at, extent.length)
            if first < last:
                yield from self._extent(extent, first, last)
            at += extent.length

    def _extent(self, extent: Extent, first: int, last: int) -> Iterator[bytes]:
        """Yield the bytes of the extent from ``first`` on, before ``last``. Each of its entries but the last has ``piece`` bytes."""
        skipped, until = first // extent.piece, (last - 1) // extent.piece
        at = skipped * extent.piece
        try:
            with self._opened(extent.ledger_id) as handle:
                if handle.is_closed and handle.last_add_confirmed < extent.last_entry_id:
                    raise self._lost(extent, f"the ledger was closed at entry {handle.last_add_confirmed}")
                for run in handle.read_runs(extent.first_entry_id + skipped, extent.first_entry_id + until, unchecked_bound=True):
                    for payload in run.payloads():
                        if len(payload) != min(extent.piece, extent.length - at):
                            raise self._lost(extent, f"an entry of {len(payload)} bytes where it should have {extent.piece}")
                        yield payload[max(0, first - at) : last - at]
                        at += len(payload)
        except (NoSuchLedgerError, NoSuchEntryError) as error:
            self._client.store.check_cluster()  # believed only of a cluster that is still there and the same (OWN-2)
            if self._on_lost is not None:
                self._on_lost(extent.ledger_id)
            raise self._lost(extent, str(error)) from error

    def _lost(self, extent: Extent, why: str) -> FileDataLostError:
        entries = f"entries {extent.first_entry_id}..{extent.last_entry_id} of ledger {extent.ledger_id}"
        return FileDataLostError(f"log {self._log!r}: the bytes of a file should be in {entries}: {why}", ledger=extent.ledger_id)

    @contextmanager
    def _opened(self, ledger_id: int) -> Iterator[Any]:
        """A handle, which stays open for the next one; those that nobody uses are closed when there are too many."""
        known = self._used(ledger_id)
        if known is None:
            known = self._keep(ledger_id, _Handle(self._client.open_ledger(ledger_id, password=self._password, lac=False)))
        try:
            yield known.handle
        except NoSuchLedgerError:
            self._drop(ledger_id)
            raise
        finally:
            self._give_back(known)

    @holds_lock
    def _used(self, ledger_id: int) -> _Handle | None:
        with self._lock:
            known = self._handles.pop(ledger_id, None)
            if known is not None:
                self._handles[ledger_id] = known  # the one used last is the last to go
                known.users += 1
        return known

    @holds_lock
    def _kept(self, ledger_id: int, opened: _Handle) -> _Handle | None:
        with self._lock:
            kept = self._handles.setdefault(ledger_id, opened) if not self._closed else None
            if kept is not None:
                kept.users += 1
        return kept

    def _keep(self, ledger_id: int, opened: _Handle) -> _Handle:
        other = self._kept(ledger_id, opened)
        if other is not opened:
            opened.handle.close()
        if other is None:
            raise ClientClosedError(f"the files of log {self._log!r} are no longer read: their reader was closed")
        return other

    @holds_lock
    def _drop(self, ledger_id: int) -> None:
        with self._lock:
            gone = self._handles.pop(ledger_id, None)
            if gone is not None:
                gone.kept = False

    def _give_back(self, known: _Handle) -> None:
        if self._home.is_here:
            for handle in self._given_back(known):
                handle.handle.close()

    @holds_lock
    def _given_back(self, known: _Handle) -> list[_Handle]:
        """Take note that a reader is done with a handle, and return the handles that are to be closed now."""
        closing = []
        with self._lock:
            known.users -= 1
            for ledger_id in [one for one, handle in self._handles.items() if not handle.users][: max(0, len(self._handles) - OPEN_MAX)]:
                closing.append(self._handles.pop(ledger_id))
            if not known.kept and not known.users:
                closing.append(known)
        return closing

    def close(self) -> None:
        """Close all handles. Idempotent. A call that reads meanwhile raises ClientClosedError. Does nothing in a forked child."""
        if self._home.is_here:
            for handle in self._all_closing():
                handle.handle.close()

    @holds_lock
    def _all_closing(self) -> list[_Handle]:
        with self._lock:
            self._closed = True
            handles, self._handles = list(self._handles.values()), {}
        return handles


class _Handle:
    __slots__ = ("handle", "kept", "users")

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.users = 0
        self.kept = True
