"""Cases that may kill the process they are played in: a child plays them, and its parent counts what became of each."""

from __future__ import annotations

import faulthandler
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SILENCE_S = 120.0  # a case takes milliseconds


@dataclass(slots=True)
class Result:
    """``inputs``: entries that were read. ``refused``: those of them that gave an error."""

    cases: int = 0
    inputs: int = 0
    refused: int = 0
    crashes: list[str] = field(default_factory=list)


def play_each(play: Callable[[int], bool], first: int, last: int | None, seconds: float | None) -> None:
    """``play`` returns True if the case of that number was refused. Each case is told on standard output before it begins, so that whoever
    reads knows at which one this process died."""
    end = None if seconds is None else time.monotonic() + seconds
    number = first
    while (last is None or number < last) and (end is None or time.monotonic() < end):
        print(number, flush=True)
        faulthandler.dump_traceback_later(SILENCE_S, exit=True)
        try:
            print("refused" if play(number) else "read", flush=True)
        except Exception as error:
            print("wrong " + json.dumps(f"{type(error).__name__}: {error}"[:2000]), flush=True)
        number += 1
    faulthandler.cancel_dump_traceback_later()
    print("done", flush=True)


def run_cases(
    module: str,
    *,
    seconds: float | None = None,
    seed: int = 0,
    first: int = 0,
    cases: int | None = None,
    crashes_max: int = 20,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Cases ``first``, first + 1, ... by ``child`` of ``module``, until the time is over, or so many of them or of crashes were seen.

    The processes are its own. One that dies is a crash of its case, and another goes on behind it; ``say`` is told of crashes at once.
    """
    result = Result()
    end = None if seconds is None else time.monotonic() + seconds
    last = None if cases is None else first + cases
    while len(result.crashes) < crashes_max:
        left = None if end is None else max(0.0, end - time.monotonic())
        number, why = _played(module, result, seed, first, last, left, crashes_max, say)
        if why is None:
            break
        _note(result, seed, number, why, say)
        result.cases += 1
        first = number + 1
    return result


def _played(
    module: str,
    result: Result,
    seed: int,
    first: int,
    last: int | None,
    seconds: float | None,
    crashes_max: int,
    say: Callable[[str], None],
) -> tuple[int, str | None]:
    """The last case, and how the process ended unless it came to its end."""
    code = f"from {module} import child; child({seed}, {first}, {last}, {seconds})"
    number = first
    with subprocess.Popen([sys.executable, "-X", "faulthandler", "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                word = line.strip()
                if word.isdigit():
                    number = int(word)
                    continue
                if word == "done":
                    return number, None
                result.cases += 1
                result.inputs += 1
                result.refused += word == "refused"
                if word.startswith("wrong"):
                    _note(result, seed, number, json.loads(word[6:]), say)
                    if len(result.crashes) >= crashes_max:
                        return number, None
        finally:
            process.kill()
            process.wait()
    return number, f"the process ended with {process.returncode}"


def _note(result: Result, seed: int, number: int, why: str, say: Callable[[str], None]) -> None:
    text = f"seed {seed} case {number}: {why}"
    result.crashes.append(text)
    say(text)
