"""The connection to ZooKeeper: kazoo's client on threads of ours, the states of its session, and its errors as this project's."""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler

from bk_core.background import WorkerPool
from bk_core.errors import (
    CLIENT_CLOSED,
    ClientClosedError,
    MetadataDeniedError,
    MetadataError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    VersionConflictError,
)
from bk_core.metadata.zookeeper.logging import quiet_logger
from bk_core.metadata.zookeeper.probe import look
from bk_core.protocol.session.outage import Connection, Welcome
from bk_core.protocol.session.reach import Found, is_hopeless, told
from bk_core.threads import Home, Monitor, SafeFuture, mark_own, wait_done

_LOG = logging.getLogger(__name__)
_WAITS = logging.getLogger("bk_core.metadata.waits")  # a name of its own, because `bk` shows its lines

_LOST = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.SessionExpiredError,
    kazoo_errors.SessionMovedError,
    kazoo_errors.OperationTimeoutError,
    kazoo_errors.ConnectionClosedError,
    KazooTimeoutError,
)
_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0, "max_jitter": 0.2}
STOP_S = 15.0
_FIRST_LOOK_S = 0.3  # an existing server gives a session in a fraction of this
_LOOK_S = 1.5
LATE_S = 2.0  # a wait that is longer is told of
KNOWN_ADDRESS_S = 1.0  # the wait for the store about a bookie whose address was known


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads. They are threads of ours, and end with the process after everything that the program has given to ``atexit``.

    kazoo itself waits for the answer to a request for a session as long as the session may last; this handler waits as SES-12 says.
    """

    def __init__(self) -> None:
        super().__init__()
        self._welcome = Welcome()
        self._new: Any = None  # the connection on which no answer has come yet

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def run() -> None:
            mark_own()
            func(*args, **kwargs)

        return super().spawn(run)

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        self._new = super().create_connection(*args, **kwargs)
        return self._new

    def select(self, readers: Any, writers: Any, errors: Any, timeout: float | None = None) -> Any:
        if self._new is None or readers != [self._new] or timeout is None:
            return super().select(readers, writers, errors, timeout)
        found = super().select(readers, writers, errors, self._welcome.waits_s(timeout))
        if found[0]:
            self._welcome.came()
        else:
            self._welcome.missed()
        self._new = None
        return found

    def start(self) -> None:
        super().start()
        atexit.unregister(self.stop)


class Link:
    """The kazoo client with deadlines and with this project's errors.

    A thread of its own speaks to kazoo, and callers wait where an interrupt does no harm. An interrupt in the middle of one of kazoo's
    functions would make it send every later request one request late, or keep a lock that its own thread needs.
    """

    def __init__(self, hosts: str, session_timeout_s: float, on_connection: Callable[[bool], None]) -> None:
        logger = quiet_logger()
        self.home = Home()
        self.client = KazooClient(
            hosts=hosts, timeout=session_timeout_s, connection_retry=dict(_RECONNECT), logger=logger, handler=_Handler()
        )
        self._condition = Monitor()
        self._speaker = WorkerPool("bk-zookeeper")
        self.connected = False
        self._news = Connection(f"ZooKeeper at {hosts}")
        self._closed = False
        self._has_told = False  # of the silence that lasts
        self._on_connection = on_connection
        self._hosts = hosts
        self.client.add_listener(self._on_state)

    def start(self, timeout_s: float, patient: bool) -> None:
        """Connect for the first time. Without ``patient`` it is given up at once where waiting does not help (SES-11)."""
        begun = time.monotonic()
        self._speaker.call(self.client.start_async).result(timeout_s)
        found: list[Found] = []
        if not patient and not self._wait_connected(min(timeout_s, _FIRST_LOOK_S), begun):
            found = look(self._hosts, min(timeout_s, _LOOK_S))
            if is_hopeless(found) and not self.connected and not self._closed:
                raise MetadataUnavailableError(told(self._hosts, time.monotonic() - begun, found))
        self._await_connection(max(0.0, begun + timeout_s - time.monotonic()), begun, found)

    def call(self, send: Callable[[], Any], timeout_s: float, path: str = "") -> Any:
        """Return the result of the asynchronous kazoo call that ``send`` makes."""
        (answer,) = self.call_all([(send, path)], timeout_s)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call_all(self, asked: Sequence[tuple[Callable[[], Any], str]], timeout_s: float) -> list[Any]:
        """Return the results of asynchronous kazoo calls, each about a path, that are sent together and in this order, in one round trip. A
        call that failed has its error in place of a result. Raises ClientClosedError, and MetadataUnavailableError without a connection."""
        self.home.check("metadata store")
        deadline = time.monotonic() + timeout_s
        self._await_connection(timeout_s)
        waiting: list[tuple[Callable[[], Any], SafeFuture[Any]]] = [(send, SafeFuture()) for send, _ in asked]
        self._speaker.submit(lambda: _ask_all(waiting))
        return [self._result(answer, deadline, path) for (_, answer), (_, path) in zip(waiting, asked, strict=True)]

    def _result(self, answer: SafeFuture[Any], deadline: float, path: str) -> Any:
        try:
            if deadline - time.monotonic() > LATE_S and not wait_done(answer, LATE_S):
                self._tell_of_wait()
            found = answer.result(max(deadline - time.monotonic(), 0.001))
            self._has_told = False
            return found
        except TimeoutError:
            return translated(KazooTimeoutError(), path)
        except Exception as error:
            if self._closed:
                raise ClientClosedError(CLIENT_CLOSED) from None
            told = translated(error, path)
            told.__cause__ = error if told is not error else None
            return told

    def aside(self, send: Callable[[], Any]) -> None:
        """Send a request of which nobody awaits the outcome."""
        self._speaker.submit(lambda: _ask(send, SafeFuture()))

    def close(self, wait_s: float) -> None:
        """Close the client; this may be called again. Waits ``wait_s`` seconds at most for kazoo to say good-bye, and for the thread that
        speaks to it to end. On that very thread it does not wait."""
        deadline = time.monotonic() + wait_s
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        with suppress(ClientClosedError):
            if self._speaker.is_current:
                self._stop()
            elif not wait_done(self._speaker.call(self._stop), wait_s) and wait_s == STOP_S:
                _LOG.warning("ZooKeeper client did not stop within %g s", wait_s)
        self._speaker.close(max(0.0, deadline - time.monotonic()))

    def _stop(self) -> None:
        try:
            self.client.stop()
            self.client.close()
        except Exception as error:  # kazoo's own shutdown has races, and the session then ends by its timeout
            _LOG.warning("ZooKeeper client did not stop cleanly: %s", type(error).__name__)

    def _await_connection(self, timeout_s: float, begun: float | None = None, found: Sequence[Found] = ()) -> None:
        """Wait for a connection. ``begun`` is the time since which the caller waits, if longer. A long wait ends with a look at the causes
        (SES-11); ``found`` is the result of an earlier look."""
        begun = time.monotonic() if begun is None else begun
        deadline = time.monotonic() + timeout_s
        look_s = min(_LOOK_S, timeout_s / 2) if timeout_s > KNOWN_ADDRESS_S else 0.0
        if self._wait_connected(timeout_s - look_s, begun):
            return
        found = look(self._hosts, look_s) if look_s else found
        if not self._wait_connected(deadline - time.monotonic(), begun):
            raise MetadataUnavailableError(told(self._hosts, time.monotonic() - begun, found))

    def _wait_connected(self, timeout_s: float, begun: float) -> bool:
        """Return True if there is a connection in time. ``begun`` is the time since which the caller waits. Raises ClientClosedError if the
        store is closed meanwhile."""
        deadline, late = time.monotonic() + timeout_s, begun + LATE_S
        if late <= deadline and not self._is_connected_by(late):
            self._tell_of_wait()
        return self._is_connected_by(deadline)

    def _is_connected_by(self, deadline: float) -> bool:
        with self._condition:
            self._condition.wait_for(lambda: self.connected or self._closed, max(0.0, deadline - time.monotonic()))
            if self._closed:
                raise ClientClosedError(CLIENT_CLOSED)
            return self.connected

    def _tell_of_wait(self) -> None:
        """Tell once of a silence, however many wait in it."""
        if not self._has_told:
            self._has_told = True
            _WAITS.info("waiting for the metadata service at %s, which does not answer", self._hosts)

    def _on_state(self, state: str) -> None:
        with self._condition:
            self.connected = state == KazooState.CONNECTED
            news = None if self._closed else self._news.changed(self.connected, time.monotonic_ns())
            self._condition.notify_all()
        if news is not None:
            _LOG.warning("%s", news)
        self._on_connection(state == KazooState.CONNECTED)


def _ask(send: Callable[[], Any], answer: SafeFuture[Any]) -> None:
    """Make the call on the thread that speaks to kazoo; the answer comes on one of kazoo's."""

    def settle(asked: Any) -> None:
        if asked.successful():
            answer.set_result(asked.value)
        else:
            answer.set_exception(asked.exception)

    try:
        send().rawlink(settle)
    except Exception as error:
        answer.set_exception(error)


def _ask_all(waiting: Sequence[tuple[Callable[[], Any], SafeFuture[Any]]]) -> None:
    for send, answer in waiting:
        _ask(send, answer)


def translated(error: Exception, path: str) -> Exception:
    if isinstance(error, _LOST):
        return MetadataOutcomeUnknownError(f"the answer about {path or 'a transaction'} was lost ({type(error).__name__})")
    match error:
        case kazoo_errors.NodeExistsError():
            return NodeExistsError(f"{path} exists")
        case kazoo_errors.NoNodeError():
            return NoNodeError(f"{path} does not exist")
        case kazoo_errors.BadVersionError():
            return VersionConflictError(f"{path} has another version")
        case kazoo_errors.NotEmptyError():
            return MetadataError(f"{path} has children and cannot be deleted")
        case kazoo_errors.NoAuthError():
            return MetadataDeniedError(f"ZooKeeper's access control does not let this client do that with {path}; nothing was changed")
        case kazoo_errors.KazooException():
            return MetadataError(f"ZooKeeper refused the request about {path}: {type(error).__name__}")
    return error
