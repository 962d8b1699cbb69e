"""Two or three leaders over one list, at random: the invariants of logs hold, and breaking a rule is noticed (LOG-I1 .. LOG-I5)."""

from __future__ import annotations

from typing import Any

import pytest

from bk_core.protocol.log import reading
from bk_core.protocol.log.leader import LogLeader
from bk_core.protocol.log.leader_state import Roll
from tests.unit.log import leader_world


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_the_invariants_of_a_log_hold(first: int) -> None:
    """LOG-I1, LOG-I2, LOG-I3, LOG-I4, LOG-I5, checked where each can first fail; at the end every acknowledged entry is in the log once,
    in the order of time, and a new leader gets to serve (LOG-1, LOG-4)."""
    for seed in range(first, first + 50):
        leader_world.walk(seed)


def test_a_seed_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """SM-4."""
    one, two = leader_world.walk(7), leader_world.walk(7)
    assert (one.log_order, one.spans, one.time, sorted(one.failed)) == (two.log_order, two.spans, two.time, sorted(two.failed))


def test_the_walk_goes_everywhere() -> None:
    """Two ledgers unclosed at a takeover, entries split over two ledgers, trims, refused rolls: all of it happens."""
    worlds = [leader_world.walk(seed) for seed in range(60)]
    assert any(world.trimmed for world in worlds)
    assert any(len(spans) > 1 for world in worlds for spans in world.spans.values())
    assert any("roll" in token for world in worlds for token in world.done)
    assert any("roll" in token for world in worlds for token in world.failed)
    assert any(ledger_id not in world.log_order for world in worlds for ledger_id in world.deleted)
    assert any(world.collected for world in worlds)
    assert sum(len(world.acked) for world in worlds) > 200


BROKEN: dict[str, Any] = {
    "LOG-1: recover only the last ledger": ("_ledgers_to_recover", lambda self, ledgers: ledgers[-1:]),
    "LOG-1: recover none": ("_ledgers_to_recover", lambda self, ledgers: ()),
    "LOG-7: roll while an earlier ledger is unclosed": ("_may_roll", lambda self: True),
    "LOG-6, LOG-8: write to the new ledger before the old one is closed": ("_old_is_settled", lambda self: self.rolling is Roll.DRAINING),
    "LOG-18: list a ledger that a janitor has deleted": ("_check_following", LogLeader._write_list),
    "LOG-18: list a ledger that a janitor has condemned": ("_was_condemned", lambda self, event: False),
    "LOG-15: move on because there may be a successor": ("may_move_on", lambda segment, *, closed: True),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_noticed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, broken = BROKEN[rule]
    monkeypatch.setattr(reading if "LOG-15" in rule else LogLeader, name, broken)
    with pytest.raises(AssertionError):
        for seed in range(400):
            leader_world.walk(seed)
