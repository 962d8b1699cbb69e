"""Calls in a child of this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from bk_core.errors import BkError


def in_a_forked_child(calls: dict[str, Callable[[], object]], ends: Callable[[], object] = lambda: None) -> dict[str, str]:
    """The code of the error that each of the calls raises in a child, which is ended if one of them hangs; "" for one that raises none."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for name, call in calls.items():
            signal.alarm(10)
            try:
                call()
                code = ""
            except BkError as error:
                code = error.code
            os.write(writer, f"{name} {code}\n".encode())
        ends()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = dict(line.rstrip("\n").split(" ") for line in pipe)
    os.waitpid(pid, 0)
    return said
