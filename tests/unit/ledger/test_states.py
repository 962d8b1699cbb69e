"""A machine's state is an attribute that moves along its arrows only (replication-protocol.md 0, SM-6)."""

from __future__ import annotations

from enum import Enum, auto

import pytest

from bk_core.protocol.ledger.replication import FragmentRepair, RepairState, eligible_fragments
from bk_core.protocol.states import Transitions
from tests.unit.ledger.replication_world import LEDGER, World, ledger


class Door(Enum):
    CLOSED = auto()
    OPEN = auto()
    BRICKED_UP = auto()


class House:
    front = Transitions(Door.CLOSED, {Door.CLOSED: (Door.OPEN, Door.BRICKED_UP), Door.OPEN: (Door.CLOSED,)})
    back = Transitions(Door.OPEN, {Door.OPEN: (Door.CLOSED,)})

    def __init__(self) -> None:
        self.front = Door.CLOSED
        self.back = Door.OPEN


def test_sm6_a_state_follows_the_arrows_and_may_be_set_again() -> None:
    """SM-6: each attribute and each instance for itself."""
    house, other = House(), House()
    for door in (Door.OPEN, Door.OPEN, Door.CLOSED, Door.BRICKED_UP, Door.BRICKED_UP):
        house.front = door
    assert (house.front, house.back, other.front) == (Door.BRICKED_UP, Door.OPEN, Door.CLOSED)


def test_sm6_a_state_without_arrows_is_the_end() -> None:
    """SM-6: whether the table lists it or not; the refused move leaves the state as it was."""
    house = House()
    house.front = Door.BRICKED_UP
    with pytest.raises(AssertionError, match="House cannot become OPEN from BRICKED_UP"):
        house.front = Door.OPEN
    house.back = Door.CLOSED
    with pytest.raises(AssertionError, match="House cannot become OPEN from CLOSED"):
        house.back = Door.OPEN
    assert (house.front, house.back) == (Door.BRICKED_UP, Door.CLOSED)


def test_sm6_every_instance_begins_at_the_beginning() -> None:
    """SM-6: nothing is born in the middle of its table."""

    class Ruin:
        front = Transitions(Door.CLOSED, {Door.CLOSED: (Door.OPEN,)})

        def __init__(self) -> None:
            self.front = Door.OPEN

    with pytest.raises(AssertionError, match="Ruin cannot become OPEN from the beginning"):
        Ruin()


def test_sm6_a_finished_repair_cannot_copy_again() -> None:
    """SM-6 on a machine of the package: a new attempt is a new machine."""
    metadata = ledger((3, 3, 2), {0: ("a", "b", "c")}, last=3)
    world = World(metadata, last_written=3, extra=("x",))
    (span,) = eligible_fragments(metadata)
    machine = FragmentRepair(LEDGER, metadata, world.version, span, "t", targets={0: "x"})
    world.run(machine)
    assert machine.state is RepairState.DONE
    for state in (RepairState.COPYING, RepairState.CHANGING, RepairState.FAILED):
        with pytest.raises(AssertionError, match=f"FragmentRepair cannot become {state.name} from DONE"):
            machine.state = state
