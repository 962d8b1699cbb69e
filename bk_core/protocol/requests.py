"""The base of the machines of logs and of file stores: numbered requests with one answer each, timers, and one step at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from bk_core.protocol.effects import SetTimer
from bk_core.protocol.events import TimerFired

Effect = TypeVar("Effect")
Event = TypeVar("Event")


class RequestMachine(Generic[Effect, Event]):
    """The base class. ``handle(event, now_ns)`` returns the effects of one step, after all its changes of state (SM-1).

    An answer is matched by its request's number; an answer that no request waits for has no effect (SM-3).
    """

    def __init__(self) -> None:
        self._effects: list[Any] = []
        self._waiting: dict[int, Callable[[Any], None]] = {}
        self._timers: dict[str, Callable[[], None]] = {}
        self._requests = 0

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """Take one input. ``now_ns`` is monotonic time in nanoseconds; these machines only ever measure it with timers."""
        if isinstance(event, TimerFired):
            action = self._timers.pop(event.key, None)
            if action is not None:
                action()
        else:
            answer: Any = event
            then = self._waiting.pop(answer.request, None)
            if then is not None:
                then(answer)
        return self._finish_step()

    def _advance(self) -> None:
        """Do whatever the step has made possible."""

    def _finish_step(self) -> list[Effect]:
        self._advance()
        effects, self._effects = self._effects, []
        return effects

    def _ask(self, make: Callable[[int], Effect], then: Callable[[Any], None]) -> None:
        """Send the request that ``make`` builds from its number; ``then`` gets the answer."""
        self._requests += 1
        self._waiting[self._requests] = then
        self._effects.append(make(self._requests))

    def _after(self, key: str, after_ns: int, action: Callable[[], None]) -> None:
        self._timers[key] = action
        self._effects.append(SetTimer(key, after_ns))

    def _stop_asking(self) -> None:
        """No answer and no timer does anything any more."""
        self._waiting.clear()
        self._timers.clear()
