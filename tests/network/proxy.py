"""A network between processes that can be made bad: links that are cut, slow, thin, or silent in one direction or both.

A link is one client's way to one server. It listens on a port of its own, so that a fault hits that client and that server only. Bytes are
never lost or changed within a connection, as with TCP itself: what a silent (black-holed) link has taken is delivered late when the link
heals, unless the connection is cut first.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

OUT = "out"  # from the client to the server
IN = "in"
CHUNK_BYTES = 64 * 1024
THIN_CHUNK_BYTES = 8 * 1024  # so that the connections of a thin link take turns
CHUNKS_MAX = 64  # of one direction of one connection, while they are delayed
LATE_S = 0.05  # a loop that wakes this late makes up for it, or a busy machine would thin the link further
QUEUED_S = 0.1  # a thin link holds no more than this much of its bandwidth, and its delay's
SOCKET_BYTES = 128 * 1024  # kernels' buffers would hide how thin a link is
_STOP_TIMEOUT_S = 5.0


@dataclass(eq=False)
class Link:
    """State of one link. Changed only on the loop's thread; ``Proxy`` has the methods to call. All connections share ``bytes_per_s``, each
    direction has as much. ``carried`` and ``brought`` (towards the client) count bytes."""

    owner: str
    target: str
    host: str
    port: int
    listen_port: int = 0
    delay_s: float = 0.0
    bytes_per_s: float | None = None
    refuses: bool = False
    open: dict[str, asyncio.Event] = field(default_factory=dict)
    connections: set[_Connection] = field(default_factory=set)
    carried: int = 0
    brought: int = 0
    cut_after: int | None = None
    free_at: dict[str, float] = field(default_factory=lambda: {OUT: 0.0, IN: 0.0})

    def takes(self, direction: str, size: int) -> float:
        """Return the time at which the last of so many bytes is through."""
        if not self.bytes_per_s:
            return 0.0
        self.free_at[direction] = max(self.free_at[direction], time.monotonic() - LATE_S) + size / self.bytes_per_s
        return self.free_at[direction]

    @property
    def chunk_bytes(self) -> int:
        return THIN_CHUNK_BYTES if self.bytes_per_s else CHUNK_BYTES

    @property
    def queued_max(self) -> int:
        """Bytes that one direction of one connection may hold."""
        if not self.bytes_per_s:
            return CHUNKS_MAX * CHUNK_BYTES
        return int(max(4 * THIN_CHUNK_BYTES, self.bytes_per_s * (self.delay_s + QUEUED_S)))

    def __str__(self) -> str:
        return f"{self.owner}->{self.target}"


@dataclass(eq=False)
class _Connection:
    near: asyncio.StreamWriter
    far: asyncio.StreamWriter | None = None

    def abort(self) -> None:
        for writer in (self.near, self.far):
            if writer is not None:
                writer.transport.abort()


class _Pipe:
    """The bytes that one direction of one connection has taken and not delivered."""

    def __init__(self) -> None:
        self.size = 0
        self._chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._taken = asyncio.Event()

    def put(self, due: float, data: bytes) -> None:
        self.size += len(data)
        self._chunks.put_nowait((due, data))

    async def get(self) -> tuple[float, bytes]:
        due, data = await self._chunks.get()
        self.size -= len(data)
        self._taken.set()
        return due, data

    async def taken(self) -> None:
        self._taken.clear()
        await self._taken.wait()


class Proxy:
    """All links of one run, on one thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._links: dict[tuple[str, str], Link] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()

    @property
    def links(self) -> list[Link]:
        with self._lock:
            return list(self._links.values())

    def link(self, owner: str, target: str, host: str, port: int) -> Link:
        """The link of ``owner`` to ``target``, made when first wanted; a target that moved is followed."""
        with self._lock:
            found = self._links.get((owner, target))
            if found is None:
                found = Link(owner, target, host, port)
                self._call(self._listen(found))
                self._links[owner, target] = found
            found.host, found.port = host, port
            return found

    # --- faults ------------------------------------------------------------------------------------------------------

    def cut(self, link: Link, refuse: bool = False) -> None:
        """End all connections at once with a reset; with ``refuse`` also every new one until ``heal``."""

        def change() -> None:
            link.refuses = refuse
            for connection in tuple(link.connections):
                connection.abort()

        self._do(change)

    def delay(self, link: Link, seconds: float) -> None:
        """Each chunk arrives that much later, in both directions."""
        self._do(lambda: setattr(link, "delay_s", seconds))

    def throttle(self, link: Link, bytes_per_s: float) -> None:
        """All connections of the link share it; each direction has as much."""
        self._do(lambda: setattr(link, "bytes_per_s", bytes_per_s))

    def cut_within(self, link: Link, after_bytes: int) -> None:
        """Once, when so many more bytes came to the client: end all connections with a reset, in the middle of whatever that was."""
        self._do(lambda: setattr(link, "cut_after", after_bytes))

    def silence(self, link: Link, *directions: str) -> None:
        """Nothing passes in these directions; the connections stay. New ones are accepted and silent too."""

        def change() -> None:
            for direction in directions:
                link.open[direction].clear()

        self._do(change)

    def heal(self, link: Link, cut: bool = False) -> None:
        """As new. What was held back is delivered now, or with ``cut`` lost together with its connection."""

        def change() -> None:
            if cut:
                for connection in tuple(link.connections):
                    connection.abort()
            link.delay_s, link.bytes_per_s, link.refuses, link.cut_after = 0.0, None, False, None
            for gate in link.open.values():
                gate.set()

        self._do(change)

    def heal_all(self) -> None:
        for link in self.links:
            self.heal(link)

    # --- carrying ----------------------------------------------------------------------------------------------------

    async def _listen(self, link: Link) -> None:
        link.open = {OUT: asyncio.Event(), IN: asyncio.Event()}
        for gate in link.open.values():
            gate.set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._serve(link, reader, writer)
            except asyncio.CancelledError:
                pass  # the proxy is closing
            finally:
                self._tasks.discard(task)

        near = socket.create_server(("127.0.0.1", 0), backlog=128)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)  # every accepted one has it too
        server = await asyncio.start_server(serve, sock=near)
        self._servers.append(server)
        link.listen_port = server.sockets[0].getsockname()[1]

    async def _serve(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer)
        link.connections.add(connection)
        try:
            if link.refuses:
                return
            far_reader, connection.far = await self._reach(link)
            out = asyncio.create_task(self._carry(link, OUT, reader, connection.far))
            back = asyncio.create_task(self._carry(link, IN, far_reader, writer))
            try:
                await asyncio.wait({out, back}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (out, back):
                    task.cancel()
                await asyncio.gather(out, back, return_exceptions=True)
        except OSError:
            pass  # the server is down: the client sees its connection end
        finally:
            connection.abort()
            link.connections.discard(connection)

    @staticmethod
    async def _reach(link: Link) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        far = socket.socket()
        try:
            far.setblocking(False)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
            await asyncio.get_running_loop().sock_connect(far, (link.host, link.port))
            return await asyncio.open_connection(sock=far)
        except BaseException:
            far.close()
            raise

    async def _carry(self, link: Link, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until either end closes. Reading and delivering are apart, so that a delay does not also thin the link."""
        pipe = _Pipe()
        delivery = asyncio.create_task(self._deliver(link, direction, pipe, writer))
        try:
            while not delivery.done():
                data = await reader.read(link.chunk_bytes)
                pipe.put(time.monotonic() + link.delay_s, data)
                if not data:
                    break
                while pipe.size > link.queued_max and not delivery.done():
                    await pipe.taken()
            await delivery
        except OSError:
            return
        finally:
            delivery.cancel()
            await asyncio.gather(delivery, return_exceptions=True)

    async def _deliver(self, link: Link, direction: str, pipe: _Pipe, writer: asyncio.StreamWriter) -> None:
        while True:
            due, data = await pipe.get()
            through = link.takes(direction, len(data))
            await asyncio.sleep(max(0.0, due - time.monotonic(), through - time.monotonic()))
            await link.open[direction].wait()
            if not data:
                return
            link.carried += len(data)
            link.brought += len(data) if direction == IN else 0
            self._cut_if_due(link, direction, len(data))
            writer.write(data)
            await writer.drain()

    @staticmethod
    def _cut_if_due(link: Link, direction: str, size: int) -> None:
        if link.cut_after is None or direction != IN:
            return
        link.cut_after -= size
        if link.cut_after <= 0:
            link.cut_after = None
            for connection in tuple(link.connections):
                connection.abort()

    # --- the loop's thread -------------------------------------------------------------------------------------------

    def _do(self, change: Callable[[], None]) -> None:
        async def changed() -> None:
            change()

        self._call(changed())

    def _call(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_STOP_TIMEOUT_S)

    def close(self) -> None:
        async def shut() -> None:
            for server in self._servers:
                server.close()
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._call(shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_TIMEOUT_S)
        self._loop.close()
