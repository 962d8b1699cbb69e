"""How a client behaves: one frozen value, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from bk_core.errors import InvalidArgumentError
from bk_core.protocol.limits import Limits

PROTOCOLS = ("v2", "v3")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """``protocol``: "v2" sends adds and reads over v2 and what v2 lacks over v3; "v3" uses v3 alone (wire-protocol.md 6).

    ``operation_timeout_s`` bounds every blocking call; ``metadata_timeout_s`` one try at the metadata store.
    """

    uri: str
    protocol: str = "v2"
    operation_timeout_s: float = 60.0
    metadata_timeout_s: float = 10.0
    log_root: str | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise InvalidArgumentError(f"protocol must be one of {', '.join(PROTOCOLS)}, not {self.protocol!r}")
        if not self.uri:
            raise InvalidArgumentError("a metadata service URI is needed, for example zk://127.0.0.1:2181/ledgers")
