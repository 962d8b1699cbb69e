"""The steps before the first request, with every answer that a bookie may give (LINK-10, wire-protocol.md 10)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from bk_core.errors import BookieAuthError, BookieRoleError, BookieSecurityError, BookieTlsError, RemoteProtocolError
from bk_core.protocol.link.auth_exchange import AuthExchange
from bk_core.protocol.link.entrance import ANSWERS_MAX, Admitted, BeginTls, Entrance, Say, Step, TurnedAway
from bk_core.protocol.wire import codec_v3
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import Status


@dataclass
class Rounds:
    """An exchange of fixed tokens."""

    tokens: list[bytes | None]
    plugin: str = "mine"
    got: list[bytes] = field(default_factory=list)
    done: bool = False

    def first(self) -> bytes:
        token = self.tokens.pop(0)
        assert token is not None
        return token

    def answer(self, token: bytes) -> bytes | None:
        self.got.append(token)
        if token == b"wrong":
            raise ValueError("the secret is sand-8731")
        answer = self.tokens.pop(0)
        self.done = answer is None
        return answer


def asked(steps: list[Step]) -> list[m.Request]:
    found = []
    for step in steps:
        assert isinstance(step, Say) and int.from_bytes(step.frame[:4], "big") == len(step.frame) - 4
        found.append(codec_v3.decode_request(step.frame[4:]))
    return found


def said(machine: Entrance, *responses: m.Response) -> list[Step]:
    return [step for one in responses for step in machine.received(codec_v3.encode_response(one))]


def refusal(steps: list[Step]) -> BookieSecurityError:
    (step,) = steps
    assert isinstance(step, TurnedAway)
    return step.error


def test_a_token_of_an_exchange_is_no_secret_in_a_repr() -> None:
    assert "moss" not in repr(Say(b"moss-3310")) and isinstance(Rounds([]), AuthExchange)


def test_tls_alone_is_three_steps_and_a_look() -> None:
    """LINK-10: START_TLS goes in clear, nothing but it; and one harmless request shows that the bookie serves this client."""
    machine = Entrance("b", tls=True, exchange=None)
    assert asked(machine.begin()) == [m.StartTlsRequest(1)] and machine.awaits == "START_TLS"
    assert said(machine, m.StartTlsResponse(1, Status.OK)) == [BeginTls()] and machine.awaits == "the TLS handshake"
    assert asked(machine.secured()) == [m.BookieInfoRequest(2, 0)] and machine.awaits == "the first request"
    assert said(machine, m.BookieInfoResponse(2, Status.OK)) == [Admitted()]


@pytest.mark.parametrize("status", [Status.BAD_REQUEST, Status.UNAUTHORIZED, Status.IO_ERROR])
def test_a_bookie_without_tls_is_an_error(status: Status) -> None:
    machine = Entrance("b:1", tls=True, exchange=None)
    machine.begin()
    error = refusal(said(machine, m.StartTlsResponse(1, status)))
    assert type(error) is BookieTlsError and "bookie b:1 does not speak TLS" in str(error) and error.context == {"bookie": "b:1"}


def test_any_answer_but_a_refusal_shows_that_the_bookie_serves() -> None:
    """A bookie may lack what is asked for; it has looked at the request."""
    machine = Entrance("b", tls=True, exchange=None)
    machine.begin(), said(machine, m.StartTlsResponse(1, Status.OK)), machine.secured()
    assert said(machine, m.BookieInfoResponse(2, Status.IO_ERROR)) == [Admitted()]


UNASKED, LOOKED = m.StartTlsResponse(1, Status.IO_ERROR), m.BookieInfoResponse(2, Status.UNAUTHORIZED)


@pytest.mark.parametrize("refused", [[UNASKED, LOOKED], [LOOKED, UNASKED], [LOOKED]])
@pytest.mark.parametrize(
    ("responses", "kind", "text"),
    [
        ([m.BookieInfoResponse(4, Status.UNAUTHORIZED)], BookieRoleError, "its role (OU=0:ROLE) is none of the bookie's authorizedRoles"),
        ([m.AuthResponse(3, Status.UNAUTHORIZED)], BookieAuthError, "wants clients that authenticate, and this client has nothing"),
    ],
)
def test_a_bookie_that_wants_more_than_tls_is_asked_what(
    refused: list[m.Response], responses: list[m.Response], kind: type[BookieSecurityError], text: str
) -> None:
    """One that judges by roles has nothing to say to a token, and one with another provider refuses it (LINK-10)."""
    machine = Entrance("b", tls=True, exchange=None)
    machine.begin(), said(machine, m.StartTlsResponse(1, Status.OK)), machine.secured()
    assert asked(said(machine, *refused)) == [m.AuthRequest(3, "BookieAuthZFactory", b""), m.BookieInfoRequest(4, 0)]
    error = refusal(said(machine, *responses))
    assert type(error) is kind and text in str(error)


def test_a_bookie_that_judges_by_certificates_and_gets_no_tls_is_told_apart() -> None:
    """One with ``security`` and neither TLS nor an exchange cannot be; a machine may."""
    machine = Entrance("b", tls=False, exchange=None)
    machine.begin(), said(machine, m.BookieInfoResponse(1, Status.UNAUTHORIZED))
    error = refusal(said(machine, m.BookieInfoResponse(3, Status.UNAUTHORIZED)))
    assert type(error) is BookieRoleError and "this client comes without TLS" in str(error)


def test_a_bookie_that_serves_after_all_is_taken() -> None:
    machine = Entrance("b", tls=True, exchange=None)
    machine.begin(), said(machine, m.StartTlsResponse(1, Status.OK)), machine.secured(), said(machine, UNASKED)
    assert said(machine, m.BookieInfoResponse(4, Status.OK)) == [Admitted()]


@pytest.mark.parametrize("tls", [False, True])
def test_an_exchange_goes_on_until_both_are_content(tls: bool) -> None:
    """Behind each token goes a request that changes nothing; those of earlier rounds may be refused, which means nothing."""
    exchange = Rounds([b"one", b"two", None])
    machine = Entrance("b", tls=tls, exchange=exchange)
    first = machine.begin()
    if tls:
        said(machine, m.StartTlsResponse(1, Status.OK))
        first = machine.secured()
        assert said(machine, m.StartTlsResponse(1, Status.IO_ERROR)) == []  # unasked: not authenticated by the certificate
    n = int(tls)
    assert asked(first) == [m.AuthRequest(n + 1, "mine", b"one"), m.BookieInfoRequest(n + 2, 0)] and machine.awaits == "AUTH"
    more = said(machine, m.AuthResponse(n + 1, Status.OK, "mine", b"c1"))
    assert asked(more) == [m.AuthRequest(n + 3, "mine", b"two"), m.BookieInfoRequest(n + 4, 0)]
    assert said(machine, m.BookieInfoResponse(n + 2, Status.UNAUTHORIZED)) == []
    assert said(machine, m.AuthResponse(n + 3, Status.OK, "mine", b"c2")) == [] and exchange.got == [b"c1", b"c2"]
    assert said(machine, m.BookieInfoResponse(n + 4, Status.OK)) == [Admitted()]


@pytest.mark.parametrize("answer", [m.BookieInfoResponse(4, Status.UNAUTHORIZED), m.AuthResponse(3, Status.UNAUTHORIZED)])
def test_a_wrong_secret_is_told_apart_from_another_provider_at_once(answer: m.Response) -> None:
    """Apache's bookie says nothing of it, and the request behind the token is refused; ours refuses the token."""
    machine = Entrance("b", tls=False, exchange=Rounds([b"one", b"two", None]))
    machine.begin()
    said(machine, m.AuthResponse(1, Status.OK, "mine", b"c"))
    error = refusal(said(machine, answer))
    assert type(error) is BookieAuthError and "does not take this client" in str(error) and "the secret is wrong there" in str(error)


