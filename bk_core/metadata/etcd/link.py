"""The link to a cluster of etcd: one connection at a time, to one of its servers, made again and elsewhere whenever it is lost.

A server takes no part in anything as long as it has no quorum, so a new connection counts only when it has answered a read that needs one.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from bk_core.background import WHEN_WOKEN, BackgroundLoop, WorkerPool
from bk_core.display.words import host_port
from bk_core.errors import (
    CLIENT_CLOSED,
    ArgumentTypeError,
    BkError,
    ClientClosedError,
    MetadataAuthError,
    MetadataHostNameError,
    MetadataTlsError,
    MetadataUnavailableError,
    SecretUnavailableError,
)
from bk_core.metadata.access import EtcdAuth, MetadataTls, not_taken
from bk_core.metadata.etcd._proto import etcd_pb2 as pb
from bk_core.metadata.etcd.certificates import pem_of
from bk_core.metadata.etcd.connection import Connection, Failure, check_fork
from bk_core.metadata.etcd.probe import DEFAULT_PORT, look
from bk_core.metadata.etcd.words import Meaning, error_of, meaning_of
from bk_core.metadata.tree.asking import AskedAside
from bk_core.metadata.tree.connected import KNOWN_ADDRESS_S
from bk_core.metadata.uri import split_hosts
from bk_core.protocol.session.outage import Connection as News
from bk_core.protocol.session.outage import Welcome
from bk_core.protocol.session.reach import ETCD, Found, Reach, is_at_odds, is_hopeless, told
from bk_core.secrets import is_another, text_of, told_of
from bk_core.threads import Home, Monitor, SafeFuture, wait_done

_LOG = logging.getLogger(__name__)
_WAITS = logging.getLogger("bk_core.metadata.waits")  # a name of its own, because `bk` shows its lines

_FIRST_LOOK_S = 0.3
_LOOK_S = 1.5
LATE_S = 2.0  # a wait that is longer is told of
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.05, 1.0  # between two rounds through all servers
_MORE_S = 0.2  # that a caller waits longer than grpc, which tells what happened
_REFUSED_AGAIN_S = 10.0  # after which a call tries once more with the same secret
_PASSWORD = "the password of etcd"


class Link:
    """The connection with deadlines and with this project's errors. ``on_connection`` is told of each change, True when there is one."""

    def __init__(
        self,
        hosts: str,
        session_timeout_s: float,
        on_connection: Callable[[bool], None],
        *,
        auth: EtcdAuth | None = None,
        tls: MetadataTls | None = None,
    ) -> None:
        check_fork()
        self.home = Home()
        self._hosts, self._tls, self._auth = hosts, tls, auth
        self._servers = split_hosts(hosts, DEFAULT_PORT)
        random.shuffle(self._servers)
        self._session_timeout_s = session_timeout_s
        self._on_connection = on_connection
        self._condition = Monitor()
        self._reviving = AskedAside("bk-etcd-secret", f"the function of {_PASSWORD}", self._begin_again)
        self._password = AskedAside("bk-etcd-password", f"the function of {_PASSWORD}", self._read_password)
        self._connection: Connection | None = None
        self._connecting: Connection | None = None
        self._welcome = Welcome()
        self._pause_s = _PAUSE_FIRST_S
        self._news = News(f"etcd at {hosts}")
        self._refused: MetadataAuthError | None = None
        self._refused_s = 0.0
        self._shown = b""  # the password that was refused
        self._trouble: BkError | None = None  # with a secret, at the last try
        self._was_taken = self._closed = self._has_told = self._begun = False
        self._speaker = WorkerPool("bk-etcd-ask")
        self._loop = BackgroundLoop("bk-etcd", self._turn, of_client=True)

    # connecting -----------------------------------------------------------------------------------------------------

    def start(self, timeout_s: float, patient: bool) -> None:
        """Connect for the first time. Without ``patient`` it is given up at once where waiting does not help (SES-11)."""
        begun = time.monotonic()
        if self._tls is not None:
            self._tls.context()  # a file that cannot be used is told of before anything is waited for
        if self._auth is not None:
            self._password.answer(begun + timeout_s)  # neither is a password that is not there
        self._loop.start()
        self._begun = True
        found: list[Found] = []
        if (not patient or self._tls is not None) and not self._wait_connected(min(timeout_s, _FIRST_LOOK_S), begun):
            found = look(self._hosts, min(timeout_s, _LOOK_S), self._tls)
            helpless = is_hopeless(found) and (not patient or is_at_odds(found))
            if helpless and not self.connected and not self._closed:
                raise self._unavailable(time.monotonic() - begun, found)
        self._await_connection(max(0.0, begun + timeout_s - time.monotonic()), begun, found)

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def connection(self) -> Connection | None:
        """The connection that there is now."""
        return self._connection

    @property
    def identity(self) -> str:
        """The identity of this client at etcd, for messages."""
        return "which gives no credentials" if self._auth is None else str(self._auth)

    @property
    def servers(self) -> tuple[tuple[str, int], ...]:
        """Host and port of all servers that the URI names."""
        return tuple(self._servers)

    @property
    def server(self) -> tuple[str, int]:
        """Host and port of the server that is spoken to, or that was last."""
        return self._servers[0]

    def _turn(self) -> float | None:
        if self._closed:
            return None
        if self.connected or self._is_over():
            return WHEN_WOKEN
        for _ in self._servers:
            if self._try_server(*self._servers[0]):
                self._pause_s = _PAUSE_FIRST_S
                return WHEN_WOKEN
            if self._is_over():
                return WHEN_WOKEN
            self._servers = [*self._servers[1:], self._servers[0]]
        pause, self._pause_s = self._pause_s, min(2 * self._pause_s, _PAUSE_MAX_S)
        return pause * random.uniform(0.5, 1.0)

    def _is_over(self) -> bool:
        return self._closed or self._refused is not None

    def _try_server(self, host: str, port: int) -> bool:
        """Return True when this server serves this client, which is then connected."""
        wait_s = self._welcome.waits_s(max(self._session_timeout_s, 1.0))
        made: Connection | None = None
        try:
            made = Connection(host_port(host, port), None if self._tls is None else pem_of(self._tls, host, port, wait_s))
            with self._condition:
                self._connecting = made
            self._check_open()
            if self._auth is not None:
                made.token = self._token(made, self._auth, wait_s)
            self.ask(made, "range", pb.RangeRequest(key=b"\0", limit=1, keys_only=True), wait_s)
        except Failure as failure:
            meaning = meaning_of(failure.code, failure.words)
            if meaning is Meaning.DENIED:  # of this key; it serves
                self._settle(made)
                return True
            if meaning is Meaning.NOT_TAKEN:
                self._refuse(failure)
            elif failure.code == "DEADLINE_EXCEEDED":
                self._welcome.missed()
            self._give_up(made)
            return False
        except Exception as error:  # a secret, a file of TLS, no descriptors: it is tried again, as after a server that is away
            if isinstance(error, SecretUnavailableError | ArgumentTypeError):  # the latter is of a function that returned no text
                self._trouble = error
            _LOG.debug("no connection to %s: %s", host_port(host, port), told_of(error, "what it takes"))
            self._give_up(made)
            return False
        self._settle(made)
        return True

    def reach(self, host: str, port: int, wait_s: float) -> Connection:
        """Return a connection of the caller's own to one server, beside the one that there is. Raises Failure, and what the files and
        secrets raise."""
        made = Connection(host_port(host, port), None if self._tls is None else pem_of(self._tls, host, port, wait_s))
        try:
            if self._auth is not None:
                made.token = self._token(made, self._auth, wait_s)
        except BaseException:
            made.close()
            raise
        return made

    def _check_open(self) -> None:
        if self._closed:
            raise Failure("CANCELLED", "closed")

    def _token(self, made: Connection, auth: EtcdAuth, wait_s: float) -> str:
        password = self._password.answer(time.monotonic() + wait_s)
        self._shown = password.encode()
        answer = self.ask(made, "authenticate", pb.AuthenticateRequest(name=auth.user, password=password), wait_s)
        self._trouble = None
        return str(answer.token)

    def _read_password(self) -> str:
        assert self._auth is not None
        return text_of(_PASSWORD, self._auth.password)

    @staticmethod
    def ask(made: Connection, method: str, request: Any, wait_s: float) -> Any:
        """Return the answer of one server. Raises Failure."""
        answer: SafeFuture[Any] = SafeFuture()
        made.ask(method, request, wait_s, answer.set_result)
        try:
            found = answer.result(wait_s + _MORE_S)
        except TimeoutError:
            raise Failure("DEADLINE_EXCEEDED", "no answer") from None
        if isinstance(found, Failure):
            raise found
        return found

    def _settle(self, made: Connection | None) -> None:
        self._welcome.came()
        with self._condition:
            self._connecting = None
            if self._closed:
                return self._give_up(made)
            self._connection, self._was_taken, self._trouble = made, True, None
            self._condition.notify_all()
            news = self._news.changed(True, time.monotonic_ns())
        if news is not None:
            _LOG.warning("%s", news)
        self._on_connection(True)

    def _give_up(self, made: Connection | None) -> None:
        self._connecting = None
        if made is not None:
            made.close()

    def _refuse(self, failure: Failure) -> None:
        with self._condition:
            self._refused, self._refused_s = self._not_taken(failure.words), time.monotonic()
            self._condition.notify_all()
        if self._was_taken:
            _LOG.warning("%s", self._refused.args[0])

    def _not_taken(self, words: str) -> MetadataAuthError:
        if "user name" in words:
            reason = "it takes no client that does not authenticate, or knows no such user"
        elif "not enabled" in words:
            reason = "it offers no authentication: leave user and password out"
        else:
            reason = "the user or the password is wrong there"
        return not_taken("etcd", self._hosts, self._auth, reason)

    def lost(self, connection: Connection) -> None:
        """Note that a connection is no good any more. Another one is made at once."""
        with self._condition:
            if self._connection is not connection:
                return
            self._connection = None
            news = None if self._closed else self._news.changed(False, time.monotonic_ns())
            self._servers = [*self._servers[1:], self._servers[0]]
        connection.close()
        if news is not None:
            _LOG.warning("%s", news)
        self._on_connection(False)
        self._loop.wake()

    # asking -----------------------------------------------------------------------------------------------------------

    def call(self, method: str, request: Any, timeout_s: float, path: str = "", *, changes: bool = True) -> Any:
        """Return the response to a request about a path; ``changes`` is False for one that only reads. It is sent once; a server that says
        that a token has ended did nothing, so then it is sent again with a new one. Raises this project's errors, and Failure where the
        session has ended or a revision is gone."""
        self.home.check("metadata store")
        deadline = time.monotonic() + timeout_s
        while True:
            connection = self._await_connection(deadline - time.monotonic())
            found = self._answer(connection, method, request, deadline)
            if not isinstance(found, Failure):
                self._has_told = False
                return found
            meaning = meaning_of(found.code, found.words)
            if self._closed:
                raise ClientClosedError(CLIENT_CLOSED) from found
            if meaning is Meaning.LOST or (meaning is Meaning.TOKEN and not self._renewed(connection, deadline)):
                self.lost(connection)
            if meaning is Meaning.NOT_TAKEN:
                self.lost(connection)
                raise self._not_taken(found.words) from found
            if meaning in (Meaning.NO_LEASE, Meaning.COMPACTED):
                raise found
            if meaning is not Meaning.TOKEN or time.monotonic() >= deadline:
                raise error_of(found.code, found.words, path, self.identity, changes=changes) from found

    def _renewed(self, connection: Connection, deadline: float) -> bool:
        """Return True if the connection has another token than the one that has ended."""
        if self._auth is None:
            return False
        try:
            connection.token = self._token(connection, self._auth, max(deadline - time.monotonic(), 0.001))
        except (Failure, BkError) as error:
            _LOG.debug("no new token from %s: %s", connection.address, error)
            return False
        return True

    def _answer(self, connection: Connection, method: str, request: Any, deadline: float) -> Any:
        answer: SafeFuture[Any] = SafeFuture()
        left_s = max(deadline - time.monotonic(), 0.001)
        self._speaker.submit(partial(connection.ask, method, request, left_s, answer.set_result))
        if left_s > LATE_S and not wait_done(answer, LATE_S):
            self._tell_of_wait()
        try:
            return answer.result(max(deadline + _MORE_S - time.monotonic(), 0.001))
        except TimeoutError:
            return Failure("DEADLINE_EXCEEDED", "no answer")

    def _await_connection(self, timeout_s: float, begun: float | None = None, found: Sequence[Found] = ()) -> Connection:
        """Wait for a connection. ``begun`` is the time since which the caller waits, if longer. A long wait ends with a look at the causes
        (SES-11); ``found`` is the result of an earlier look."""
        begun = time.monotonic() if begun is None else begun
        deadline = time.monotonic() + timeout_s
        look_s = min(_LOOK_S, timeout_s / 2) if timeout_s > KNOWN_ADDRESS_S else 0.0
        if (there := self._wait_connected(timeout_s - look_s, begun)) is not None:
            return there
        found = look(self._hosts, look_s, self._tls) if look_s else found
        if (there := self._wait_connected(deadline - time.monotonic(), begun)) is not None:
            return there
        raise self._unavailable(time.monotonic() - begun, found)

    def _unavailable(self, waited_s: float, found: Sequence[Found]) -> MetadataUnavailableError:
        text = told(self._hosts, waited_s, found, ETCD)
        if self._trouble is not None:
            return MetadataUnavailableError(f"{text}; {self._trouble.args[0]}")
        if not is_at_odds(found):
            return MetadataUnavailableError(text)
        return MetadataHostNameError(text) if any(one.reach is Reach.OTHER_HOST for one in found) else MetadataTlsError(text)

    def _wait_connected(self, timeout_s: float, begun: float) -> Connection | None:
        """Return the connection if there is one in time. Raises ClientClosedError, and MetadataAuthError if the servers do not take the
        credentials."""
        deadline, late = time.monotonic() + timeout_s, begun + LATE_S
        if late <= deadline and self._connected_by(late) is None:
            self._tell_of_wait()
        return self._connected_by(deadline)

    def _connected_by(self, deadline: float) -> Connection | None:
        with self._condition:
            self._condition.wait_for(
                lambda: self._connection is not None or self._closed or self._refused is not None, max(0.0, deadline - time.monotonic())
            )
            if self._closed:
                raise ClientClosedError(CLIENT_CLOSED)
            there, refused = self._connection, self._refused
        if there is None and refused is not None:
            if not self._revived(refused, deadline):
                raise refused.retold(str(refused.args[0]))
            return self._connected_by(deadline)
        return there

    def _revived(self, refused: MetadataAuthError, deadline: float) -> bool:
        """Begin anew if there is another secret than the one that was refused, which a function or a file may give, or some seconds after
        the refusal, because the servers may have been set right. Returns False if it stands. Raises MetadataAuthError if that is not known
        by the deadline."""
        try:
            return self._reviving.answer(deadline)
        except SecretUnavailableError as error:
            raise refused.retold(f"{refused.args[0]}; {error.args[0]}") from None

    def _begin_again(self) -> bool:
        """Begin anew, on a thread of its own. Returns False if the refusal stands."""
        if self._refused is None:  # an earlier call began
            return True
        is_old = time.monotonic() - self._refused_s > _REFUSED_AGAIN_S
        if not is_old and (self._auth is None or not is_another(_PASSWORD, self._auth.password, self._shown)):
            return False
        self._refused = None
        self._loop.wake()
        return True

    def _tell_of_wait(self) -> None:
        """Tell once of a silence, however many wait in it."""
        if not self._has_told:
            self._has_told = True
            _WAITS.info("waiting for the metadata service at %s, which does not answer", self._hosts)

    def close(self, wait_s: float) -> None:
        """End the connection; this may be called again."""
        with self._condition:
            self._closed = True
            connection, self._connection = self._connection, None
            connecting = self._connecting
            self._condition.notify_all()
        self._loop.stop()  # also one that was never started
        for one in (connecting, connection):
            if one is not None:
                one.close()
        if self._begun:
            self._loop.join(wait_s)
        with suppress(ClientClosedError):
            self._speaker.close(wait_s)
