"""One exchange of SASL GSSAPI as it went between this client and a bookie of Apache 4.18.0, byte for byte (wire-protocol.md 10.3).

``make kerberos`` plays such exchanges anew. Here the security context says what it said then; the keys are long gone with their realm.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bk_core.errors import BookieKerberosError
from bk_core.protocol.link.entrance import Admitted, Entrance, Say, Step
from bk_core.protocol.link.gssapi_exchange import GssapiExchange
from bk_core.protocol.wire import codec_v3
from bk_core.protocol.wire.messages import AuthRequest, AuthResponse

TICKET = bytes.fromhex(
    "608202d206092a864886f71201020201006e8202c1308202bda003020105a10302010ea20703050020000000a38201d1618201cd308201c9a0030201"
    "05a1091b07424b2e54455354a2223020a003020103a11930171b0a626f6f6b6b65657065721b093132372e302e302e31a38201913082018da0030201"
    "12a103020102a282017f0482017bbfd3d57f07564692a44e97435fb3a46ad3a33ec69dc2e905b91cfe7977f1aa28832a6dac65d5da7798f07798038a"
    "b0614f2b5d90c8f8e7c2d1a170fca65b65b4303e6b64128e20fc28d3ed8183739894331a1f9f1e32b42e491c4569f60e9a9bb8106564d33bde1124bf"
    "35f304092a479e39dd855aff6a7db490590b2d9c4a2d6c3ee88b5c642fb16b025f8a0d28ab349eaefdd629fcbe8f841bebe9ea9f868ddabfee2fe46a"
    "41b25ad5ee91c0447d23713781356ce5aa56d2b001923e200dd20e5b4fcf97537cef7045974426fa52d67981b992cf4c2357f8e0a4100538e6d0ec3d"
    "eef70e08c4b07ec37fb52015bb19cf76364ce658a596bcde855ffe17e719b539d60d78dade8109827dd84ea9c533ee5d91625bd7a3935f22040ba15a"
    "9a3c521bd7a6af5dca7a4cc99ad86d7dca3f50a8f3ae5dca9b1c1967cb2bdfc4286b4f23a1c450c14dbfc181c802823968ee0480b204f199b365963a"
    "49b5ae5d9892e5a1465e81cd750b882a5d10c1ebd4b3dc5769a34f09dd2ee8844da481d23081cfa003020112a281c70481c4fbe8953b8cdff32edb12"
    "f349763a3263f5a4d3f05fb4b8b9a70fce7822d3c6b00603ebca9b3eb3079b4ca7855c0bbd7eb8d9e0e1de20b46a8d71a40e4ab7d78c120f1dcefd12"
    "9d893fbf73897e876564b98c912a53c5337e3bec25c1e1f9059ce51469d874e09781b7eaabd20d586abd9980d5c746a3ed3255b18df7ed182e1b0590"
    "781695fbee18b2dd0286e11cc6ba22bac63a70f73cf39a2d5353f6356cc38245351bbd52d3248685fdc6392a7cc27f91a0265dd6bbeb65e508b575d5"
    "c0d399667a19"
)
PROOF = bytes.fromhex(
    "606906092a864886f71201020202006f5a3058a003020105a10302010fa24c304aa003020112a243044138c067f319d11c7c2b43a0026bc02abb2749"
    "a69d98f42ca29e622831f49a0e95cfe503caed8e56f5835e39bff4214313bb117241ea7d3ee97710aa9482a38f5da6"
)
OFFER, OFFERED = bytes.fromhex("050401ff000c00000000000005ab3b3701010000b1337de516d85306245701fd"), bytes.fromhex("01010000")
CHOICE, CHOSEN = bytes.fromhex("050400ff000c0000000000001ad4582401000000d7169cc1f93a4cf9b5b4f62d"), bytes.fromhex("01000000")
CAME = [
    bytes.fromhex(one)
    for one in (
        "0a060803100518011000b206730a047361736c126b606906092a864886f71201020202006f5a3058a003020105a10302010fa24c304aa0"
        "03020112a243044138c067f319d11c7c2b43a0026bc02abb2749a69d98f42ca29e622831f49a0e95cfe503caed8e56f5835e39bff42143"
        "13bb117241ea7d3ee97710aa9482a38f5da6",
        "0a0608031008180210f603",
        "0a060803100518031000b206280a047361736c1220050401ff000c00000000000005ab3b3701010000b1337de516d85306245701fd",
        "0a0608031008180410f603",
        "0a060803100818061000ca06020800",
    )
]
"""The payloads of the bookie: each answer to AUTH is followed by the refusal of the request behind it, and the last one serves."""
WENT = [
    bytes.fromhex(one)
    for one in (
        "000000130a06080310051803b206080a047361736c1200",
        "0000000d0a06080310081804ca06020800",
        "000000330a06080310051805b206280a047361736c1220050400ff000c0000000000001ad4582401000000d7169cc1f93a4cf9b5b4f62d",
        "0000000d0a06080310081806ca06020800",
    )
]
"""The frames of the client behind its first one."""


@dataclass
class Recorded:
    """The security context of that exchange."""

    complete: bool = False

    def step(self, token: bytes) -> bytes | None:
        if token != PROOF:
            raise BookieKerberosError("the bookie gives no proof that it has the key of bookkeeper/127.0.0.1")
        self.complete = True
        return None

    def unwrap(self, token: bytes) -> bytes:
        assert token == OFFER
        return OFFERED

    def wrap(self, message: bytes) -> bytes:
        assert message == CHOSEN
        return CHOICE


def entrance() -> tuple[Entrance, GssapiExchange]:
    exchange = GssapiExchange("bookkeeper-ann@BK.TEST", "bookkeeper/127.0.0.1", Recorded(), TICKET)
    return Entrance("b", tls=False, exchange=exchange), exchange


def frames(steps: list[Step]) -> list[bytes]:
    return [step.frame for step in steps if isinstance(step, Say)]


def test_what_was_said_is_said_again() -> None:
    machine, exchange = entrance()
    opening, look = frames(machine.begin())
    assert codec_v3.decode_request(opening[4:]) == AuthRequest(1, "sasl", TICKET) and len(opening) == 4 + int.from_bytes(opening[:4], "big")
    steps = [step for payload in CAME for step in machine.received(payload)]
    assert frames(steps) == WENT and steps[-1] == Admitted() and exchange.done


def test_the_last_token_is_answered_by_nothing_but_the_service() -> None:
    """RFC 4752: the bookie has nothing more to say, and Apache's says nothing."""
    answers = [codec_v3.decode_response(payload) for payload in CAME]
    assert [type(one) is AuthResponse for one in answers] == [True, False, True, False, False]
    said = [codec_v3.decode_request(frame[4:]) for frame in WENT]
    assert [one.payload for one in said if isinstance(one, AuthRequest)] == [b"", CHOICE]


@pytest.mark.parametrize("at", [40, 100, len(PROOF) - 1])
def test_another_proof_is_none(at: int) -> None:
    bent = bytearray(PROOF)
    bent[at] ^= 1
    machine, exchange = entrance()
    machine.begin()
    (step,) = machine.received(codec_v3.encode_response(AuthResponse(1, codec_v3.decode_response(CAME[0]).status, "sasl", bytes(bent))))
    assert "the bookie gives no proof" in str(getattr(step, "error", "")) and not exchange.done
