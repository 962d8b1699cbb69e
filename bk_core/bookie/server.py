"""The embedded bookie on a socket: one selector loop for all connections, one thread that commits, one that talks to the metadata store.

    python -m bk_core.bookie.server --uri zk://127.0.0.1:2181/ledgers --directory data/bookie1 --port 0

prints ``READY host:port`` once it is registered. SIGTERM and SIGINT stop it cleanly; a kill at any moment loses nothing it acknowledged.
The address it got first is kept in the directory and used again, because ledgers name bookies by it.

    DIRECTORY/address             host:port, which is also the bookie id
    DIRECTORY/lock                held while a bookie runs on the directory
    DIRECTORY/current/VERSION     the cookie, byte for byte as in the metadata store (metadata.md 4.5)
    DIRECTORY/current/*.mdb       entries and ledger records
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import logging
import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from bk_core.bookie.storage import LmdbBookieStorage
from bk_core.errors import BkError, BookieIOError, InvalidArgumentError, NoNodeError, RemoteProtocolError
from bk_core.metadata import open_store
from bk_core.metadata.cookies import Cookie, decode_cookie, encode_cookie
from bk_core.metadata.store import MetadataStore, Registration
from bk_core.protocol.bookie.machine import BookieMachine, Effect, Persist, Reply, ReplyAfterSync, WakeLater, io_error
from bk_core.protocol.wire.connection import ReplyTo, ServerProtocol
from bk_core.protocol.wire.messages import BatchReadResponse, ReadResponse, Request, Response

log = logging.getLogger(__name__)

RECEIVE_BYTES = 256 << 10
SEND_BUFFERS_MAX = 256  # below IOV_MAX
UNSENT_BYTES_MAX = 8 << 20  # per connection: above, its requests wait until the peer reads
UNCOMMITTED_BYTES_MAX = 64 << 20  # above, all requests wait for the next commit
DISK_RESERVE_BYTES = 64 << 20  # below, the bookie is read-only (B-11)
HOUSEKEEPING_S = 1.0
STOP_TIMEOUT_S = 5.0
COLLECT_INTERVAL_S = 60.0


class _Tag:
    """One request that is to be answered; equal only to itself."""

    __slots__ = ("connection", "context")

    def __init__(self, connection: _Connection, context: ReplyTo) -> None:
        self.connection = connection
        self.context = context


class _Connection:
    __slots__ = ("events", "inbox", "open", "outbox", "peer", "polls", "protocol", "sock", "unsent_bytes")

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.sock = sock
        self.peer = peer
        self.protocol = ServerProtocol()
        self.inbox: deque[tuple[Request, ReplyTo]] = deque()
        self.outbox: deque[memoryview] = deque()
        self.unsent_bytes = 0  # encoded, or held by an answer that waits for a commit
        self.polls: set[_Tag] = set()
        self.events = 0
        self.open = True


class _Clock:
    """Unix milliseconds that never go backwards."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def __call__(self) -> int:
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000


