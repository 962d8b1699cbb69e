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
    UNTRUSTED = auto()  # its certificate is of no authority that is trusted, or is not valid now
    OTHER_HOST = auto()  # its certificate is for another host
    REFUSES_TLS = auto()  # it ends the handshake for the sake of this client's certificate
    OTHER_TLS = auto()  # it speaks no version of TLS that this client does
    ENDS_TLS = auto()  # it ends the handshake for another reason
    LACKS_TLS = auto()  # it was spoken to by TLS, and does not speak it
    NEEDS_TLS = auto()  # it speaks TLS, and was spoken to without


@dataclass(frozen=True, slots=True)
class Service:
    """The words for a kind of metadata store: its name, its usual port, the scheme of its URIs, what limits connections."""

    name: str
    port: int
    scheme: str
    limit: str


ZOOKEEPER = Service("ZooKeeper", 2181, "zk", "its limit of connections for one host (maxClientCnxns) may be reached")
ETCD = Service("etcd", 2379, "etcd", "it may be starting or ending")
_TLS_ALERT = b"\x15\x03"  # the first bytes of a record by which a TLS server refuses what was sent
_TOLD = {
    Reach.REFUSED: "{0} refuses connections: nothing listens there",
    Reach.UNKNOWN_HOST: "the host of {0} is unknown",
    Reach.UNREACHABLE: "{0} cannot be reached",
    Reach.SILENT: "{0} does not answer",
    Reach.CLOSES: "{0} accepts a connection and closes it at once: {1.limit}",
    Reach.FOREIGN: "at {0} something answers that is not {1.name}, such as a bookie: the URI takes {1.name}'s port, mostly {1.port}",
    Reach.NOT_SERVING: "the {1.name} at {0} does not serve: it may lack its quorum",
    Reach.SERVES: "the {1.name} at {0} answers, but gave no session",
    Reach.UNTRUSTED: "the certificate of {0} is not trusted",
    Reach.OTHER_HOST: "the certificate of {0} is for another host",
    Reach.REFUSES_TLS: "{0} ends the TLS handshake: it may want a client certificate of an authority that it trusts",
    Reach.OTHER_TLS: "{0} speaks no version of TLS that this client does (see `minimum` of MetadataTls)",
    Reach.ENDS_TLS: "{0} ends the TLS handshake",
    Reach.LACKS_TLS: "{0} does not speak TLS: it may be the port without it ({1.scheme}://)",
    Reach.NEEDS_TLS: "{0} speaks TLS only: the URI then begins with {1.scheme}+tls://",
}
AT_ODDS = frozenset(
    {Reach.UNTRUSTED, Reach.OTHER_HOST, Reach.REFUSES_TLS, Reach.OTHER_TLS, Reach.ENDS_TLS, Reach.LACKS_TLS, Reach.NEEDS_TLS}
)
"""The outcomes that are about TLS. Waiting does not help."""
_HOPELESS = AT_ODDS | {Reach.REFUSED, Reach.UNKNOWN_HOST}


@dataclass(frozen=True, slots=True)
class Found:
    """``address`` is host:port; ``detail`` is the system's own message; ``service`` is what was looked for."""

    address: str
    reach: Reach
    detail: str = ""
    service: Service = ZOOKEEPER

    def __str__(self) -> str:
        return _TOLD[self.reach].format(self.address, self.service) + (f" ({self.detail})" if self.detail else "")


def is_hopeless(found: Sequence[Found]) -> bool:
    """True if every address refuses connections, is unknown or does not agree on TLS, so that waiting does not help unless somebody starts
    the store (SES-11)."""
    return bool(found) and all(one.reach in _HOPELESS for one in found)


def is_at_odds(found: Sequence[Found]) -> bool:
    """True if an address does not agree on TLS and none serves, so that the cause is there."""
    return any(one.reach in AT_ODDS for one in found) and not any(one.reach is Reach.SERVES for one in found)


def kind_of(answer: bytes | None) -> Reach:
    """Return the kind of server that gave this answer to ZooKeeper's command ``srvr``. None stands for no answer in time, b"" for the end
    of the connection."""
    if answer is None:
        return Reach.SILENT
    if answer.startswith(_TLS_ALERT):
        return Reach.NEEDS_TLS
    # the second one means that the command is not among those allowed
    if answer.startswith((b"Zookeeper version", b"srvr is not executed")):
        return Reach.SERVES
    return Reach.NOT_SERVING if answer.startswith(b"This ZooKeeper instance is not") else Reach.FOREIGN


def told(hosts: str, waited_s: float, found: Sequence[Found], service: Service = ZOOKEEPER) -> str:
    """Return a text with the problem of each address. ``waited_s`` is the time that the caller has really waited (SES-11)."""
    text = f"no connection to {service.name} at {hosts} after {waited_s:.1f} s"
    return f"{text}: {'; '.join(map(str, found))}" if found else text
