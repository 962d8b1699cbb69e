"""The base of the machine of a file store: numbered requests, each with one answer and one thing to do about it; timers; one step at a
time, like ``LogMachine`` one level below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bk_core.protocol.effects import SetTimer
from bk_core.protocol.events import TimerFired
from bk_core.protocol.files.effects import FileEffect, FileEvent


class Steps:
    """An answer is matched by its request's number; one that nobody waits for any more does nothing (SM-3)."""

    def __init__(self) -> None:
        self._effects: list[FileEffect] = []
        self._waiting: dict[int, Callable[[Any], None]] = {}
        self._timers: dict[str, Callable[[], None]] = {}
        self._requests = 0

    def handle(self, event: FileEvent, now_ns: int) -> list[FileEffect]:
        """The effects of one step, after all its changes of state (SM-1). ``now_ns``: monotonic; it is only ever measured with timers."""
        if isinstance(event, TimerFired):
            action = self._timers.pop(event.key, None)
            if action is not None:
                action()
        else:
            then = self._waiting.pop(event.request, None)
            if then is not None:
                then(event)
        return self._finish_step()

    def _advance(self) -> None:
        """Whatever has become possible by the step."""

    def _finish_step(self) -> list[FileEffect]:
        self._advance()
        effects, self._effects = self._effects, []
        return effects

    def _ask(self, make: Callable[[int], FileEffect], then: Callable[[Any], None]) -> None:
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
