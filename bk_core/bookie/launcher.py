"""Becomes the program named in its arguments, after asking the kernel to kill this process when its parent dies.

    python -I -S launcher.py PARENT_PID PROGRAM [ARGUMENT ...]

It is a program of its own, run as a file, because nothing of Python may run between fork and exec in a process that has threads: the
child would finalise what belongs to other threads of the parent, such as the connections of a Spark session. The process id stays the
same, and so does the death signal, unless PROGRAM changes its user. Exit status 127 if PROGRAM cannot be started. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_NOT_STARTED = 127
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFSZ")  # and a program would inherit that


def main(parent: int, command: list[str]) -> int:
    """Become the program. Returns only if there is none to become."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the kernel knew
        return _NOT_STARTED
    for name in _IGNORED_BY_PYTHON:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", file=sys.stderr, flush=True)
    return _NOT_STARTED


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), sys.argv[2:]))
