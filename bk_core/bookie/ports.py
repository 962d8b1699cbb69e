"""The port of the metadata store of a local cluster: the usual one where that can be had, and who listens on a port."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from bk_core.bookie.children import free_port
from bk_core.errors import InvalidArgumentError

USUAL_PORT = 2181
USUAL_ETCD_PORT = 2379
_PORT_WAIT_S = 5.0  # for a kept port: a server that was killed with its parent may be ending
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


def usual_port(directory: Path | None, metadata: str = "zookeeper") -> int | None:
    """Return the usual port of ZooKeeper or of etcd, or None where it is taken, or where the directory keeps one of an earlier start."""
    usual = USUAL_ETCD_PORT if metadata == "etcd" else USUAL_PORT
    if directory is not None:
        with suppress(OSError, ValueError):
            if json.loads((directory / "cluster.json").read_text()).get(f"{metadata}_port"):
                return None
    return usual if is_free(usual) else None


def wanted_port(kept: int | None, asked: int | None, directory: Path) -> int:
    """Return the port that was asked for, else the one that the directory keeps, else a free one. InvalidArgumentError for one that is
    taken."""
    port = kept if asked is None else asked
    if not port:
        return free_port()
    deadline = time.monotonic() + (_PORT_WAIT_S if port == kept else 0)
    while not is_free(port):
        if time.monotonic() >= deadline:
            keeps = f", which {directory} keeps," if port == kept else ""
            message = f"port {port}{keeps} is taken on 127.0.0.1; end the program that listens there, or ask for another port (--port)"
            raise InvalidArgumentError(message)
        time.sleep(0.1)
    return port


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
