"""A few hundred seeds, the determinism of a seed, and a canary that must die (style.md lessons 10-15)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bk_core.protocol.ledger.recovery import LedgerRecovery
from bk_core.protocol.wire.messages import ReadRequest
from tests.simulation.cluster import Run
from tests.simulation.invariants import InvariantViolated

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("block", range(8))
def test_no_seed_breaks_an_invariant(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        Run(seed).play()


def test_a_seed_replays_the_same_whatever_the_string_hashes() -> None:
    code = "from tests.simulation.cluster import Run\nfor s in range(15):\n r = Run(s); r.play(); print(r.world.trace.hexdigest())"
    outputs = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True, cwd=ROOT)
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]


def test_the_simulator_catches_recovery_that_ends_on_one_denial(monkeypatch: pytest.MonkeyPatch) -> None:
    """RC-10 broken on purpose: one denial ends the ledger. The walk must find lost entries."""
    monkeypatch.setattr("bk_core.protocol.ledger.distribution.Distribution.denials_needed", property(lambda self: 1))
    with pytest.raises(InvariantViolated):
        for seed in range(600):
            Run(seed).play()


def test_the_simulator_catches_timeouts_taken_for_denials(monkeypatch: pytest.MonkeyPatch) -> None:
    """RC-11 broken on purpose."""
    from bk_core.protocol.ledger import recovery
    from bk_core.protocol.wire.messages import Status

    monkeypatch.setattr(recovery, "DENIALS", recovery.DENIALS | {Status.TIMEOUT})
    with pytest.raises(InvariantViolated):
        for seed in range(600):
            Run(seed).play()


def test_every_message_of_a_recovery_to_the_last_ensemble_fences(monkeypatch: pytest.MonkeyPatch) -> None:
    """RC-8: no plain read decides anything. The length read of RC-16 is the only plain one, and it comes after the end verdict."""
    plain: list[ReadRequest] = []
    original = LedgerRecovery._ask

    def ask(self: LedgerRecovery, entry_id: int | None, position: int) -> object:
        effect = original(self, entry_id, position)
        if not effect.message.fence:  # type: ignore[union-attr]
            plain.append(effect.message)  # type: ignore[union-attr]
        return effect

    monkeypatch.setattr(LedgerRecovery, "_ask", ask)
    for seed in range(20):
        Run(seed).play()
    assert not plain