@pytest.mark.parametrize("tls", [False, True])
def test_a_client_that_is_refused_in_clear_is_told_that_it_comes_without_tls(tls: bool) -> None:
    machine = Entrance("b", tls=tls, exchange=Rounds([b"one"]))
    machine.begin()
    if tls:
        said(machine, m.StartTlsResponse(1, Status.OK)), machine.secured()
    error = refusal(said(machine, m.AuthResponse(1 + tls, Status.UNAUTHORIZED)))
    assert ("perhaps because this client comes without TLS" in str(error)) is not tls


@dataclass
class Explained(Rounds):
    """An exchange that knows what silence means."""

    def refused(self, tokens: int) -> str:
        return f"after {tokens} tokens"


def test_an_exchange_may_say_what_silence_means() -> None:
    machine = Entrance("b", tls=False, exchange=Explained([b"one", b"two", None]))
    machine.begin()
    assert "after 0 tokens" in str(refusal(said(machine, m.BookieInfoResponse(2, Status.UNAUTHORIZED))))
    machine = Entrance("b", tls=False, exchange=Explained([b"one", b"two", None]))
    machine.begin(), said(machine, m.AuthResponse(1, Status.OK, "mine", b"c"))
    assert "after 1 tokens" in str(refusal(said(machine, m.BookieInfoResponse(4, Status.UNAUTHORIZED))))


