"""Facts about this process and about other processes of its host; protocol/log/vanished.py draws the conclusions."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from bk_core.protocol.log.vanished import Place, Presence, Seen

_FIRST_TIME_NAMESPACE = "time:[4026531834]"  # that of every host


def place_here() -> Place:
    """Return this host, its boot, and this process namespace. They are not known without /proc, or with that of another namespace."""
    return Place(socket.gethostname(), _boot())


def _boot() -> str:
    """Return the id of the boot. It is not remembered, because a child may live in another namespace than its parent."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return ""
        boot = f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
    clock = _time_namespace()  # times of starts are shifted by it
    return boot if clock == _FIRST_TIME_NAMESPACE else f"{boot} {clock}"


def _time_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/time")
    except OSError:  # a kernel without time namespaces
        return _FIRST_TIME_NAMESPACE


def look_at(pid: int) -> Seen:
    """Look at a process by signal 0, which no mount option of /proc can prevent, and then at its start."""
    if pid <= 0:
        return Seen(Presence.HIDDEN)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return Seen(Presence.ABSENT)
    except (OSError, OverflowError):  # most likely it is there and belongs to another user
        pass
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return Seen(Presence.HIDDEN)
    return Seen(Presence.ENDED) if fields[0] in "ZX" else Seen(Presence.RUNNING, int(fields[19]))


def start_of_this() -> int:
    """Return the start of this process, in clock ticks since boot; 0 if /proc does not tell."""
    return look_at(os.getpid()).started if _boot() else 0
