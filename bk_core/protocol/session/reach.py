"""Looks at the addresses of a metadata store that gives no session: what is there, whether waiting may help, and the message about it
(SES-11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto


class Reach(Enum):
    REFUSED = auto()
    UNKNOWN_HOST = auto()
    UNREACHABLE = auto()  # the network says so
    SILENT = auto()
    CLOSES = auto()  # a connection is accepted and closed before anything was asked
    FOREIGN = auto()  # something other than ZooKeeper
    NOT_SERVING = auto()  # a ZooKeeper without its quorum
    SERVES = auto()  # a ZooKeeper that answers, and gave no session


_TOLD = {
    Reach.REFUSED: "{0} refuses connections: nothing listens there",
    Reach.UNKNOWN_HOST: "the host of {0} is unknown",
    Reach.UNREACHABLE: "{0} cannot be reached",
    Reach.SILENT: "{0} does not answer",
    Reach.CLOSES: "{0} accepts a connection and closes it at once: its limit of connections for one host (maxClientCnxns) may be reached",
    Reach.FOREIGN: "at {0} something answers that is not ZooKeeper, such as a bookie: the URI takes ZooKeeper's port, mostly 2181",
    Reach.NOT_SERVING: "the ZooKeeper at {0} does not serve: it may lack its quorum",
    Reach.SERVES: "the ZooKeeper at {0} answers, but gave no session",
}


@dataclass(frozen=True, slots=True)
class Found:
    """``address`` is host:port; ``detail`` is the system's own message."""

    address: str
    reach: Reach
    detail: str = ""

    def __str__(self) -> str:
        return _TOLD[self.reach].format(self.address) + (f" ({self.detail})" if self.detail else "")


def is_hopeless(found: Sequence[Found]) -> bool:
    """True if every address refuses connections or is unknown, so that waiting does not help unless somebody starts the store (SES-11)."""
    return bool(found) and all(one.reach in (Reach.REFUSED, Reach.UNKNOWN_HOST) for one in found)


def kind_of(answer: bytes | None) -> Reach:
    """Return the kind of server that gave this answer to ZooKeeper's command ``srvr``. None stands for no answer in time, b"" for the end
    of the connection."""
    if answer is None:
        return Reach.SILENT
    # the second one means that the command is not among those allowed
    if answer.startswith((b"Zookeeper version", b"srvr is not executed")):
        return Reach.SERVES
    return Reach.NOT_SERVING if answer.startswith(b"This ZooKeeper instance is not") else Reach.FOREIGN


def told(hosts: str, waited_s: float, found: Sequence[Found]) -> str:
    """Return a text with the problem of each address. ``waited_s`` is the time that the caller has really waited (SES-11)."""
    text = f"no connection to ZooKeeper at {hosts} after {waited_s:.1f} s"
    return f"{text}: {'; '.join(map(str, found))}" if found else text
