"""The gate of a bookie: what a connection must do before it is served (wire-protocol.md 10)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from bk_core.errors import BookieKerberosError
from bk_core.protocol.bookie.answers import failure
from bk_core.protocol.bookie.digest_md5 import DigestMd5Server
from bk_core.protocol.bookie.gssapi_server import GssapiServer
from bk_core.protocol.bookie.listing import EntryListing
from bk_core.protocol.bookie.roles import role_of
from bk_core.protocol.bookie.runs import AddsAnswer, RequestedAdds, RequestedReads
from bk_core.protocol.bookie.stream import Answer, Unit
from bk_core.protocol.link.providers import BY_ROLE, SASL
from bk_core.protocol.wire.messages import AuthRequest, AuthResponse, StartTlsRequest, StartTlsResponse, Status

PROOFS_MAX = 2  # wrong ones on one connection: who has mistyped connects again


class Then(Enum):
    """The next step after an answer."""

    GO_ON = auto()
    BEGIN_TLS = auto()  # once the answer is sent
    SERVE = auto()  # every later request, without this gate
    CLOSE = auto()
    WAIT = auto()  # for the next request: ``early`` says what follows


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """The answer to one request; None is silence. ``refused`` is what the log says of a proof or ticket that is wrong."""

    answer: Answer | None
    then: Then = Then.GO_ON
    refused: str | None = None


class Gate:
    """A machine for one connection. ``users`` are passwords by name, or None where nobody needs one; ``nonce`` makes text that is new each
    time; with ``roles`` a certificate must have one of them; ``kerberos`` is an exchange for clients with tickets, in place of passwords.
    Apache's bookies with TLS serve those who come without; this gate does not."""

    def __init__(
        self,
        *,
        tls: bool,
        users: Mapping[str, str] | None,
        nonce: Callable[[], str],
        roles: Collection[str] = (),
        kerberos: GssapiServer | None = None,
    ) -> None:
        self._tls = tls
        self._kerberos = kerberos
        self._is_refused = False  # by Kerberos, which nobody tries twice on one connection
        self._users = users
        self._roles = roles
        self._asked_tls = 0  # the number of the request
        self._nonce = nonce
        self._exchange: DigestMd5Server | None = None
        self._wrong = 0  # proofs so far
        self.is_secured = False

    @property
    def proof(self) -> str:
        """The name of what a client proves itself with: "password" or "ticket"."""
        return "password" if self._kerberos is None else "ticket"

    def secured(self, unit: str | None = None) -> GateAnswer:
        """Note the end of the handshake. ``unit`` is the first organizational unit in the client's certificate, None for none. Return what
        follows: a client whose role is not admitted is told so unasked, as by Apache's bookies."""
        self.is_secured = True
        if self._roles and role_of(unit) not in self._roles:
            return GateAnswer(StartTlsResponse(self._asked_tls, Status.IO_ERROR))
        return GateAnswer(None, Then.GO_ON if self._wants_auth else Then.SERVE)

    @property
    def _wants_auth(self) -> bool:
        return self._users is not None or self._kerberos is not None

    def may_wait(self, units: Sequence[Unit | EntryListing]) -> bool:
        """Return True if requests that came in clear behind START_TLS may be answered inside of TLS: at most one token, which is empty or a
        ticket of Kerberos. Neither is a secret, and whoever else has put it there cannot go on with it inside of TLS."""
        if not units:
            return True
        return len(units) == 1 and isinstance(units[0], AuthRequest) and (self._kerberos is not None or not units[0].payload)

    def asked(self, unit: Unit, *, is_v2: bool) -> GateAnswer:
        """Answer a request of a connection that is not served yet."""
        if isinstance(unit, StartTlsRequest):
            return self._start_tls(unit)
        if isinstance(unit, AuthRequest) and self._wants_auth and (self.is_secured or not self._tls):
            return self._auth(unit, is_v2)
        if isinstance(unit, AuthRequest) and self._wants_auth and unit.plugin == SASL and self.may_wait([unit]):
            return GateAnswer(None, Then.WAIT)
        return self._unserved(unit, is_v2=is_v2)

    def early(self, token: AuthRequest, behind: Unit | None, *, is_v2: bool) -> GateAnswer:
        """Say what follows for a token that came in clear, with the request ``behind`` it, None if none comes. Java's client sends its
        first token before its START_TLS if its connection is made at once (wire-protocol.md 10.4): it is answered inside of TLS. Of others
        it is refused."""
        if isinstance(behind, StartTlsRequest):
            return GateAnswer(None, Then.WAIT)
        return self._unserved(token, is_v2=is_v2)

    def _unserved(self, unit: Unit, *, is_v2: bool) -> GateAnswer:
        """Answer a request that only those may make who are admitted."""
        if self._roles and isinstance(unit, AuthRequest) and unit.plugin == BY_ROLE:
            return GateAnswer(None)  # there is nothing to say to it
        if isinstance(unit, RequestedAdds):
            return GateAnswer(AddsAnswer(unit.ledger_id, unit.first_entry_id, unit.count, Status.UNAUTHORIZED))
        if isinstance(unit, RequestedReads):  # the first read is told why
            return GateAnswer(failure(unit.first(), Status.UNAUTHORIZED), Then.CLOSE)
        if is_v2 and isinstance(unit, AuthRequest):
            return GateAnswer(None, Then.CLOSE)
        return GateAnswer(failure(unit, Status.UNAUTHORIZED))

    def _start_tls(self, request: StartTlsRequest) -> GateAnswer:
        if self.is_secured:
            return GateAnswer(None, Then.CLOSE)
        if not self._tls:
            return GateAnswer(StartTlsResponse(request.request_id, Status.BAD_REQUEST))
        self._asked_tls = request.request_id
        return GateAnswer(StartTlsResponse(request.request_id, Status.OK), Then.BEGIN_TLS)

    def _auth(self, request: AuthRequest, is_v2: bool) -> GateAnswer:
        if request.plugin != SASL:
            return GateAnswer(None, Then.CLOSE) if is_v2 else GateAnswer(failure(request, Status.UNAUTHORIZED))
        if self._kerberos is not None:
            return self._ticket(request, self._kerberos)
        return self._password(request, self._users or {}, is_v2)

    def _ticket(self, request: AuthRequest, exchange: GssapiServer) -> GateAnswer:
        """Take a token. As Apache's bookies, say nothing where it fails, and go on refusing every other request; nor is the last token of
        one that succeeds answered."""
        if self._is_refused:
            return GateAnswer(None)
        try:
            token = exchange.answer(request.payload)
        except BookieKerberosError as error:
            self._is_refused = True
            return GateAnswer(None, refused=str(error.args[0]))
        answer = None if token is None else AuthResponse(request.request_id, Status.OK, SASL, token)
        return GateAnswer(answer, Then.SERVE if exchange.done else Then.GO_ON)

    def _password(self, request: AuthRequest, users: Mapping[str, str], is_v2: bool) -> GateAnswer:
        if self._exchange is None or not request.payload:
            self._exchange = DigestMd5Server(users, self._nonce())
            return GateAnswer(AuthResponse(request.request_id, Status.OK, SASL, self._exchange.challenge()))
        exchange, self._exchange = self._exchange, None  # a nonce serves once
        proof = exchange.proof(request.payload)
        if proof is None:
            self._wrong += 1
            refused = f"a wrong password of user {exchange.claimed!r}"
            if is_v2:  # which has no other way to say so
                return GateAnswer(None, Then.CLOSE, refused)
            then = Then.CLOSE if self._wrong >= PROOFS_MAX else Then.GO_ON
            return GateAnswer(failure(request, Status.UNAUTHORIZED), then, refused)
        return GateAnswer(AuthResponse(request.request_id, Status.OK, SASL, proof), Then.SERVE)
