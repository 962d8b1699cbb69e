"""The client for asyncio: create, open, recover, delete and list ledgers and logs of one cluster."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, Self, Unpack

from bk_core.aio.ledgers import ReadHandle, WriteHandle
from bk_core.aio.logs import Log
from bk_core.aio.loops import Aside, Loop, Opening
from bk_core.arguments import named
from bk_core.client.client import BookKeeper as Client
from bk_core.client.client import connect as connect_client
from bk_core.client.here import StaysHere
from bk_core.client.log.settings import LogSettings
from bk_core.config import ClientConfig, ClientSettings, WireProtocol
from bk_core.errors import ClientClosedError
from bk_core.metadata.store import BookieView, MetadataStore
from bk_core.protocol.ledger.metadata import DigestName, DigestType, LedgerMetadata
from bk_core.protocol.ledger.read.options import ReadOptions
from bk_core.threads import SafeFuture, start_aside


def connect(
    uri: str, *, protocol: WireProtocol = "v2", store: MetadataStore | None = None, **settings: Unpack[ClientSettings]
) -> Opening[BookKeeper]:
    """Connect to the cluster at ``uri``: ``async with bk_core.aio.connect(uri) as client``, or ``client = await
    bk_core.aio.connect(uri)``. The client belongs to the loop that awaits it.

    ``protocol``, ``store``, ``settings`` and the errors are those of ``bk_core.connect``.
    """

    async def open_() -> BookKeeper:
        loop = Loop()
        aside = Aside(loop)
        try:
            made = await aside.run(partial(connect_client, uri, protocol=protocol, store=store, **settings), Client.close)
        except BaseException:
            aside.close(finish=True)
            raise
        return BookKeeper(loop, aside, made)

    return Opening(open_, "connect(...)")


class Stoppable(Protocol):
    def _stop(self) -> None: ...


class BookKeeper(StaysHere):
    """A client for one event loop. Its calls are those of ``bk_core.BookKeeper``, awaited.

    What asks the metadata store runs on a few threads of its own, what waits for bookies on a few others, and their number does not grow.
    Appends and reads need none. A call that is cancelled leaves nothing half done: what was not begun does not happen, and what it would
    have returned is closed again.
    """

    def __init__(self, loop: Loop, aside: Aside, client: Client) -> None:
        self._loop = loop
        self._aside = aside
        self._client = client
        self._kept: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closing: SafeFuture[None] | None = None
        self._leaving: dict[str, set[Future[None]]] = {}  # writers by log that nobody has any more, and that still end
        weakref.finalize(self, aside.close).atexit = False

    @property
    def config(self) -> ClientConfig:
        """The settings of this client."""
        return self._client.config

    @property
    def is_closed(self) -> bool:
        """True once ``close`` was called."""
        return self._closing is not None

    @property
    def sync(self) -> Client:
        """The synchronous client under this one, for the calls that have no awaited form. They block, so they belong on a thread:
        ``await asyncio.to_thread(client.sync.repair_ledger, 3)``. It is closed with this client."""
        return self._client

    def _keep(self, one: Stoppable) -> None:
        """Stop it when this client is closed."""
        self._kept.add(one)

    def _leaves(self, log: str, ended: Future[None]) -> None:
        """Note a writer of a log that is ended aside."""
        self._leaving[log] = {one for one in self._leaving.get(log, ()) if not one.done()} | {ended}

    async def _left(self, log: str) -> None:
        """Wait until the writers of a log that this client gave up have ended: until then the log looks written."""
        for ended in tuple(self._leaving.get(log, ())):
            with suppress(Exception):  # nobody waits for its outcome, and if it failed, the log is looked at all the same
                await self._loop.wait(ended)
            self._check()
        if all(ended.done() for ended in self._leaving.get(log, ())):
            self._leaving.pop(log, None)

    def _check(self) -> None:
        self._loop.check()
        if self._closing is not None:
            raise ClientClosedError("this client was closed by this program").nothing_done()

    # --- ledgers --------------------------------------------------------------------------------------------------------------

    @named
    def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        digest_type: DigestType | DigestName = DigestType.CRC32C,
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        guaranteed_write_quorum: bool = False,
        caller_ids: bool = False,
        deferred_sync: bool = False,
    ) -> Opening[WriteHandle]:
        """Create a ledger and return its writer: ``async with client.create_ledger() as ledger``, or ``await`` it. Arguments and errors are
        those of ``bk_core.BookKeeper.create_ledger``. If that is cancelled, the ledger is deleted again."""
        create = partial(
            self._client.create_ledger,
            ensemble_size=ensemble_size,
            write_quorum_size=write_quorum_size,
            ack_quorum_size=ack_quorum_size,
            digest_type=digest_type,
            password=password,
            custom=custom,
            ledger_id=ledger_id,
            guaranteed_write_quorum=guaranteed_write_quorum,
            caller_ids=caller_ids,
            deferred_sync=deferred_sync,
        )

        async def open_() -> WriteHandle:
            self._check()
            return WriteHandle(self, await self._aside.run(create, self._forget))

        return Opening(open_, "client.create_ledger(...)")

    def _forget(self, handle: Any) -> None:
        """Delete a ledger that nobody waits for any more."""
        handle.close()
        self._client.delete_ledger(handle.ledger_id)

    @named
    def open_ledger(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        digest_type: DigestType | DigestName | None = None,
        options: ReadOptions | None = None,
        lac: bool = True,
    ) -> Opening[ReadHandle]:
        """Open a ledger for reading without recovery: ``async with client.open_ledger(3) as ledger``, or ``await`` it."""
        how = {"password": password, "digest_type": digest_type, "options": options, "lac": lac}
        return self._reading("open_ledger", partial(self._client.open_ledger, ledger_id, **how))  # type: ignore[arg-type]

    @named
    def recover_ledger(
        self, ledger_id: int, *, password: bytes = b"", digest_type: DigestType | DigestName | None = None
    ) -> Opening[ReadHandle]:
        """Fence, recover and close a ledger, then open it. A live writer is stopped. A cancelled recovery goes on."""
        recover = partial(self._client.recover_ledger, ledger_id, password=password, digest_type=digest_type)
        return self._reading("recover_ledger", recover)

    def _reading(self, call: str, work: Any) -> Opening[ReadHandle]:
        async def open_() -> ReadHandle:
            self._check()
            return ReadHandle(self, await self._aside.run(work, lambda handle: handle.close(), lasts=True))

        return Opening(open_, f"client.{call}(...)")

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """Return the stored metadata of ledger ``ledger_id``. Raises NoSuchLedgerError, MetadataFormatError."""
        self._check()
        return await self._aside.run(partial(self._client.ledger_metadata, ledger_id))

    async def delete_ledger(self, ledger_id: int, *, even_if_listed: bool = False) -> None:
        """Delete a ledger's metadata; bookies drop its entries later. Raises NoSuchLedgerError; LedgerListedError."""
        self._check()
        await self._aside.run(partial(self._client.delete_ledger, ledger_id, even_if_listed=even_if_listed))

    async def list_ledgers(self) -> list[int]:
        """Return the ids of all ledgers, ascending."""
        self._check()
        return await self._aside.run(lambda: list(self._client.list_ledgers()))

    async def bookies(self) -> BookieView:
        """Return the registered bookies, writable and read-only."""
        self._check()
        return await self._aside.run(self._client.bookies)

    async def await_bookies(self, ensemble_size: int, write_quorum_size: int) -> None:
        """Wait until there are bookies for a new ledger of these sizes. Raises NotEnoughBookiesError after ``operation_timeout_s``."""
        self._check()
        await self._aside.run(partial(self._client.await_bookies, ensemble_size, write_quorum_size), lasts=True)

    # --- logs -----------------------------------------------------------------------------------------------------------------

    async def create_log(self, name: str, *, exist_ok: bool = False, password: bytes = b"", **properties: Unpack[LogSettings]) -> Log:
        """Create an empty log and return it. Raises LogExistsError unless ``exist_ok``. The rest is as in
        ``bk_core.BookKeeper.create_log``. If it is cancelled, the log was created or not."""
        self._check()
        create = partial(self._client.create_log, name, exist_ok=exist_ok, password=password, **properties)
        return Log(self, await self._aside.run(create))

    async def log(self, name: str, *, password: bytes = b"") -> Log:
        """Return the log of this name. Raises NoSuchLogError."""
        self._check()
        return Log(self, await self._aside.run(partial(self._client.log, name, password=password)))

    async def logs(self) -> list[str]:
        """Names of all logs, sorted."""
        self._check()
        return await self._aside.run(self._client.logs)

    # --- closing --------------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the client. Idempotent. Followers end their iteration, appends without an outcome fail with ClientClosedError, and ledgers
        that are written stay OPEN. A cancelled ``close`` goes on. If a ``close`` failed, the next call finishes it. It may be
        called in any loop once the client's own is closed."""
        if not self._loop.loop.is_closed():
            self._loop.check()
        if self._closing is None or (self._closing.done() and self._closing.exception(0) is not None):
            closing: SafeFuture[None] = SafeFuture()
            start_aside(partial(_close, self._client, self._aside, closing), "bookkeeper-aio-close")
            self._closing = closing
            for one in tuple(self._kept):
                one._stop()
        if self._loop.loop.is_closed():
            await asyncio.wrap_future(self._closing)
            return
        await self._loop.wait(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<aio {self._client!r}>"


def _close(client: Client, aside: Aside, done: SafeFuture[None]) -> None:
    """Close the client, on a thread of its own, because the threads of ``aside`` may be at work for long. ``done`` has its outcome in any
    case, because somebody waits for it."""
    try:
        try:
            client.close()
        finally:
            aside.close()
    except BaseException as error:
        done.set_exception(error)
    else:
        done.set_result(None)
