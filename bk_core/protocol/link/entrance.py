"""The steps on a new connection before its first request: START_TLS, the handshake, AUTH (wire-protocol.md 10).

All of it is said over v3, also where v2 is spoken afterwards. A request that changes nothing is sent behind each token, because a bookie
whose SASL fails says nothing at all: the answer to that request then tells it at once (LINK-10). Nor does it say why it refuses a client
without credentials. Such a client then sends AUTH for BookieAuthZFactory: a bookie with that provider never answers it, any other refuses
it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from bk_core.errors import BkError, BookieAuthError, BookieRoleError, BookieSecurityError, BookieTlsError, RemoteProtocolError
from bk_core.protocol.link.auth_exchange import AuthExchange, ExplainedExchange
from bk_core.protocol.link.providers import BY_ROLE
from bk_core.protocol.wire import codec_v3
from bk_core.protocol.wire.codec_v2 import frame
from bk_core.protocol.wire.messages import (
    AuthRequest,
    AuthResponse,
    BookieInfoRequest,
    Request,
    Response,
    StartTlsRequest,
    StartTlsResponse,
)
from bk_core.protocol.wire.messages import Status as S

AUTH_DISABLED = "AuthDisabledPlugin"  # wire-protocol.md 10.1
FRAME_BYTES_MAX = 65_536
"""The longest answer that is taken before this client is admitted."""
NAME_MAX = 64
"""The characters of a name sent by a bookie that a message shows."""
ANSWERS_MAX = 64
"""The most answers that are taken before: no exchange has so many, and one without an end would keep everybody else waiting."""


@dataclass(frozen=True, slots=True)
class Say:
    """Send these bytes."""

    frame: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class BeginTls:
    """Begin the handshake; ``Entrance.secured`` follows it. Everything later goes through TLS."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The connection serves requests from now on."""


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """The connection is to be closed, and ``error`` is the reason."""

    error: BookieSecurityError


Step = Say | BeginTls | Admitted | TurnedAway


class _Stage(Enum):
    TLS_ASKED = auto()
    HANDSHAKE = auto()
    AUTH = auto()
    LAST_LOOK = auto()
    WHY = auto()


def _shown(name: str) -> str:
    """Return a name that a bookie sent, for messages: it may send any, of any length."""
    return repr(name if len(name) <= NAME_MAX else f"{name[:NAME_MAX]}...")