class BookieServer:
    """Connections around one machine and its storage. ``run`` blocks; ``stop`` and ``submit`` may be called from any thread."""

    def __init__(self, listener: socket.socket, directory: Path) -> None:
        self._listener = listener
        self._completions: deque[tuple[int, BaseException | None]] = deque()
        self._commands: deque[Callable[[], None]] = deque()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self.storage = LmdbBookieStorage(directory, self._commit_completed)
        self.machine = BookieMachine(self.storage)
        self.on_read_only: Callable[[bool], None] = lambda read_only: None
        self._commit_failed = False
        self._clock = _Clock()
        self._selector = selectors.DefaultSelector()
        self._connections: set[_Connection] = set()
        self._blocked: set[_Connection] = set()  # requests wait for room
        self._dirty: set[_Connection] = set()  # something to send
        self._waiting: deque[tuple[int, _Tag, Response]] = deque()  # answers that wait for a commit, oldest first
        self._sync_wanted = False
        self._housekeeping_at = 0.0
        self._stopping = False

    # --- from other threads ---------------------------------------------------------------------------------------

    def submit(self, command: Callable[[], None]) -> None:
        """Run ``command`` on the loop."""
        self._commands.append(command)
        self._wake()

    def stop(self) -> None:
        self._stopping = True
        self._wake()

    def _commit_completed(self, position: int, error: BaseException | None) -> None:
        self._completions.append((position, error))
        self._wake()

    def _wake(self) -> None:
        try:
            self._wake_in.send(b"\0")
        except (BlockingIOError, OSError):
            pass  # full: the loop is about to wake anyway; closed: it is gone

    # --- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_out, selectors.EVENT_READ, self._drain_wakes)
        try:
            while not self._stopping:
                self._turn(self._pause_s())
            self._drain()
        finally:
            self._close()

    def _turn(self, pause_s: float) -> None:
        for key, mask in self._selector.select(pause_s):
            if isinstance(key.data, _Connection):
                self._serve(key.data, mask)
            else:
                key.data()
        while self._commands:
            self._commands.popleft()()
        self._finish_commits()
        self._perform(self.machine.wake(self._clock()))
        self._housekeeping()
        self._flush_all()
        for connection in tuple(self._blocked):
            self._pump(connection)
        if self._sync_wanted:
            self._sync_wanted = False
            self.storage.request_sync()
        self._flush_all()

    def _pause_s(self) -> float:
        next_ms = self.machine.next_wake_ms()
        if next_ms is None:
            return HOUSEKEEPING_S
        return min(HOUSEKEEPING_S, max(0, next_ms - self._clock()) / 1000 + 0.0005)

    def _drain(self) -> None:
        """Let what was accepted be committed and answered, for a bounded time."""
        self._selector.unregister(self._listener)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while (self._waiting or any(c.outbox for c in self._connections)) and time.monotonic() < deadline:
            self._sync_wanted = bool(self._waiting)
            self._turn(0.05)

    def _close(self) -> None:
        for connection in tuple(self._connections):
            self._drop(connection, None)
        self._listener.close()
        self.storage.close()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def _drain_wakes(self) -> None:
        try:
            while self._wake_out.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _housekeeping(self) -> None:
        now = time.monotonic()
        if now < self._housekeeping_at:
            return
        self._housekeeping_at = now + HOUSEKEEPING_S
        try:
            free = self.storage.disk_bytes()[1]
        except BookieIOError:
            free = 0
        self.machine.accept_recovery_adds = free > DISK_RESERVE_BYTES // 2 and not self._commit_failed
        self._set_read_only(self._commit_failed or free < DISK_RESERVE_BYTES)
        if self._commit_failed:
            self.storage.request_sync()

    def _set_read_only(self, read_only: bool) -> None:
        if read_only != self.machine.read_only:
            self.machine.read_only = read_only
            log.warning("bookie is %s", "read-only" if read_only else "writable again")
            self.on_read_only(read_only)

    # --- connections ----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(64):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log.warning("cannot accept a connection: %s", error)
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(sock, f"{address[0]}:{address[1]}")
            self._connections.add(connection)
            self._selector.register(sock, selectors.EVENT_READ, connection)
            connection.events = selectors.EVENT_READ

    def _serve(self, connection: _Connection, mask: int) -> None:
        if mask & selectors.EVENT_WRITE and connection.open:
            self._flush(connection)
        if mask & selectors.EVENT_READ and connection.open and connection not in self._blocked:
            self._receive(connection)

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            return self._drop(connection, f"receiving failed: {error}")
        if not data:
            return self._drop(connection, None)
        try:
            connection.inbox.extend(connection.protocol.feed(data))
        except RemoteProtocolError as error:
            return self._drop(connection, f"malformed input: {error}")
        self._pump(connection)

    def _pump(self, connection: _Connection) -> None:
        """Serve requests in the order they came, as long as there is room for answers and changes."""
        while connection.inbox and connection.open:
            if not self._has_room(connection):
                self._blocked.add(connection)
                return self._choose_events(connection)
            request, context = connection.inbox.popleft()
            self._perform(self.machine.handle(_Tag(connection, context), request, self._clock()))
        if connection in self._blocked:
            self._blocked.discard(connection)
            self._choose_events(connection)

    def _has_room(self, connection: _Connection) -> bool:
        if connection.unsent_bytes >= UNSENT_BYTES_MAX:
            return False
        return self.machine.read_only or self.storage.uncommitted_bytes < UNCOMMITTED_BYTES_MAX

    def _drop(self, connection: _Connection, reason: str | None) -> None:
        """Close one connection; a ``reason`` is for the log."""
        if not connection.open:
            return
        if reason is not None:
            log.warning("connection from %s closed: %s", connection.peer, reason)
        connection.open = False
        for tag in connection.polls:
            self.machine.cancel(tag)
        connection.polls.clear()
        connection.inbox.clear()
        connection.outbox.clear()
        for group in (self._connections, self._blocked, self._dirty):
            group.discard(connection)
        if connection.events:
            self._selector.unregister(connection.sock)
            connection.events = 0
        connection.sock.close()

    def _choose_events(self, connection: _Connection) -> None:
        if not connection.open:
            return
        events = 0 if connection in self._blocked else selectors.EVENT_READ
        if connection.outbox:
            events |= selectors.EVENT_WRITE
        if events == connection.events:
            return
        if not events:
            self._selector.unregister(connection.sock)
        elif not connection.events:
            self._selector.register(connection.sock, events, connection)
        else:
            self._selector.modify(connection.sock, events, connection)
        connection.events = events

    # --- effects --------------------------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[Effect]) -> None:
        """Carry out effects in order. A position above the durable one makes an answer wait for the commit."""
        for effect in effects:
            match effect:
                case Persist():
                    self.storage.apply(effect)
                case ReplyAfterSync(tag=_Tag() as tag, response=response):
                    if self.storage.position <= self.storage.durable_position:
                        self._answer(tag, response)
                    else:
                        tag.connection.unsent_bytes += _content_bytes(response)
                        self._waiting.append((self.storage.position, tag, response))
                        self._sync_wanted = True
                case Reply(tag=_Tag() as tag, response=response):
                    self._answer(tag, response)
                case WakeLater(tag=_Tag() as tag):
                    tag.connection.polls.add(tag)

    def _finish_commits(self) -> None:
        while self._completions:
            position, error = self._completions.popleft()
            if error is not None and not self._commit_failed:
                log.error("commit failed: %s", error)
            if self._commit_failed != (error is not None):
                self._commit_failed = error is not None
                self._housekeeping_at = 0.0
            while self._waiting and self._waiting[0][0] <= position:
                _, tag, response = self._waiting.popleft()
                tag.connection.unsent_bytes -= _content_bytes(response)
                self._answer(tag, response if error is None else io_error(response))

    def _answer(self, tag: _Tag, response: Response) -> None:
        connection = tag.connection
        connection.polls.discard(tag)
        if not connection.open:
            return
        try:
            frame = connection.protocol.encode(response, tag.context)
        except InvalidArgumentError as error:
            return self._drop(connection, f"no way to say so on this connection: {error}")
        connection.outbox.append(memoryview(frame))
        connection.unsent_bytes += len(frame)
        self._dirty.add(connection)

    def _flush_all(self) -> None:
        dirty, self._dirty = self._dirty, set()
        for connection in dirty:
            self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        outbox = connection.outbox
        try:
            while outbox:
                head = [outbox[index] for index in range(min(len(outbox), SEND_BUFFERS_MAX))]
                sent = connection.sock.sendmsg(head)
                connection.unsent_bytes -= sent
                while outbox and sent >= len(outbox[0]):
                    sent -= len(outbox.popleft())
                if sent:
                    outbox[0] = outbox[0][sent:]
                    break  # the socket is full
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            return self._drop(connection, f"sending failed: {error}")
        self._choose_events(connection)

    # --- garbage collection -----------------------------------------------------------------------------------------

    def collect(self, ledger_ids: Iterable[int]) -> None:
        """On the loop: drop ledgers whose metadata is gone (B-12)."""
        for ledger_id in ledger_ids:
            try:
                effects = self.machine.collect(ledger_id, self._clock())
            except BookieIOError as error:
                log.warning("ledger %d cannot be collected: %s", ledger_id, error)
                continue
            if effects:
                log.info("ledger %d is gone from the metadata store; its entries are dropped", ledger_id)
                self._sync_wanted = True
            self._perform(effects)