class Refused(BookieAuthError):
    """An error of an exchange keeps its class."""


def test_an_error_of_an_exchange_keeps_its_class() -> None:
    def answer(token: bytes) -> bytes:
        raise Refused("no proof")

    exchange = Rounds([b"one"])
    exchange.answer = answer  # type: ignore[method-assign]
    machine = Entrance("b", tls=False, exchange=exchange)
    machine.begin()
    error = refusal(said(machine, m.AuthResponse(1, Status.OK, "mine", b"c")))
    assert type(error) is Refused and "do not agree on AUTH 'mine': no proof" in str(error)


def test_a_bookie_must_give_its_own_proof() -> None:
    """One that serves without it may be anybody."""
    machine = Entrance("b", tls=False, exchange=Rounds([b"one", b"two", None]))
    machine.begin()
    assert "before it has given its own proof" in str(refusal(said(machine, m.BookieInfoResponse(2, Status.OK))))
    exchange = Rounds([b"one"], done=True)  # one that wants no proof
    machine = Entrance("b", tls=False, exchange=exchange)
    machine.begin()
    assert said(machine, m.BookieInfoResponse(2, Status.OK)) == [Admitted()]


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (m.AuthResponse(1, Status.OK, "AuthDisabledPlugin", b""), "authenticates nobody"),
        (m.AuthResponse(1, Status.UNAUTHORIZED, "", b""), "has another authentication provider than 'mine'"),
        (m.AuthResponse(1, Status.OK, "other", b"x"), "answers by provider 'other'"),
        (m.AuthResponse(1, Status.OK, "mine", b"wrong"), "do not agree on AUTH 'mine': ValueError"),
    ],
)
def test_whatever_goes_wrong_has_a_text_of_its_own(response: m.Response, text: str) -> None:
    machine = Entrance("b", tls=False, exchange=Rounds([b"one", b"two"]))
    machine.begin()
    error = refusal(said(machine, response))
    assert type(error) is BookieAuthError and text in str(error) and "sand" not in str(error)


def test_an_exchange_that_ends_without_the_proof_it_waits_for_is_an_error() -> None:
    exchange = Rounds([b"one", None])
    exchange.answer = lambda token: None  # type: ignore[method-assign]  # and ``done`` stays False
    machine = Entrance("b", tls=False, exchange=exchange)
    machine.begin()
    assert "without its own proof" in str(refusal(said(machine, m.AuthResponse(1, Status.OK, "mine", b"c"))))