class Entrance:
    """A machine for one connection. ``begin`` is called once; then ``received`` with each payload and ``secured`` after the handshake. Each
    returns the steps to take, in order."""

    def __init__(self, bookie: str, *, tls: bool, exchange: AuthExchange | None) -> None:
        self._bookie = bookie
        self._tls = tls
        self._exchange = exchange
        self._plugin = "" if exchange is None else exchange.plugin
        self._stage = _Stage.TLS_ASKED
        self._number = self._answers = self._tokens = 0
        self._asked = 0  # the number of the request that was sent for its answer alone

    def begin(self) -> list[Step]:
        return [self._say(StartTlsRequest(self._next()))] if self._tls else self._authenticate()

    def secured(self) -> list[Step]:
        return self._authenticate()

    @property
    def awaits(self) -> str:
        """The name of what is waited for, for messages."""
        names = {_Stage.TLS_ASKED: "START_TLS", _Stage.HANDSHAKE: "the TLS handshake", _Stage.AUTH: "AUTH"}
        return names.get(self._stage, "the first request")

    def received(self, payload: bytes) -> list[Step]:
        """Raises RemoteProtocolError for what does not belong here."""
        self._answers += 1
        if self._answers > ANSWERS_MAX:
            raise RemoteProtocolError(f"more than {ANSWERS_MAX} answers came and {self.awaits} is still awaited")
        response = codec_v3.decode_response(payload)
        if isinstance(response, StartTlsResponse):
            return self._start_tls(response)
        is_answer = isinstance(response, AuthResponse) and response.request_id == self._asked - 1
        if self._stage is _Stage.AUTH and isinstance(response, AuthResponse) and is_answer:
            return self._auth(response)
        if self._stage is _Stage.WHY and is_answer:
            return self._away("wants clients that authenticate, and this client has nothing to do so with")
        if self._stage in (_Stage.AUTH, _Stage.LAST_LOOK, _Stage.WHY) and not isinstance(response, AuthResponse):
            return self._looked(response) if response.request_id == self._asked else []  # an earlier one of these
        raise RemoteProtocolError(f"a {type(response).__name__} came while {self.awaits} was awaited")

    def _start_tls(self, response: StartTlsResponse) -> list[Step]:
        if self._stage is _Stage.TLS_ASKED:
            if response.status is S.OK:
                self._stage = _Stage.HANDSHAKE
                return [BeginTls()]
            text = f"does not speak TLS (START_TLS: {response.status.name.lower().replace('_', ' ')}), and nothing is sent to it in clear"
            return [TurnedAway(BookieTlsError(f"bookie {self._bookie} {text}", bookie=self._bookie))]
        if response.status is S.OK:
            raise RemoteProtocolError("START_TLS was answered once more")
        # unasked: after the handshake, this client is not authenticated yet (wire-protocol.md 10.4)
        return self._ask_why() if self._stage is _Stage.LAST_LOOK and self._exchange is None else []

    def _authenticate(self) -> list[Step]:
        if self._exchange is None:
            self._stage = _Stage.LAST_LOOK
            return [self._look()]
        self._stage = _Stage.AUTH
        return self._token(None)

    def _token(self, of_bookie: bytes | None) -> list[Step]:
        """Take a token of the bookie, or begin where there is none yet."""
        exchange = self._exchange
        assert exchange is not None
        try:
            token = exchange.first() if of_bookie is None else exchange.answer(of_bookie)
            if token is None and exchange.done:
                self._stage = _Stage.LAST_LOOK
                return []
            if token is not None:
                return [self._say(AuthRequest(self._next(), self._plugin, token)), self._look()]
        except BaseException as error:  # of any library; its words may hold what was secret
            return self._failed_exchange(error)
        return self._away(f"has ended AUTH {self._plugin!r} without its own proof")

    def _failed_exchange(self, error: BaseException) -> list[Step]:
        if isinstance(error, KeyboardInterrupt):
            raise error
        told = str(error.args[0]) if isinstance(error, BkError) and error.args else type(error).__name__
        kind = type(error) if isinstance(error, BookieAuthError) else BookieAuthError
        return self._away(f"and this client do not agree on AUTH {self._plugin!r}: {told}", kind)

    def _auth(self, response: AuthResponse) -> list[Step]:
        plugin = self._plugin
        if response.status is not S.OK:
            return self._refused_token(plugin, response.status.name.lower())
        if response.plugin == AUTH_DISABLED:
            return self._away(f"authenticates nobody, and this client is to authenticate ({plugin!r})")
        if response.plugin != plugin:
            return self._away(f"answers by provider {_shown(response.plugin)}, and this client asked for {plugin!r}")
        self._tokens += 1
        return self._token(response.payload)

    def _refused_token(self, plugin: str, status: str) -> list[Step]:
        """Tell a bookie that refuses to begin from one that did not like what came then. Apache's says nothing in its place."""
        if self._tokens:
            return self._refused_secret()
        clear = "" if self._tls else ", perhaps because this client comes without TLS"
        return self._away(f"has another authentication provider than {plugin!r}, or does not take it ({status}){clear}")

    def _refused_secret(self) -> list[Step]:
        exchange, who = self._exchange, f"by AUTH {self._plugin!r}"
        why = "the user or the secret is wrong there"
        if isinstance(exchange, ExplainedExchange):  # no other promises that its text holds no secret
            try:
                who, why = str(exchange), exchange.refused(self._tokens)
            except BaseException as error:
                return self._failed_exchange(error)
        return self._away(f"does not take this client ({who}): {why}")

    def _ask_why(self) -> list[Step]:
        """Find out which provider a bookie has that refuses a client without an exchange."""
        self._stage = _Stage.WHY
        return [self._say(AuthRequest(self._next(), BY_ROLE, b"")), self._look()]

    def _looked(self, response: Response) -> list[Step]:
        if response.status is not S.UNAUTHORIZED:
            try:
                is_in = self._stage is _Stage.LAST_LOOK or self._exchange is None or self._exchange.done
            except BaseException as error:
                return self._failed_exchange(error)
            if is_in:
                return [Admitted()]
            return self._away("serves this client before it has given its own proof")
        exchange = self._exchange
        if exchange is None and self._stage is _Stage.LAST_LOOK:
            return self._ask_why()
        if exchange is None and self._tls:
            text = (
                "does not admit this client's certificate: its role (OU=0:ROLE) is none of the bookie's authorizedRoles, or it shows none"
            )
            return self._away(text, BookieRoleError)
        if exchange is None:
            return self._away("admits by the role in a certificate, and this client comes without TLS", BookieRoleError)
        return self._refused_secret()

    def _look(self) -> Say:
        self._asked = self._next()
        return self._say(BookieInfoRequest(self._asked, 0))

    def _away(self, text: str, kind: type[BookieAuthError] = BookieAuthError) -> list[Step]:
        return [TurnedAway(kind(f"bookie {self._bookie} {text}", bookie=self._bookie))]

    def _next(self) -> int:
        self._number += 1
        return self._number

    @staticmethod
    def _say(request: Request) -> Say:
        return Say(frame(codec_v3.encode_request(request)))
