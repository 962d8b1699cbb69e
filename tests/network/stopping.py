"""Processes that stand still."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

_TIMEOUT_S = 30.0


def stop_process(pid: int) -> None:
    """SIGSTOP, and wait until every thread of the process stands still: on a busy machine some go on for a moment, and still answer."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _TIMEOUT_S
    while not all(_stands_still(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} does not stop")
        time.sleep(0.001)


def _stands_still(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] in "TtZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
