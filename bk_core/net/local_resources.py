"""Names what this process or host is short of when a connection cannot be made, and says what to do."""

from __future__ import annotations

import errno
import resource
import socket

from bk_core.errors import LocalResourceError
from bk_core.protocol.session.shortage import EVERYWHERE, is_shortage

_TEXTS = {
    "ENFILE": "this host has no file descriptor left for anybody: raise fs.file-max, or end what uses so many",
    "ENOBUFS": "this host has no memory left for another connection: end what uses it, or give it more",
    "ENOMEM": "this host has no memory left for another connection: end what uses it, or give it more",
    "EADDRNOTAVAIL": "this host has no local port or address left for a connection there: let clients share connections, or widen "
    "net.ipv4.ip_local_port_range",
    "EACCES": "this host does not allow the connection: ask who keeps its firewall",
    "EPERM": "this host does not allow the connection: ask who keeps its firewall",
}


def name_of(error: OSError) -> str:
    """Return the name of the error, such as EMFILE, or an empty text if the system gave no number."""
    return errno.errorcode.get(error.errno or 0, "")


def shortage_text(error: OSError) -> str | None:
    """Return what is missing and what to do, or None if the error tells of no shortage."""
    name = name_of(error)
    if not is_shortage(name):
        return None
    if name == "EMFILE":  # then every number below the limit is taken
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        taken = f"this process has no file descriptor left, all {limit} that its limit allows are in use"
        text = f"{taken}: close what it does not need, or raise the limit (ulimit -n, LimitNOFILE)"
    else:
        text = _TEXTS[name]
    return f"{text} [{name}]"


def shortage_now() -> OSError | None:
    """Return the error with which this process would fail to open another socket now, or None. Resolvers and other libraries hide that
    error."""
    try:
        socket.socket().close()
    except OSError as error:
        return error if name_of(error) in EVERYWHERE else None
    return None


def local_resource_error(what: str, error: OSError | None) -> LocalResourceError | None:
    """Return a LocalResourceError for ``error``, or without it for what is missing right now; None if nothing is missing."""
    found = error or shortage_now()
    text = None if found is None else shortage_text(found)
    return None if text is None else LocalResourceError(f"{what}: {text}")
