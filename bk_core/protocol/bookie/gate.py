"""The gate of a bookie: what a connection must do before it is served (wire-protocol.md 10)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from bk_core.protocol.bookie.answers import failure
from bk_core.protocol.bookie.digest_md5 import DigestMd5Server
from bk_core.protocol.bookie.listing import EntryListing
from bk_core.protocol.bookie.roles import role_of
from bk_core.protocol.bookie.runs import AddsAnswer, RequestedAdds, RequestedReads
from bk_core.protocol.bookie.stream import Answer, Unit
from bk_core.protocol.wire.messages import AuthRequest, AuthResponse, StartTlsRequest, StartTlsResponse, Status

PLUGIN = "sasl"
BY_ROLE = "BookieAuthZFactory"


class Then(Enum):
    """The next step after an answer."""

    GO_ON = auto()
    BEGIN_TLS = auto()  # once the answer is sent
    SERVE = auto()  # every later request, without this gate
    CLOSE = auto()


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """The answer to one request; None is silence."""

    answer: Answer | None
    then: Then = Then.GO_ON


class Gate:
    """A machine for one connection. ``users`` are passwords by name, or None where nobody needs one; ``nonce`` makes text that is new each
    time; with ``roles`` a certificate must have one of them. Apache's bookies with TLS serve those who come without; this gate does not."""

    def __init__(self, *, tls: bool, users: Mapping[str, str] | None, nonce: Callable[[], str], roles: Collection[str] = ()) -> None:
        self._tls = tls
        self._users = users
        self._roles = roles
        self._asked_tls = 0  # the number of the request
        self._nonce = nonce
        self._exchange: DigestMd5Server | None = None
        self.is_secured = False

    def secured(self, unit: str | None = None) -> GateAnswer:
        """Note the end of the handshake. ``unit`` is the first organizational unit in the client's certificate, None for none. Return what
        follows: a client whose role is not admitted is told so unasked, as by Apache's bookies."""
        self.is_secured = True
        if self._roles and role_of(unit) not in self._roles:
            return GateAnswer(StartTlsResponse(self._asked_tls, Status.IO_ERROR))
        return GateAnswer(None, Then.SERVE if self._users is None else Then.GO_ON)

    def may_wait(self, units: Sequence[Unit | EntryListing]) -> bool:
        """Return True if requests that came in clear behind START_TLS may be answered inside of TLS: at most one token that is empty, and
        so is nobody's secret and changes nothing, whoever has put it there."""
        return not units or (len(units) == 1 and isinstance(units[0], AuthRequest) and not units[0].payload)

    def asked(self, unit: Unit, *, is_v2: bool) -> GateAnswer:
        """Answer a request of a connection that is not served yet."""
        if isinstance(unit, StartTlsRequest):
            return self._start_tls(unit)
        if isinstance(unit, AuthRequest) and self._users is not None and (self.is_secured or not self._tls):
            return self._auth(unit, self._users, is_v2)
        if self._roles and isinstance(unit, AuthRequest) and unit.plugin == BY_ROLE:
            return GateAnswer(None)  # there is nothing to say to it
        if isinstance(unit, RequestedAdds):
            return GateAnswer(AddsAnswer(unit.ledger_id, unit.first_entry_id, unit.count, Status.UNAUTHORIZED))
        if isinstance(unit, RequestedReads) or (is_v2 and isinstance(unit, AuthRequest)):
            return GateAnswer(None, Then.CLOSE)
        return GateAnswer(failure(unit, Status.UNAUTHORIZED))

    def _start_tls(self, request: StartTlsRequest) -> GateAnswer:
        if self.is_secured:
            return GateAnswer(None, Then.CLOSE)
        if not self._tls:
            return GateAnswer(StartTlsResponse(request.request_id, Status.BAD_REQUEST))
        self._asked_tls = request.request_id
        return GateAnswer(StartTlsResponse(request.request_id, Status.OK), Then.BEGIN_TLS)

    def _auth(self, request: AuthRequest, users: Mapping[str, str], is_v2: bool) -> GateAnswer:
        if request.plugin != PLUGIN:
            return GateAnswer(None, Then.CLOSE) if is_v2 else GateAnswer(failure(request, Status.UNAUTHORIZED))
        if self._exchange is None or not request.payload:
            self._exchange = DigestMd5Server(users, self._nonce())
            return GateAnswer(AuthResponse(request.request_id, Status.OK, PLUGIN, self._exchange.challenge()))
        exchange, self._exchange = self._exchange, None  # a nonce serves once
        proof = exchange.proof(request.payload)
        if proof is None:  # v2 has no other way to say so
            return GateAnswer(None, Then.CLOSE) if is_v2 else GateAnswer(failure(request, Status.UNAUTHORIZED))
        return GateAnswer(AuthResponse(request.request_id, Status.OK, PLUGIN, proof), Then.SERVE)
