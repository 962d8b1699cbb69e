"""Some hundred intruders at the doors of embedded bookies, some cases of bookies that lie to a client by TLS, and planted defects that they
must find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bk_core.protocol.bookie.digest_md5 import DigestMd5Server
from bk_core.protocol.bookie.gate import Gate, GateAnswer, Then
from bk_core.protocol.bookie.runs import RequestedReads
from bk_core.protocol.bookie.stream import Unit
from bk_core.protocol.wire.messages import ReadRequest
from tests.fuzz import frames, handshakes, secured_frames
from tests.fuzz.bent_door import BentDoor
from tests.fuzz.doorways import doorways

SEED = 20262


def test_intruders_stay_outside() -> None:
    """No crash, no hang; entries and ledgers are for those who were admitted; honest peers are served (wire-protocol.md 10)."""
    result = handshakes.run(seed=SEED, cases=100)
    assert result.cases == 100 and result.inputs > 300
    assert not result.crashes, "\n".join(result.crashes)


def test_bent_answers_by_tls_do_no_harm() -> None:
    """RD-8, SM-3: no crash, no hang, no wrong data; honest replicas are used; nothing is in clear."""
    result = secured_frames.run(seed=SEED, cases=10)
    assert result.cases == 10 and result.inputs > 20  # how many wires there are within a case is a matter of timing
    assert not result.crashes, "\n".join(result.crashes)


def _whatever_is_said(patch: pytest.MonkeyPatch) -> None:
    """Each response to the challenge is right."""
    real = DigestMd5Server.proof
    patch.setattr(DigestMd5Server, "proof", lambda self, response: real(self, response) or b"rspauth=")


def _who_only_reads(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks for an entry is admitted."""
    real = Gate.asked

    def asked(self: Gate, unit: Unit, *, is_v2: bool) -> GateAnswer:
        return GateAnswer(None, Then.SERVE) if isinstance(unit, RequestedReads | ReadRequest) else real(self, unit, is_v2=is_v2)

    patch.setattr(Gate, "asked", asked)


@pytest.mark.parametrize("plant", [_whatever_is_said, _who_only_reads], ids=lambda plant: plant.__name__)
def test_a_bookie_that_admits_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert handshakes.run(seed=SEED, cases=300, crashes_max=1).crashes


def test_what_is_in_clear_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secured_frames, "doorways", lambda directory: [one for one in doorways(directory) if one.name == "tls"])
    with secured_frames.worlds() as (world,):
        bent = next(iter(world.bent.values()))
        assert isinstance(bent, BentDoor)
        for secret in secured_frames.SECRETS:
            bent.to_bookie.append(bytearray(b"before " + secret + b" behind"))
            with pytest.raises(frames.Wrong, match="a secret is on the wire"):
                world.require_secrecy()
        world.require_secrecy()
