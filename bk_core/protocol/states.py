"""The state of a machine, an attribute that only moves along the arrows of its table (SM-6)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

S = TypeVar("S", bound=Enum)


class Transitions(Generic[S]):
    """A state attribute: ``state = Transitions(first, {a: (b, c), ...})`` in a class body.

    ``table`` maps each state to those that may follow; a state may always be set again. Any other move is a fault of the machine and raises
    AssertionError, because a stopped handle is better than one that writes on after its end. Reading costs nothing, because the value lives
    in the instance.
    """

    def __init__(self, first: S, table: Mapping[S, tuple[S, ...]]) -> None:
        self.first = first
        self.table = table
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    if TYPE_CHECKING:

        def __get__(self, instance: Any, owner: Any = None) -> S: ...

    def __set__(self, instance: Any, value: S) -> None:
        values = vars(instance)
        old = values.get(self._name)
        allowed = (self.first,) if old is None else (old, *self.table.get(old, ()))
        if value not in allowed:
            before = "the beginning" if old is None else old.name
            raise AssertionError(f"{type(instance).__name__} cannot become {value.name} from {before}")
        values[self._name] = value
