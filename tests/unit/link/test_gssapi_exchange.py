"""SASL GSSAPI as a client speaks it (RFC 4752, wire-protocol.md 10.3), over a security context that plays what was written down."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from bk_core.errors import BookieKerberosError, RemoteProtocolError
from bk_core.protocol.link.auth_exchange import ExplainedExchange
from bk_core.protocol.link.gssapi_exchange import CHOICE, TOKEN_BYTES_MAX, GssapiExchange

OFFER = bytes((1, 0, 0, 0))


@dataclass
class Script:
    """A security context that is complete after the one token that it knows, and whose signed messages are what they say."""

    proof: bytes = b"`proof"
    answer: bytes | None = None
    complete: bool = False
    completes: bool = True
    signed: list[bytes] = field(default_factory=list)

    def step(self, token: bytes) -> bytes | None:
        if token != self.proof:
            raise BookieKerberosError("the bookie gives no proof")
        self.complete = self.completes
        return self.answer

    def unwrap(self, token: bytes) -> bytes:
        return token.removeprefix(b"signed ")

    def wrap(self, message: bytes) -> bytes:
        self.signed.append(message)
        return b"signed " + message


def made(script: Script | None = None) -> GssapiExchange:
    return GssapiExchange("ann@R", "bookkeeper/h", script or Script(), b"`ticket")


@pytest.mark.parametrize("answer", [None, b"", b"`more"])
def test_both_prove_who_they_are_and_take_no_security_layer(answer: bytes | None) -> None:
    script = Script(answer=answer)
    exchange = made(script)
    assert isinstance(exchange, ExplainedExchange) and exchange.plugin == "sasl" and exchange.first() == b"`ticket" and not exchange.done
    assert exchange.answer(b"`proof") == (answer or b"") and not exchange.done
    assert exchange.answer(b"signed " + OFFER) == b"signed " + CHOICE and exchange.done
    assert script.signed == [b"\x01\0\0\0"]  # no layer, no buffer, and the name that the ticket has


def test_other_layers_may_be_offered_beside_none() -> None:
    exchange = made()
    exchange.answer(b"`proof")
    assert exchange.answer(b"signed \x07\xff\xff\xff") == b"signed " + CHOICE


@pytest.mark.parametrize(
    ("offer", "kind", "text"),
    [
        (b"signed \x06\xff\xff\xff", BookieKerberosError, "insists on a security layer"),
        (b"signed \x01", RemoteProtocolError, "an offer of security layers of 1 bytes"),
        (b"signed \x01\0\0\0x", RemoteProtocolError, "an offer of security layers of 5 bytes"),
    ],
)
def test_an_offer_that_cannot_be_taken_is_an_error(offer: bytes, kind: type[Exception], text: str) -> None:
    exchange = made()
    exchange.answer(b"`proof")
    with pytest.raises(kind, match=text):
        exchange.answer(offer)
    assert not exchange.done


def test_whatever_does_not_belong_here_is_an_error() -> None:
    with pytest.raises(RemoteProtocolError, match="a token of 16385 bytes"):
        made().answer(bytes(TOKEN_BYTES_MAX + 1))
    with pytest.raises(BookieKerberosError, match="gives no proof"):
        made().answer(b"`another")
    with pytest.raises(RemoteProtocolError, match="came to no end"):
        made(Script(completes=False)).answer(b"`proof")
    exchange = made()
    exchange.answer(b"`proof"), exchange.answer(b"signed " + OFFER)
    with pytest.raises(RemoteProtocolError, match="behind the last one"):
        exchange.answer(b"signed " + OFFER)


def test_a_bookie_that_wants_a_password_is_known_by_its_challenge() -> None:
    """Java's side sends it whatever the first token is."""
    challenge = b'realm="bookkeeper",nonce="1zYCsi",charset=utf-8,algorithm=md5-sess'
    with pytest.raises(BookieKerberosError, match="wants a password .SASL DIGEST-MD5: BookieSasl, .* in place of Kerberos"):
        made().answer(challenge)
    assert made(Script(proof=b"`has nonce= in it")).answer(b"`has nonce= in it") == b""


def test_a_refusal_without_a_word_has_a_likely_cause() -> None:
    exchange = made()
    assert "does not take the ticket" in exchange.refused(0) and "in its midst" in exchange.refused(1)
    exchange.answer(b"`proof"), exchange.answer(b"signed " + OFFER)
    assert "saslJaasClientAllowedIds" in exchange.refused(2)
    assert str(exchange) == repr(exchange) == "Kerberos principal ann@R, for the service bookkeeper/h"
