"""SASL GSSAPI as a bookie speaks it (RFC 4752, wire-protocol.md 10.3), over a security context that plays what was written down, and the
gate around it. ``make kerberos`` plays it with a KDC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from bk_core.errors import BookieKerberosError
from bk_core.protocol.bookie.gate import Gate, GateAnswer, Then
from bk_core.protocol.bookie.gssapi_server import OFFER, TOKEN_BYTES_MAX, GssapiServer
from bk_core.protocol.wire.messages import (
    AuthRequest,
    AuthResponse,
    BookieInfoRequest,
    BookieInfoResponse,
    ReadRequest,
    ReadResponse,
    StartTlsRequest,
    Status,
)

ANN = "bookkeeper-ann@BK.TEST"
TICKET, PROOF = b"`ticket", b"`proof"
CHOICE = b"\x01\0\0\0"


@dataclass
class Script:
    """A context that is complete after the one token that it knows, and whose signed messages are what they say."""

    proof: bytes | None = PROOF
    initiator: str = ANN
    complete: bool = False
    completes: bool = True
    steps: list[bytes] = field(default_factory=list)
    signed: list[bytes] = field(default_factory=list)

    def step(self, token: bytes) -> bytes | None:
        self.steps.append(token)
        if token != TICKET:
            raise BookieKerberosError("its ticket is not taken")
        self.complete = self.completes
        return self.proof

    def unwrap(self, token: bytes) -> bytes:
        if not token.startswith(b"signed "):
            raise BookieKerberosError("a signature that is wrong")
        return token.removeprefix(b"signed ")

    def wrap(self, message: bytes) -> bytes:
        self.signed.append(message)
        return b"signed " + message


def made(script: Script | None = None, admits: Callable[[str], bool] = lambda name: name == ANN) -> GssapiServer:
    return GssapiServer(lambda: script or Script(), admits)


def offered(server: GssapiServer) -> GssapiServer:
    assert server.answer(TICKET) == PROOF and server.client == ANN
    assert server.answer(b"") == b"signed " + OFFER == b"signed \x01\0\0\0"  # no layer but none, hence no buffer
    return server


@pytest.mark.parametrize("name", [b"", ANN.encode()], ids=["the ticket's name", "the same name"])
@pytest.mark.parametrize("buffer", [b"\0\0\0", b"\x01\0\0"], ids=["as RFC 4752 says", "as Java's client says"])
def test_a_client_comes_in_by_its_ticket_and_chooses_no_layer(name: bytes, buffer: bytes) -> None:
    server = offered(made())
    assert server.answer(b"signed \x01" + buffer + name) is None
    assert server.done and server.client == ANN


@pytest.mark.parametrize("proof", [None, b""])
def test_who_wants_no_proof_of_the_bookie_has_the_offer_at_once(proof: bytes | None) -> None:
    server = made(Script(proof))
    assert server.answer(TICKET) == b"signed " + OFFER
    assert server.answer(b"signed " + CHOICE) is None and server.done


def test_a_context_may_take_more_than_one_token() -> None:
    script = Script(completes=False)
    contexts = iter([script])  # and no second one
    server = GssapiServer(lambda: next(contexts), lambda _name: True)
    assert server.answer(TICKET) == PROOF and server.client == ""
    script.completes = True
    assert server.answer(TICKET) == PROOF and server.client == ANN and script.steps == [TICKET, TICKET]


REFUSED: list[tuple[list[bytes], str]] = [
    ([b""], "an empty token, as of a client with a password"),
    ([b"`another"], "its ticket is not taken"),
    ([bytes(TOKEN_BYTES_MAX + 1)], "a token of 49153 bytes"),
    ([TICKET, b"x"], "1 bytes where the offer of security layers was awaited"),
    ([TICKET, b"", CHOICE], "a signature that is wrong"),
    ([TICKET, b"", b"signed "], f"'{ANN}' chooses a security layer"),
    ([TICKET, b"", b"signed \x01\0\0"], "chooses a security layer"),
    ([TICKET, b"", b"signed \x02\0\0\0"], "chooses a security layer of SASL that was not offered"),
    ([TICKET, b"", b"signed \x04\0\0\0"], "chooses a security layer"),
    ([TICKET, b"", b"signed \x03\0\0\0"], "chooses a security layer"),
    ([TICKET, b"", b"signed \x01\0\0\0bookkeeper-bob@BK.TEST"], f"'{ANN}' asks to be b'bookkeeper-bob@BK.TEST', which is somebody else"),
    ([TICKET, b"", b"signed \x01\0\0\0bookkeeper-ann"], "asks to be b'bookkeeper-ann', which"),
    ([TICKET, b"", b"signed \x01\0\0\0\xff"], r"asks to be b'\\xff', which"),
    ([TICKET, b"", b"signed \x01\0\0\0" + b"n" * 40_000], "asks to be b'n{100}', which"),
]


@pytest.mark.parametrize(("tokens", "text"), REFUSED)
def test_a_client_that_is_not_admitted_is_an_error_and_never_heard_again(tokens: list[bytes], text: str) -> None:
    script = Script()
    server = made(script)
    for token in tokens[:-1]:
        server.answer(token)
    with pytest.raises(BookieKerberosError, match=text):
        server.answer(tokens[-1])
    steps = len(script.steps)
    for token in (TICKET, b"", b"signed " + CHOICE):
        with pytest.raises(BookieKerberosError, match="behind the last one"):
            server.answer(token)
    assert not server.done and len(script.steps) == steps


def test_a_context_without_an_end_is_an_error() -> None:
    with pytest.raises(BookieKerberosError, match="came to no end"):
        made(Script(None, completes=False)).answer(TICKET)


def test_a_name_that_is_not_admitted_is_told_with_its_realm() -> None:
    server = offered(made(admits=lambda name: name != ANN))
    with pytest.raises(BookieKerberosError, match=f"'{ANN}' is none of the clients that are admitted"):
        server.answer(b"signed " + CHOICE)


def test_nothing_is_made_before_there_is_a_ticket() -> None:
    calls: list[str] = []

    def accept() -> Script:
        calls.append("accept")
        return Script()

    server = GssapiServer(accept, lambda _name: True)
    with pytest.raises(BookieKerberosError):
        server.answer(b"")
    with pytest.raises(BookieKerberosError):
        GssapiServer(accept, lambda _name: True).answer(bytes(TOKEN_BYTES_MAX + 1))
    assert calls == []


# --- at the gate ------------------------------------------------------------------------------------------------------


def gate(script: Script | None = None, *, tls: bool = False, admits: bool = True) -> Gate:
    return Gate(tls=tls, users=None, nonce=str, kerberos=made(script, lambda _name: admits))


def auth(number: int, token: bytes, plugin: str = "sasl") -> AuthRequest:
    return AuthRequest(number, plugin, token)


@pytest.mark.parametrize("is_v2", [False, True])
def test_the_gate_serves_after_the_last_token_which_it_does_not_answer(is_v2: bool) -> None:
    one = gate()
    assert one.asked(auth(1, TICKET), is_v2=is_v2) == GateAnswer(AuthResponse(1, Status.OK, "sasl", PROOF))
    refused = one.asked(BookieInfoRequest(2), is_v2=False).answer
    assert isinstance(refused, BookieInfoResponse) and refused.status is Status.UNAUTHORIZED
    assert one.asked(auth(3, b""), is_v2=is_v2) == GateAnswer(AuthResponse(3, Status.OK, "sasl", b"signed " + OFFER))
    assert one.asked(auth(5, b"signed " + CHOICE), is_v2=is_v2) == GateAnswer(None, Then.SERVE)


@pytest.mark.parametrize("is_v2", [False, True])
@pytest.mark.parametrize("tokens", [[b""], [b"`another"], [TICKET, b"x"], [TICKET, b"", b"signed \x02\0\0\0"]])
def test_the_gate_says_nothing_to_who_fails_and_serves_nothing(tokens: list[bytes], is_v2: bool) -> None:
    """wire-protocol.md 10.3: as Apache's bookies. What was wrong is told to the log, once, and nothing is tried again."""
    script = Script()
    one = gate(script)
    answers = [one.asked(auth(1, token), is_v2=is_v2) for token in tokens]
    assert answers[-1].answer is None and answers[-1].then is Then.GO_ON and answers[-1].refused
    steps = len(script.steps)
    for token in (TICKET, b"", b"signed " + CHOICE):
        assert one.asked(auth(2, token), is_v2=is_v2) == GateAnswer(None)
    assert len(script.steps) == steps
    read = one.asked(ReadRequest(3, 7, 0), is_v2=is_v2).answer
    assert isinstance(read, ReadResponse) and read.status is Status.UNAUTHORIZED


