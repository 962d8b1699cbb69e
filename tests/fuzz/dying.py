"""Cases of which number 2 kills its process: what a crash looks like from outside."""

from __future__ import annotations

import os
import signal


def child(seed: int, first: int, last: int, seconds: float | None) -> None:
    for number in range(first, last):
        print(number, flush=True)
        if number == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        print("refused", flush=True)
    print("done", flush=True)
