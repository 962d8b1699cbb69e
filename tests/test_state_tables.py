"""The README's state tables are those of the code, and a machine cannot leave them (SM-6)."""

from __future__ import annotations

import ast
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import pytest

from bk_core.protocol.states import Transitions
from tests import state_tables


def test_the_readme_has_the_tables_of_the_code() -> None:
    assert state_tables.render() in state_tables.README.read_text(), "run: python -m tests.state_tables"


class _Repairer:
    """Its ``handle`` is read, and never called."""

    _ask: Callable[..., object]

    def handle(self, event: Any) -> Any:
        match event:
            case "lost":
                lost = [copy for copy in self.copies.values() if copy]
                return self._not_added(lost, self._status()) + self._go_on()
            case "drained":
                self.moved[event] = max(event, self.moved.get(event, event))
                return []
            case "ignored":
                return []

    copies: dict[Any, Any]
    moved: dict[Any, Any]

    def _not_added(self, lost: list[Any], status: int) -> list[Any]:
        """Send again.

        A few times.
        """
        return []

    def _go_on(self) -> list[Any]:
        return []

    def _status(self) -> int:
        return 0

    def _start(self) -> None:
        self._ask("list", self._on_list)

    def _again(self) -> None:
        (lambda: self._ask("list", self._on_list))()

    def _on_list(self, event: Any) -> None:
        self._ask("ledger", self._on_ledger)

    def _on_ledger(self, event: Any) -> None:
        pass


def _arms() -> dict[str, list[ast.stmt]]:
    found = ast.walk(state_tables._methods(_Repairer, "tests")["handle"])
    return {ast.unparse(node.pattern): node.body for node in found if isinstance(node, ast.match_case)}


def test_what_a_machine_holds_is_not_taken_for_what_it_does() -> None:
    told = {name: state_tables._effect(_Repairer, body) for name, body in _arms().items()}
    assert told == {
        "'lost'": "`_not_added`: Send again; then `_go_on`",
        "'drained'": "`self.moved[event] = max(event, self.moved.get(event, event))`",
        "'ignored'": "nothing",
    }


def test_answers_to_one_question_are_told_by_who_asks_it() -> None:
    methods = state_tables._methods(_Repairer, "tests")
    assert state_tables._askers(methods, "_on_list") == ["_start", "_again"]
    assert state_tables._askers(methods, "_on_ledger") == ["_on_list"]


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
