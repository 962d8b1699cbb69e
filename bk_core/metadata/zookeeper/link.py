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
from kazoo.protocol.serialization import SASL
from kazoo.protocol.states import KeeperState
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Id, Permissions

from bk_core.background import WorkerPool
from bk_core.errors import (
    CLIENT_CLOSED,
    BkError,
    ClientClosedError,
    MetadataAuthError,
    MetadataDeniedError,
    MetadataError,
    MetadataHostNameError,
    MetadataOutcomeUnknownError,
    MetadataTlsError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    SecretUnavailableError,
    VersionConflictError,
)
from bk_core.metadata import secured
from bk_core.metadata.access import MetadataTls, ZooKeeperAuth, identity_of, not_taken
from bk_core.metadata.tree.asking import AskedAside
from bk_core.metadata.tree.connected import KNOWN_ADDRESS_S, STOP_S
from bk_core.metadata.uri import split_hosts
from bk_core.metadata.zookeeper import tickets
from bk_core.metadata.zookeeper.logging import quiet_logger
from bk_core.metadata.zookeeper.polling import ready
from bk_core.metadata.zookeeper.probe import DEFAULT_PORT, look
from bk_core.metadata.zookeeper.reconnecting import RECONNECT, Reconnecting
from bk_core.protocol.session.outage import Connection, Welcome
from bk_core.protocol.session.reach import Found, Reach, is_at_odds, is_hopeless, told
from bk_core.sasl import check_sasl
from bk_core.secrets import is_another, text_of, told_of
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
_FIRST_LOOK_S = 0.3  # an existing server gives a session in a fraction of this
_LOOK_S = 1.5
_SECRET_S = 5.0  # for a function of the program, after which those who wait are told that it hangs
_REFUSED_AGAIN_S = 10.0  # after which a call tries once more with the same secret
LATE_S = 2.0  # a wait that is longer is told of
_TOKENS_MAX = 16  # of one exchange, which has two or three; a server without SASL answers each with an empty one, for ever
_DROPS_MAX = 3  # connections that end in the midst of SASL, one after another; one may be of a server that was killed
EVERYBODY = OPEN_ACL_UNSAFE


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads. They are threads of ours, and end with the process after everything that the program has given to ``atexit``.

    kazoo itself waits for the answer to a request for a session as long as the session may last; this handler waits as SES-12 says.
    """

    def __init__(self, tls: MetadataTls | None, prepare: Callable[[], None]) -> None:
        """``prepare`` is called before each connection. It may raise OSError."""
        super().__init__()
        self._welcome = Welcome()
        self._new: Any = None  # the connection on which no answer has come yet
        self._tls = tls
        self._prepare = prepare

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def run() -> None:
            mark_own()
            func(*args, **kwargs)

        return super().spawn(run)

    def create_connection(self, *, address: Any, hostname: str, timeout: float, **others: Any) -> Any:
        self._prepare()
        if self._tls is None:
            self._new = super().create_connection(address, hostname=hostname, timeout=timeout, **others)
        else:
            self._new = secured.connect(self._tls, address, hostname, timeout)
        return self._new

    def select(self, readers: Any, writers: Any, errors: Any, timeout: float | None = None) -> Any:
        if decrypted := secured.ready(readers):
            others = ready([one for one in readers if one not in decrypted], writers, 0)
            return [*decrypted, *others[0]], others[1], others[2]
        if self._new is None or readers != [self._new] or timeout is None:
            return ready(readers, writers, timeout)
        found = ready(readers, writers, self._welcome.waits_s(timeout))
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

    def __init__(
        self,
        hosts: str,
        session_timeout_s: float,
        on_connection: Callable[[bool], None],
        *,
        auth: ZooKeeperAuth | None = None,
        tls: MetadataTls | None = None,
    ) -> None:
        self.home = Home()
        self._auth = auth
        self._tls = tls
        self._shown = b""  # the password, at the last attempt to connect
        if auth is not None and auth.scheme == "kerberos":
            tickets.check(identity_of(auth))
        self._reviving = AskedAside("bk-zookeeper-secret", "the function of the password of ZooKeeper", self._begin_again)
        self._secrets = AskedAside("bk-zookeeper-secrets", "the function of the password of ZooKeeper", self._read_secrets)
        self._trouble: BkError | None = None  # with a secret, at the last attempt to connect
        if tls is not None:
            tls.context()
        self.client = KazooClient(
            hosts=hosts,
            timeout=session_timeout_s,
            connection_retry=dict(RECONNECT),
            logger=quiet_logger(),
            handler=_Handler(tls, self._prepare),
            sasl_options=self._sasl_options(),
            auth_data=self._auth_data(),
            default_acl=_acl_of(auth),
        )
        made = self.client._connection
        made.retry_sleeper = Reconnecting(**RECONNECT, sleep_func=made.retry_sleeper.sleep_func, interrupt=made.retry_sleeper.interrupt)
        self._refused = self._was_taken = False
        self._refused_s = 0.0
        self._servers = len(split_hosts(hosts, DEFAULT_PORT))
        self._drops = self._refusals = 0
        if auth is not None and auth.scheme in ("sasl", "kerberos"):
            self._watch_sasl()
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
        try:
            self._speaker.call(self.client.start_async).result(timeout_s)
        except TimeoutError:
            raise self._unavailable(time.monotonic() - begun, ()) from None
        found: list[Found] = []
        if (not patient or self._tls is not None) and not self._wait_connected(min(timeout_s, _FIRST_LOOK_S), begun):
            found = look(self._hosts, min(timeout_s, _LOOK_S), self._tls)
            helpless = is_hopeless(found) and (not patient or is_at_odds(found))  # no server that starts again changes its certificate
            if helpless and not self.connected and not self._closed:
                raise self._unavailable(time.monotonic() - begun, found)
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
        # ZooKeeper answers in order, so this thread is woken once, by the last answer, and has all others then
        results = [self._result(answer, deadline, path) for (_, answer), (_, path) in zip(reversed(waiting), reversed(asked), strict=True)]
        return results[::-1]

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
            if isinstance(error, kazoo_errors.AuthFailedError):
                return self._not_taken()
            if isinstance(error, kazoo_errors.SessionClosedRequireSaslError):
                return self._not_taken("it takes no client that does not authenticate, or not by this scheme")
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
        found = look(self._hosts, look_s, self._tls) if look_s else found
        if not self._wait_connected(deadline - time.monotonic(), begun):
            raise self._unavailable(time.monotonic() - begun, found)

    def _unavailable(self, waited_s: float, found: Sequence[Found]) -> MetadataUnavailableError:
        text = told(self._hosts, waited_s, found)
        if self._trouble is not None:
            return MetadataUnavailableError(f"{text}; {self._trouble.args[0]}")
        if not is_at_odds(found):
            return MetadataUnavailableError(text)
        return MetadataHostNameError(text) if any(one.reach is Reach.OTHER_HOST for one in found) else MetadataTlsError(text)

    def _wait_connected(self, timeout_s: float, begun: float) -> bool:
        """Return True if there is a connection in time. ``begun`` is the time since which the caller waits. Raises ClientClosedError if the
        store is closed meanwhile, MetadataAuthError if the servers do not take the credentials."""
        deadline, late = time.monotonic() + timeout_s, begun + LATE_S
        if late <= deadline and not self._is_connected_by(late):
            self._tell_of_wait()
        return self._is_connected_by(deadline)

    def _is_connected_by(self, deadline: float) -> bool:
        with self._condition:
            self._condition.wait_for(lambda: self.connected or self._closed or self._refused, max(0.0, deadline - time.monotonic()))
            if self._closed:
                raise ClientClosedError(CLIENT_CLOSED)
            refused = self._refused
        if refused and not self._revived(deadline):
            raise self._not_taken()
        return self._is_connected_by(deadline) if refused else self.connected

    def _revived(self, deadline: float) -> bool:
        """Begin anew if there is another secret than the one that was refused, which a function or a file may give, or some seconds after
        the refusal. Returns False if it stands. Raises MetadataAuthError if that is not known by the deadline."""
        try:
            return self._reviving.answer(deadline)
        except SecretUnavailableError as error:
            raise self._not_taken(f"{self._reason}; {error.args[0]}") from None

    def _begin_again(self) -> bool:
        """Begin anew, on a thread of its own. Returns False if the refusal stands."""
        if not self._refused:  # an earlier call began
            return True
        if not self._has_another():
            return False
        self._refused = False
        begun = self._speaker.call(self.client.start_async)  # it ends what is left of the time before
        if wait_done(begun, STOP_S):
            begun.result()
        return True

    def _has_another(self) -> bool:
        """Return True if what was refused may be taken now: another secret, or after a while the same one, because the servers may have
        been set right."""
        if self._auth is None:
            return False
        if time.monotonic() - self._refused_s > _REFUSED_AGAIN_S:
            return True
        return self._auth.scheme != "kerberos" and is_another("password", self._auth.password, self._shown)

    def _tell_of_wait(self) -> None:
        """Tell once of a silence, however many wait in it."""
        if not self._has_told:
            self._has_told = True
            _WAITS.info("waiting for the metadata service at %s, which does not answer", self._hosts)

    # the identity -------------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """The identity of this client at ZooKeeper, for messages."""
        return "which gives no credentials" if self._auth is None else str(self._auth)

    @property
    def hint(self) -> str:
        """The end of a message about a right that is missing: with some identities there is one cause more."""
        digest = self._auth is not None and self._auth.scheme == "digest"
        return "; with a wrong password ZooKeeper takes it for another user" if digest else ""

    def _not_taken(self, reason: str | None = None) -> MetadataAuthError:
        return not_taken("ZooKeeper", self._hosts, self._auth, reason or self._reason)

    @property
    def _reason(self) -> str:
        """The causes of a refusal, about which ZooKeeper says nothing."""
        if self._auth is None or self._auth.scheme != "kerberos":
            return "the user or the password is wrong there, or it offers no such authentication"
        if self._trouble is not None:
            return str(self._trouble.args[0])
        return "its key, its principal or its clock may be another one, or it offers no Kerberos; its log says why"

    def _sasl_options(self) -> dict[str, Any] | None:
        auth = self._auth
        if auth is None or auth.scheme not in ("sasl", "kerberos"):
            return None
        check_sasl("ZooKeeper")
        if auth.scheme == "kerberos":
            return tickets.options(identity_of(auth))
        password = text_of("the password of ZooKeeper", auth.password)
        self._shown = password.encode()
        return {"mechanism": "DIGEST-MD5", "username": auth.user, "password": password}

    def _read_secrets(self) -> tuple[set[tuple[str, str]], dict[str, Any] | None]:
        return self._auth_data(), self._sasl_options()

    def _auth_data(self) -> set[tuple[str, str]]:
        auth = self._auth
        if auth is None or auth.scheme != "digest":
            return set()
        return {("digest", _Hidden(f"{auth.user}:{text_of('the password of ZooKeeper', auth.password)}"))}

    def _prepare(self) -> None:
        """Read the secrets anew before a connection is made. Raises OSError, after which kazoo tries again, as after a connection that
        failed; any other error would end its thread for good."""
        try:
            if self._auth is not None:
                found = self._secrets.answer(time.monotonic() + _SECRET_S)
                self.client.auth_data, self.client._connection.sasl_options = found
            if self._auth is None or self._auth.scheme != "kerberos":  # about which ``_watch_sasl`` knows more
                self._trouble = None
        except Exception as error:
            failed = told_of(error, "reading the secrets for ZooKeeper")
            self._trouble = error if isinstance(error, BkError) else SecretUnavailableError(failed)
            raise OSError("a secret could not be read") from None

    def _watch_sasl(self) -> None:
        """Tell a server that dies during SASL from one that says no, which kazoo does not: it gives up after either. And have it end as one
        that was refused after a failure that it does not expect, which would end its thread without a word."""
        connection = self.client._connection
        authenticate, submit = connection._authenticate_with_sasl, connection._submit

        def bounded(request: Any, timeout: float, xid: int | None = None) -> Any:
            if isinstance(request, SASL) and xid is not None and xid > _TOKENS_MAX:  # kazoo counts them from 1
                raise kazoo_errors.AuthFailedError("the exchange has no end")
            return submit(request, timeout, xid)

        def watched(host: str, timeout: float) -> None:
            try:
                authenticate(host, timeout)
            except BkError as error:  # no ticket now; a keytab, a cache or a KDC may come back
                self._trouble = error
                raise kazoo_errors.ConnectionDropped("no ticket") from None
            except kazoo_errors.AuthFailedError as error:
                cause = error.__cause__
                self._trouble = cause if isinstance(cause, BkError) else None
                self._drops += 1
                if isinstance(error.__cause__, kazoo_errors.ConnectionDropped) and self._drops < _DROPS_MAX:
                    raise kazoo_errors.ConnectionDropped("the connection ended during SASL") from error
                self._refusals += 1
                if self._refusals < self._servers:  # kazoo goes on to the next one then, which may know the user
                    raise kazoo_errors.ConnectionDropped("one of several servers says no") from error
                self._note_refusal()
                raise
            except (OSError, KazooTimeoutError, kazoo_errors.ConnectionDropped):
                raise
            except Exception as error:
                raise kazoo_errors.AuthFailedError(type(error).__name__) from error
            self._drops, self._refusals, self._was_taken, self._trouble = 0, 0, True, None

        connection._submit = bounded
        connection._authenticate_with_sasl = watched

    def _note_refusal(self) -> None:
        """Note a refusal, because kazoo tells of the first one alone."""
        with self._condition:
            self._refused, self._refused_s, self._refusals = True, time.monotonic(), 0
            self._condition.notify_all()

    def _on_state(self, state: str) -> None:
        with self._condition:
            if not self._refused and self.client.client_state == KeeperState.AUTH_FAILED:
                self._refused, self._refused_s = True, time.monotonic()
            self.connected = state == KazooState.CONNECTED
            news = None if self._closed or self._refused else self._news.changed(self.connected, time.monotonic_ns())
            if self._refused and self._was_taken and not self._closed:
                news = str(self._not_taken().args[0])
            self._condition.notify_all()
        if news is not None:
            _LOG.warning("%s", news)
        self._on_connection(state == KazooState.CONNECTED)


class _Hidden(str):
    """A text that is sent, and not shown in what kazoo logs of the request."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def _acl_of(auth: ZooKeeperAuth | None) -> list[ACL] | None:
    """Return what kazoo puts on each node that is created; None is open to everybody."""
    if auth is None or auth.acl == "open":
        return None
    return [*CREATOR_ALL_ACL, *(ACL(Permissions.READ, Id(*reader.split(":", 1))) for reader in auth.readers)]


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
        case kazoo_errors.InvalidACLError():
            text = f"ZooKeeper does not take the rights that {path} was to have: it knows no such reader"
            return MetadataDeniedError(f"{text}, or this client has no identity that could own it; nothing was changed")
        case kazoo_errors.KazooException():
            return MetadataError(f"ZooKeeper refused the request about {path}: {type(error).__name__}")
    return error