def test_a_name_that_the_gate_does_not_admit_is_never_served() -> None:
    one = gate(admits=False)
    for token in (TICKET, b""):
        one.asked(auth(1, token), is_v2=False)
    assert one.asked(auth(1, b"signed " + CHOICE), is_v2=False) == GateAnswer(
        None, refused=f"'{ANN}' is none of the clients that are admitted"
    )
    assert one.asked(auth(1, TICKET), is_v2=False) == GateAnswer(None)


def test_another_provider_is_refused_by_status_and_may_be_followed_by_ours() -> None:
    one = gate()
    answer = one.asked(auth(1, b"", "BookieAuthZFactory"), is_v2=False).answer
    assert isinstance(answer, AuthResponse) and answer.status is Status.UNAUTHORIZED
    assert one.asked(auth(1, b"", "other"), is_v2=True) == GateAnswer(None, Then.CLOSE)
    assert one.asked(auth(2, TICKET), is_v2=False).answer == AuthResponse(2, Status.OK, "sasl", PROOF)


def test_with_tls_a_ticket_is_taken_inside_of_it_alone() -> None:
    script = Script()
    one = gate(script, tls=True)
    assert one.asked(auth(1, TICKET), is_v2=False) == GateAnswer(None, Then.WAIT)
    answer = one.early(auth(1, TICKET), None, is_v2=False).answer
    assert isinstance(answer, AuthResponse) and answer.status is Status.UNAUTHORIZED and script.steps == []
    assert one.asked(StartTlsRequest(2), is_v2=False).then is Then.BEGIN_TLS
    assert one.secured() == GateAnswer(None)  # a handshake alone admits nobody
    assert one.asked(auth(3, TICKET), is_v2=False).answer == AuthResponse(3, Status.OK, "sasl", PROOF)


def test_one_ticket_may_wait_behind_start_tls_and_nothing_else() -> None:
    """wire-protocol.md 10.4: Java's client sends it there."""
    one = gate(tls=True)
    assert one.may_wait([]) and one.may_wait([auth(1, TICKET)]) and one.may_wait([auth(1, b"")])
    assert not one.may_wait([auth(1, TICKET), auth(2, b"")]) and not one.may_wait([ReadRequest(1, 7, 0)])
    by_password = Gate(tls=True, users={"ann": "moss"}, nonce=str)
    assert by_password.may_wait([auth(1, b"")]) and not by_password.may_wait([auth(1, TICKET)])
