"""The README's state tables are those of the code, and a machine cannot leave them (SM-6)."""

from __future__ import annotations

from enum import Enum, auto

import pytest

from bk_core.protocol.states import Transitions
from tests import state_tables


def test_the_readme_has_the_tables_of_the_code() -> None:
    assert state_tables.render() in state_tables.README.read_text(), "run: python -m tests.state_tables"


class _Lamp(Enum):
    OFF = auto()
    ON = auto()
    BROKEN = auto()


class _Machine:
    state = Transitions(_Lamp.OFF, {_Lamp.OFF: (_Lamp.ON,), _Lamp.ON: (_Lamp.OFF, _Lamp.BROKEN)})

    def __init__(self, first: _Lamp = _Lamp.OFF) -> None:
        self.state = first


def test_a_machine_moves_along_the_arrows_only() -> None:
    """SM-6."""
    machine = _Machine()
    machine.state = _Lamp.ON
    machine.state = _Lamp.ON
    machine.state = _Lamp.BROKEN
    with pytest.raises(AssertionError, match="_Machine cannot become ON from BROKEN"):
        machine.state = _Lamp.ON
    with pytest.raises(AssertionError, match="cannot become ON from the beginning"):
        _Machine(_Lamp.ON)
