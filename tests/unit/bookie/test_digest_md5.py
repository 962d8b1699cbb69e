"""The server's side of SASL DIGEST-MD5, and the gate before a connection is served (wire-protocol.md 10)."""

from __future__ import annotations

import re

import pytest

from bk_core.errors import RemoteProtocolError
from bk_core.protocol.bookie.digest_md5 import DigestMd5Server, directives
from bk_core.protocol.bookie.gate import Gate, GateAnswer, Then
from bk_core.protocol.bookie.runs import AddsAnswer, RequestedAdds, RequestedReads
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import Status
from bk_core.sasl import DigestMd5

USERS = {"ann": "moss-3310", "zoë": "mößs", "snow\u2603": "\u2603man"}


@pytest.mark.parametrize("user", ["ann", "zoë"])
def test_a_client_and_a_bookie_that_know_the_password_agree(user: str) -> None:
    """The client is pure-sasl's; both sides prove what they know."""
    server, client = DigestMd5Server(USERS, "n0nce"), DigestMd5(user, USERS[user])
    response = client.answer(server.challenge())
    assert response is not None and server.user == ""
    proof = server.proof(response)
    assert proof is not None and server.user == user
    assert client.answer(proof) is None and client.done


def test_what_java_sends_is_taken() -> None:
    """As SaslClient of the JDK writes it: another order, UTF-8, a size of buffers."""
    server = DigestMd5Server(USERS, "n0nce")
    ours = DigestMd5("ann", "moss-3310").answer(server.challenge())
    assert ours is not None
    given = {name: value.decode() for name, value in (directives(ours) or {}).items()}
    java = (
        f'charset=utf-8,username="ann",realm="bookkeeper",nonce="n0nce",nc=00000001,cnonce="{given["cnonce"]}",'
        f'digest-uri="bookkeeper/bookkeeper",maxbuf=65536,response={given["response"]},qop=auth,authzid="ann"'
    )
    assert server.proof(java.replace(',authzid="ann"', "").encode()) is not None
    assert server.proof(java.replace("ann", "bob").encode()) is None
    assert server.proof(java.encode()) is None  # the name goes into what is digested


@pytest.mark.parametrize(
    "change",
    [
        (b"moss", b"moss"),  # nothing; see the assertion
        (b"00000001", b"00000002"),
        (b"bookkeeper/bookkeeper", b"bookkeeper/other"),
        (b'realm="bookkeeper"', b'realm="x"'),
        (b"qop=auth", b"qop=auth-int"),
        (b'nonce="n0nce"', b'nonce="other"'),
        (b"username", b"usernam"),
        (b"response=", b"response=0"),
        (b'username="ann"', b'username="ann",username="ann"'),
        (b'username="ann"', b'username="\xff",charset=utf-8'),
        (b'username="ann"', b'username="ann'),
    ],
)
def test_one_changed_byte_is_no_proof(change: tuple[bytes, bytes]) -> None:
    server = DigestMd5Server(USERS, "n0nce")
    response = DigestMd5("ann", "moss-3310").answer(server.challenge())
    assert response is not None
    proof = server.proof(response.replace(*change))
    assert (proof is not None) == (change[0] == change[1])


@pytest.mark.parametrize(("user", "password"), [("ann", "x"), ("nobody", "moss-3310"), ("nobody", "")])
def test_a_wrong_secret_and_a_stranger_look_alike(user: str, password: str) -> None:
    server = DigestMd5Server(USERS, "n0nce")
    response = DigestMd5(user, password or "x").answer(server.challenge())
    assert response is not None and server.proof(response) is None and server.user == ""


@pytest.mark.parametrize(
    ("token", "found"),
    [
        (b'a="b\\"c",d=e', {"a": b'b"c', "d": b"e"}),
        (b'a="b,c" , d= e ', {"a": b"b,c", "d": b"e"}),
        (b"", {}),
        (b"a", None),
        (b'a="b', None),
        (b'a="b"c=d', None),
        (b"a=1,a=2", None),
        (b"=1", None),
    ],
)
def test_directives(token: bytes, found: dict[str, bytes] | None) -> None:
    assert directives(token) == found


def test_a_token_that_is_too_long_is_not_read() -> None:
    assert DigestMd5Server(USERS, "n").proof(b'a="' + b"x" * 5000 + b'"') is None


# the gate ------------------------------------------------------------------------------------------------------------


def gate(*, tls: bool = False, users: dict[str, str] | None = None) -> Gate:
    nonces = iter(f"nonce{n}" for n in range(10))
    return Gate(tls=tls, users=users, nonce=lambda: next(nonces))


def challenge(found: GateAnswer) -> bytes:
    assert isinstance(found.answer, m.AuthResponse) and found.answer.status is Status.OK and found.answer.plugin == "sasl"
    return found.answer.payload