def _content_bytes(response: Response) -> int:
    if isinstance(response, ReadResponse):
        return len(response.body or b"")
    return len(response.bodies) if isinstance(response, BatchReadResponse) else 0


def collectable(local: Iterable[int], store: MetadataStore) -> list[int]:
    """Those of ``local`` whose metadata is gone (B-12): not listed, and not there when asked for by id.

    ``local`` must have been gathered before this call: metadata is created before a ledger's first add, so whatever was known here
    by then and is missing from a listing made afterwards has been deleted.
    """
    listed = set(store.list_ledgers())
    return [ledger_id for ledger_id in local if ledger_id not in listed and _is_gone(ledger_id, store)]


def _is_gone(ledger_id: int, store: MetadataStore) -> bool:
    try:
        store.read_ledger(ledger_id)
    except NoNodeError:
        return True
    return False


# --- identity -----------------------------------------------------------------------------------------------------


def cookie_of(bookie_id: str, directory: Path, instance_id: str | None) -> Cookie:
    """One directory holds journal, ledgers and indexes."""
    place = str(directory.resolve())
    return Cookie(bookie_id, (place,), (place,), instance_id)


def check_cookie(store: MetadataStore, bookie_id: str, directory: Path) -> None:
    """Compare, or on the first start write, the cookie (metadata.md 4.5, 4.6).

    Raises InvalidArgumentError if this is not the directory that belongs to ``bookie_id``: serving from another one would deny entries
    that were acknowledged (B-10). MetadataFormatError if a cookie cannot be read. The local copy is written first, so a crash in
    between leaves a directory that may start again.
    """
    wanted = cookie_of(bookie_id, directory, store.instance_id())
    path = directory / "current" / "VERSION"
    local = path.read_bytes() if path.exists() else None
    try:
        stored: bytes | None = store.read_cookie(bookie_id).data
    except NoNodeError:
        stored = None
    if stored is not None and local is None:
        raise InvalidArgumentError(f"bookie {bookie_id} has lost its data: the metadata store knows it, but {path} is missing")
    for owner, data in ((path, local), (f"the metadata store's cookie of {bookie_id}", stored)):
        if data is not None and (differences := wanted.differences(decode_cookie(data))):
            raise InvalidArgumentError(
                f"{directory} is not the directory of bookie {bookie_id}: {owner} has another {', '.join(differences)}"
            )
    if local is None:
        local = encode_cookie(wanted)
        write_durably(path, local)
    if stored is None:
        store.write_cookie(bookie_id, local, None)


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file so that after a crash either the old or the new content is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def kept_address(directory: Path) -> tuple[str, int] | None:
    """The address this directory's bookie had before. InvalidArgumentError if the file makes no sense."""
    path = directory / "address"
    if not path.exists():
        return None
    host, _, port = path.read_text().strip().rpartition(":")
    if not host or not port.isdigit():
        raise InvalidArgumentError(f"{path} does not hold host:port")
    return host, int(port)