@pytest.mark.parametrize(
    "response",
    [
        m.AuthResponse(1, Status.OK, "mine", b""),
        m.BookieInfoResponse(1, Status.OK),
        m.ReadResponse(1, Status.OK, 5, 0, b""),
    ],
)
def test_what_nobody_asked_for_breaks_the_protocol(response: m.Response) -> None:
    machine = Entrance("b", tls=True, exchange=None)
    machine.begin()
    with pytest.raises(RemoteProtocolError, match="while START_TLS was awaited"):
        said(machine, response)


def test_a_second_agreement_to_tls_breaks_the_protocol() -> None:
    machine = Entrance("b", tls=True, exchange=None)
    machine.begin(), said(machine, m.StartTlsResponse(1, Status.OK)), machine.secured()
    with pytest.raises(RemoteProtocolError, match="once more"):
        said(machine, m.StartTlsResponse(1, Status.OK))


def test_answers_without_an_end_break_the_protocol() -> None:
    """Each of them means nothing by itself: an answer to an earlier look, or START_TLS once more."""
    machine = Entrance("b", tls=False, exchange=Rounds([b"one"]))
    machine.begin()
    for number in range(ANSWERS_MAX):
        assert said(machine, m.BookieInfoResponse(1000 + number, Status.UNAUTHORIZED)) == []
    with pytest.raises(RemoteProtocolError, match="more than 64 answers came and AUTH is still awaited"):
        said(machine, m.BookieInfoResponse(1, Status.UNAUTHORIZED))


@dataclass
class Shown(Rounds):
    """A program's exchange as a plain dataclass, whose ``repr`` holds all that it has."""

    token: str = "moss-3310"


def test_the_text_of_a_programs_exchange_is_not_shown() -> None:
    machine = Entrance("b", tls=False, exchange=Shown([b"hello", b"more"]))
    machine.begin()
    said(machine, m.AuthResponse(1, Status.OK, "mine", b"go on"))
    told = refusal(said(machine, m.AuthResponse(3, Status.UNAUTHORIZED, "mine", b"")))
    assert "moss" not in str(told) and "(by AUTH 'mine')" in str(told) and isinstance(told, BookieAuthError)


@dataclass
class Explains(Rounds):
    """An exchange that fails where it is to explain."""

    def refused(self, tokens: int) -> str:
        raise SystemExit("moss-3310")


@dataclass
class Undecided(Rounds):
    """An exchange whose end cannot be had."""

    def __getattribute__(self, name: str) -> Any:
        if name == "done" and object.__getattribute__(self, "got"):
            raise SystemExit("moss-3310")
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("exchange", [Explains([b"hello", b"more"]), Undecided([b"hello", b"more"])])
def test_whatever_a_programs_exchange_raises_ends_its_connection_alone(exchange: Any) -> None:
    machine = Entrance("b", tls=False, exchange=exchange)
    machine.begin()
    said(machine, m.AuthResponse(1, Status.OK, "mine", b"go on"))
    last = m.BookieInfoResponse(4, Status.UNAUTHORIZED if isinstance(exchange, Explains) else Status.OK)
    told = refusal(said(machine, last))
    assert "(SystemExit)" in f"({str(told).rpartition(': ')[2]})" and "moss" not in str(told) and isinstance(told, BookieAuthError)


def test_a_name_of_any_length_is_shown_in_part() -> None:
    machine = Entrance("b", tls=False, exchange=Rounds([b"hello"]))
    machine.begin()
    told = str(refusal(said(machine, m.AuthResponse(1, Status.OK, "\x1b[31mevil\n" * 5000, b""))))
    assert "answers by provider '\\x1b[31mevil" in told and "asked for 'mine'" in told and len(told) < 500
