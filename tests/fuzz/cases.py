"""The loop of all modules that play their cases in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Counted(Protocol):
    """The result of a module, which counts its cases and inputs and tells of its crashes."""

    cases: int
    inputs: int
    crashes: list[str]


def play_cases(
    result: Counted,
    play: Callable[[int], int],
    *,
    seconds: float | None,
    seed: int,
    first: int,
    cases: int | None,
    crashes_max: int | None,
    say: Callable[[str], None],
    caught: tuple[type[Exception], ...] = (Exception,),
) -> None:
    """Play cases ``first``, first + 1, ... until the time is over, or so many of them or of crashes were seen. ``play`` gets the number of
    a case and returns how many inputs it had; what it raises of ``caught`` is a crash, which is told at once."""
    case, end = first, None if seconds is None else time.monotonic() + seconds
    while (end is None or time.monotonic() < end) and (cases is None or case < first + cases):
        if crashes_max is not None and len(result.crashes) >= crashes_max:
            return
        try:
            result.inputs += play(case)
        except caught as error:
            result.crashes.append(f"seed {seed} case {case}: {type(error).__name__}: {error}")
            say(result.crashes[-1])
        result.cases += 1
        case += 1