@pytest.mark.parametrize("is_v2", [False, True])
def test_who_gives_the_proof_is_served(is_v2: bool) -> None:
    door, client = gate(users=USERS), DigestMd5("ann", "moss-3310")
    first = challenge(door.asked(m.AuthRequest(1, "sasl", b""), is_v2=is_v2))
    found = door.asked(m.AuthRequest(2, "sasl", client.answer(first) or b""), is_v2=is_v2)
    assert found.then is Then.SERVE and client.answer(challenge(found)) is None and client.done


def test_a_nonce_serves_once() -> None:
    """Neither a response that was wrong nor one that was right is taken again."""
    door = gate(users=USERS)
    first = challenge(door.asked(m.AuthRequest(1, "sasl", b""), is_v2=False))
    response = DigestMd5("ann", "wrong").answer(first) or b""
    refused = door.asked(m.AuthRequest(2, "sasl", response), is_v2=False)
    assert refused.answer == m.AuthResponse(2, Status.UNAUTHORIZED) and refused.then is Then.GO_ON
    again = challenge(door.asked(m.AuthRequest(3, "sasl", DigestMd5("ann", "moss-3310").answer(first) or b""), is_v2=False))
    assert re.search(rb'nonce="(\w+)"', again) != re.search(rb'nonce="(\w+)"', first) and b"nonce1" in again
    begun = challenge(door.asked(m.AuthRequest(4, "sasl", b""), is_v2=False))
    assert b"nonce2" in begun


def test_v2_has_no_way_to_say_no_but_to_hang_up() -> None:
    door = gate(users=USERS)
    first = challenge(door.asked(m.AuthRequest(0, "sasl", b""), is_v2=True))
    said = door.asked(m.AuthRequest(0, "sasl", DigestMd5("ann", "no").answer(first) or b""), is_v2=True)
    assert said == GateAnswer(None, Then.CLOSE, "a wrong password of user 'ann'")
    assert gate(users=USERS).asked(m.AuthRequest(0, "other", b""), is_v2=True) == GateAnswer(None, Then.CLOSE)


def test_tls_comes_first_and_once() -> None:
    door = gate(tls=True, users=USERS)
    early = m.AuthRequest(1, "sasl", b"")
    for token in (m.AuthRequest(1, "sasl", b"proof"), m.AuthRequest(1, "other", b"")):
        refused = door.asked(token, is_v2=False)
        assert refused.answer == m.AuthResponse(1, Status.UNAUTHORIZED)  # no password goes over what may be listened to
    assert door.asked(early, is_v2=False) == GateAnswer(None, Then.WAIT) == door.early(early, m.StartTlsRequest(2), is_v2=False)
    for behind in (None, m.ReadRequest(2, 7, 0), early):
        assert door.early(early, behind, is_v2=False) == GateAnswer(m.AuthResponse(1, Status.UNAUTHORIZED))
        assert door.early(early, behind, is_v2=True) == GateAnswer(None, Then.CLOSE)
    assert door.asked(m.StartTlsRequest(2), is_v2=False) == GateAnswer(m.StartTlsResponse(2, Status.OK), Then.BEGIN_TLS)
    assert door.secured() == GateAnswer(None)
    assert challenge(door.asked(m.AuthRequest(3, "sasl", b""), is_v2=False))
    assert door.asked(m.StartTlsRequest(4), is_v2=False) == GateAnswer(None, Then.CLOSE)
    assert gate(tls=True).secured().then is Then.SERVE


@pytest.mark.parametrize("tls", [False, True])
def test_everything_else_is_refused(tls: bool) -> None:
    door = gate(tls=tls, users=None if tls else USERS)
    assert door.asked(m.ReadRequest(1, 7, 0), is_v2=False).answer == m.ReadResponse(1, Status.UNAUTHORIZED, 7, 0)
    assert door.asked(m.BookieInfoRequest(2), is_v2=False).answer == m.BookieInfoResponse(2, Status.UNAUTHORIZED)
    assert door.asked(RequestedAdds(7, 3, 2, b"k", b"", 1), is_v2=True).answer == AddsAnswer(7, 3, 2, Status.UNAUTHORIZED)
    assert door.asked(RequestedReads(7, 3, 2), is_v2=True) == GateAnswer(m.ReadResponse(0, Status.UNAUTHORIZED, 7, 3), Then.CLOSE)
    if not tls:
        assert door.asked(m.StartTlsRequest(3), is_v2=False).answer == m.StartTlsResponse(3, Status.BAD_REQUEST)


def test_a_token_that_nobody_needs_so_long_is_not_read() -> None:
    with pytest.raises(RemoteProtocolError, match="a token of 60000 bytes"):
        DigestMd5("ann", "moss-3310").answer(b'nonce="' + b"x" * 59_992 + b'"')
