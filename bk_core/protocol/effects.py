"""Effects that a ledger machine can ask of its world. The reactor and the simulator perform the same effects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata
from bk_core.protocol.wire.messages import Request

if TYPE_CHECKING:
    from bk_core.protocol.ledger.run import PackedAdds


@dataclass(frozen=True, slots=True)
class SendAdds:
    """Send the entries of ``run`` from index ``start`` that ``position`` holds to ``bookie``."""

    bookie: BookieId
    position: int
    run: PackedAdds
    start: int = 0


@dataclass(frozen=True, slots=True)
class SendRead:
    """Send one read-like request; exactly one ReadReply answers it. ``timeout_ns`` overrides the world's default."""

    request: int
    bookie: BookieId
    message: Request
    timeout_ns: int | None = None


@dataclass(frozen=True, slots=True)
class SendAndForget:
    """Send one request of which no answer is wanted, such as an explicit LAC (WR-16). It may be lost."""

    bookie: BookieId
    message: Request


@dataclass(frozen=True, slots=True)
class ReadLedger:
    """Read the metadata of this ledger and, for ``bookies``, their current addresses."""

    request: int
    bookies: tuple[BookieId, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteLedger:
    """Store this ledger's metadata by compare-and-set against ``version``."""

    request: int
    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class LookForBookies:
    """Look at the registered bookies now, because what the placement knows of them may be a moment old (EC-6). Exactly one
    BookiesLookedFor answers it."""

    request: int


@dataclass(frozen=True, slots=True)
class SetTimer:
    """(Re)start a timer; an older one with the same key is forgotten."""

    key: str
    after_ns: int


@dataclass(frozen=True, slots=True)
class Complete:
    """Finish the application call behind ``token`` with success."""

    token: Any
    value: Any = None


@dataclass(frozen=True, slots=True)
class Fail:
    token: Any
    error: Exception = field(repr=True)


@dataclass(frozen=True, slots=True)
class Log:
    """Log a line for the operator: ``level`` is one of debug, info, warning, error."""

    level: str
    message: str


Effect = SendAdds | SendRead | SendAndForget | ReadLedger | WriteLedger | LookForBookies | SetTimer | Complete | Fail | Log
