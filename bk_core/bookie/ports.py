"""The port of a local cluster's ZooKeeper: the usual one, if it is free. Also finds out who listens on a port."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from pathlib import Path

USUAL_PORT = 2181
_LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp


def is_free(port: int) -> bool:
    """Return True if a program could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that ended a moment ago do not matter
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            return False
    return True


def usual_port(directory: Path | None) -> int | None:
    """Return ZooKeeper's usual port, or None where it is taken, or where the directory keeps a port of an earlier start."""
    if directory is not None:
        with suppress(OSError, ValueError):
            if json.loads((directory / "cluster.json").read_text())["zookeeper_port"]:
                return None
    return USUAL_PORT if is_free(USUAL_PORT) else None


def listens(pid: int, port: int) -> bool:
    """Return True if this process, one of the same user, listens on a port. Another server may hold the port while the process starts."""
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # closed meanwhile
                if os.readlink(f"/proc/{pid}/fd/{name}") in sockets:
                    return True
    return False
