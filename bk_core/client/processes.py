"""The facts that this process can tell about itself and about other processes of its host (protocol/log/vanished.py decides what that
means)."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from bk_core.protocol.log.vanished import Place, Presence, Seen

_FIRST_TIME_NAMESPACE = "time:[4026531834]"  # of every host


def place_here() -> Place:
    """This host, since it was booted, and this process namespace. Not known where there is no /proc, or that of another namespace."""
    return Place(socket.gethostname(), _boot())


def _boot() -> str:
    """Not remembered: a child may live in another namespace than its parent."""
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
    except OSError:  # a kernel without any
        return _FIRST_TIME_NAMESPACE


def look_at(pid: int) -> Seen:
    """By signal 0, which no mount option of /proc hides a process from; then its start."""
    if pid <= 0:
        return Seen(Presence.HIDDEN)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return Seen(Presence.ABSENT)
    except (OSError, OverflowError):  # of somebody else, most likely: it is there
        pass
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return Seen(Presence.HIDDEN)
    return Seen(Presence.ENDED) if fields[0] in "ZX" else Seen(Presence.RUNNING, int(fields[19]))


def start_of_this() -> int:
    """When this process started, in clock ticks since boot; 0 if /proc does not tell."""
    return look_at(os.getpid()).started if _boot() else 0