# --- the whole bookie -----------------------------------------------------------------------------------------------


class EmbeddedBookie:
    """A bookie in this process, on a thread of its own. Without a ``store`` it is not registered and collects nothing.

    ``port`` 0 takes the port the directory had before, or any free one. InvalidArgumentError if another bookie runs on the directory
    or if host and port are not those that its ledgers know.
    """

    def __init__(
        self,
        directory: str | Path,
        host: str = "127.0.0.1",
        port: int = 0,
        store: MetadataStore | None = None,
        *,
        collect_interval_s: float = COLLECT_INTERVAL_S,
    ) -> None:
        self._directory = Path(directory)
        self._wanted = (host, port)
        self._store = store
        self._collect_interval_s = collect_interval_s
        self._registration: Registration | None = None
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock_descriptor = -1
        self._server: BookieServer | None = None
        self.host = host
        self.port = port
        self.failed = threading.Event()  # set when the loop has ended, wanted or not

    @property
    def bookie_id(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self) -> EmbeddedBookie:
        """Bind, open the storage, check the cookie, serve, register: in this order."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock()
        try:
            listener = self._bind()
            try:
                if self._store is not None:
                    check_cookie(self._store, self.bookie_id, self._directory)
                self._server = BookieServer(listener, self._directory / "current")
            except BaseException:
                listener.close()
                raise
            self._run_thread("bookie-loop", self._serve)
            if self._store is not None:
                self._register(self._store)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Unregister, answer what was accepted, stop. Safe to call twice."""
        if self._registration is not None:
            registration, self._registration = self._registration, None
            try:
                registration.close()
            except BkError as error:
                log.warning("unregistering failed: %s", error)
        if self._server is not None:
            self._server.stop()
        self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._server = None
        if self._lock_descriptor >= 0:
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1

    def __enter__(self) -> EmbeddedBookie:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_thread(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        assert self._server is not None
        try:
            self._server.run()
        except Exception:
            log.exception("the bookie's loop has failed")
        finally:
            self.failed.set()

    def _lock(self) -> None:
        self._lock_descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1
            raise InvalidArgumentError(f"another bookie runs on {self._directory}") from error

    def _bind(self) -> socket.socket:
        host, port = self._wanted
        kept = kept_address(self._directory)
        if kept is not None:
            if host != kept[0] or port not in (0, kept[1]):
                raise InvalidArgumentError(f"the bookie of {self._directory} is {kept[0]}:{kept[1]}, not {host}:{port}")
            port = kept[1]
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(512)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            raise InvalidArgumentError(f"cannot listen on {host}:{port}: {error}") from error
        self.host, self.port = host, listener.getsockname()[1]
        if kept is None:
            write_durably(self._directory / "address", f"{self.bookie_id}\n".encode())
        return listener

    # --- the metadata store, on a thread of its own because its calls block ------------------------------------------

    def _register(self, store: MetadataStore) -> None:
        assert self._server is not None
        self._registration = store.register_bookie(self.bookie_id, self.host, self.port, self._server.machine.read_only)
        self._server.on_read_only = lambda read_only: self._jobs.put(lambda: self._announce(read_only))
        self._run_thread("bookie-metadata", self._metadata_loop)

    def _announce(self, read_only: bool) -> None:
        if self._registration is not None:
            self._registration.set_readonly(read_only)

    def _metadata_loop(self) -> None:
        collect_at = time.monotonic() + self._collect_interval_s
        while True:
            try:
                job = self._jobs.get(timeout=max(0.0, collect_at - time.monotonic()))
            except queue.Empty:
                collect_at = time.monotonic() + self._collect_interval_s
                job = self._collect
            if job is None:
                return
            try:
                job()
            except BkError as error:
                log.warning("metadata store: %s", error)

    def _collect(self) -> None:
        server, store = self._server, self._store
        if server is None or store is None:
            return
        gone = collectable(server.storage.ledger_ids(), store)
        if gone:
            server.submit(lambda: server.collect(gone))


# --- the process ------------------------------------------------------------------------------------------------------

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, if BK_DIE_WITH_PARENT=1 (Linux only; elsewhere nothing happens)."""
    if os.environ.get("BK_DIE_WITH_PARENT") != "1" or not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bk_core.bookie.server", description="An embedded bookie for one machine.")
    parser.add_argument("--uri", required=True, help="metadata service, e.g. zk://127.0.0.1:2181/ledgers")
    parser.add_argument("--directory", required=True, type=Path, help="where the bookie keeps everything")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on and to be known by (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="0: the port the directory had before, or any free one (default)")
    parser.add_argument("--collect-interval-s", type=float, default=COLLECT_INTERVAL_S, help="seconds between searches for deleted ledgers")
    options = parser.parse_args(arguments)
    die_with_parent()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        store = open_store(options.uri)
        try:
            with EmbeddedBookie(
                options.directory, options.host, options.port, store, collect_interval_s=options.collect_interval_s
            ) as bookie:
                print(f"READY {bookie.bookie_id}", flush=True)
                while not stop.is_set() and not bookie.failed.is_set():
                    stop.wait(0.5)
                return 0 if stop.is_set() else 1
        finally:
            store.close()
    except BkError as error:
        print(f"bookie cannot run: {error}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
