"""The messages of clients and bookies: one frozen dataclass per request and response, no bytes of the wire.

Source: wire-protocol.md 4.2 and 5.2-5.3. ``body`` is an entry body: 32-byte header, digest, payload (wire-protocol.md 7.1).
``request_id`` is the correlation number: v3 ``txnId``, v2 batch-read ``requestId``; 0 where v2 has none (adds and single reads are
then matched by ledger and entry id, wire-protocol.md 5.4).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from bk_core.protocol import BytesLike
from bk_core.protocol.wire.batch_parts import BatchParts, BodyCheck

LAST_ENTRY = -1  # as an entry id in a read: "the last entry you have"


class Status(IntEnum):
    """Result of a request. Values are the v3 numbers; v2 numbers are mapped in ``wire/status.py``. Negative values are local."""

    OK = 0
    NO_LEDGER = 402
    NO_ENTRY = 403
    BAD_REQUEST = 404
    IO_ERROR = 501
    UNAUTHORIZED = 502
    BAD_VERSION = 503
    FENCED = 504
    READ_ONLY = 505
    TOO_MANY_REQUESTS = 506
    UNKNOWN_LEDGER_STATE = 507
    # Never on the wire: what the client concludes itself.
    TIMEOUT = -1
    UNAVAILABLE = -2
    PROTOCOL_ERROR = -3
    NOT_ADMITTED = -4  # TLS or authentication failed before anything was asked (LINK-10)


@dataclass(frozen=True, slots=True)
class AddRequest:
    request_id: int
    ledger_id: int
    entry_id: int
    master_key: bytes = field(repr=False)
    body: bytes = field(repr=False)
    recovery: bool = False
    high_priority: bool = False
    deferred_sync: bool = False  # v3 only


@dataclass(frozen=True, slots=True)
class ReadRequest:
    request_id: int
    ledger_id: int
    entry_id: int
    fence: bool = False
    high_priority: bool = False
    master_key: bytes = field(default=b"", repr=False)
    previous_lac: int | None = None  # v3 only: makes it a long poll
    timeout_ms: int | None = None  # v3 only
    piggyback: bool = False  # v3 only


@dataclass(frozen=True, slots=True)
class BatchReadRequest:
    """Asks for a batch of entries; v2 only, bookies from 4.17. ``check`` is no part of the message: with it, a long answer is verified
    while it arrives."""

    request_id: int
    ledger_id: int
    entry_id: int
    entries_max: int
    bytes_max: int
    fence: bool = False
    high_priority: bool = False
    master_key: bytes = field(default=b"", repr=False)
    check: BodyCheck | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ReadRunRequest:
    """Asks for ``count`` plain reads, of entries entry_id, entry_id + step, ... This is no message of the wire, but many that are asked,
    awaited and answered as one (``read_run``). The answer ends with the entry that reaches ``bytes_max``, as that to a batch read does;
    with 0 there is no such limit."""

    request_id: int
    ledger_id: int
    entry_id: int
    count: int
    step: int = 1
    bytes_max: int = field(default=0, compare=False)

    @property
    def last_entry_id(self) -> int:
        return self.entry_id + (self.count - 1) * self.step


@dataclass(frozen=True, slots=True)
class AuthRequest:
    request_id: int
    plugin: str
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class WriteLacRequest:
    request_id: int
    ledger_id: int
    last_add_confirmed: int
    master_key: bytes = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReadLacRequest:
    request_id: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class ForceLedgerRequest:
    request_id: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class BookieInfoRequest:
    request_id: int
    requested: int = 3


@dataclass(frozen=True, slots=True)
class EntryListRequest:
    request_id: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class StartTlsRequest:
    request_id: int


@dataclass(frozen=True, slots=True)
class UnservedRequest:
    """A well-formed request that must be answered with ``status`` and without an inner message (wire-protocol.md 3.3, 8.12)."""

    request_id: int
    operation: int
    version: int
    status: Status
    ledger_id: int = 0
    entry_id: int = 0


Request = (
    AddRequest
    | ReadRequest
    | BatchReadRequest
    | ReadRunRequest
    | AuthRequest
    | WriteLacRequest
    | ReadLacRequest
    | ForceLedgerRequest
    | BookieInfoRequest
    | EntryListRequest
    | StartTlsRequest
    | UnservedRequest
)


@dataclass(frozen=True, slots=True)
class AddResponse:
    request_id: int
    status: Status
    ledger_id: int
    entry_id: int


@dataclass(frozen=True, slots=True)
class ReadResponse:
    """Answers a read. ``entry_id`` is as requested (-1 stays -1), except in a piggyback long poll, where it is the entry's own."""

    request_id: int
    status: Status
    ledger_id: int
    entry_id: int
    body: bytes | None = field(default=None, repr=False)
    max_lac: int | None = None
    lac_update_timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class BatchReadResponse:
    """Answers a batch read. ``bodies`` is the wire form, ``(u32 length, body)*``: the bodies of entry_id, entry_id + 1, ... without gaps.

    A client hands them out as a view of its receive buffer, which is valid during the call that brings them. If the request said how to
    check them, it hands them out as ``parts``, and there are no bodies.
    """

    request_id: int
    status: Status
    ledger_id: int
    entry_id: int
    bodies: BytesLike = field(default=b"", repr=False)
    parts: BatchParts | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ReadRunResponse:
    """Answers a prefix of a ReadRunRequest: ``frames`` are v2 read responses back to back, ``(u32 length, 24 bytes, body)*``."""

    request_id: int
    status: Status
    ledger_id: int
    entry_id: int
    frames: BytesLike = field(default=b"", repr=False)
    max_lac: int | None = None


@dataclass(frozen=True, slots=True)
class AuthResponse:
    request_id: int
    status: Status
    plugin: str = ""
    payload: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class WriteLacResponse:
    request_id: int
    status: Status
    ledger_id: int


@dataclass(frozen=True, slots=True)
class ReadLacResponse:
    request_id: int
    status: Status
    ledger_id: int
    lac_body: bytes | None = field(default=None, repr=False)
    last_entry_body: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ForceLedgerResponse:
    request_id: int
    status: Status
    ledger_id: int


@dataclass(frozen=True, slots=True)
class BookieInfoResponse:
    request_id: int
    status: Status
    total_disk_bytes: int | None = None
    free_disk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class EntryListResponse:
    request_id: int
    status: Status
    ledger_id: int
    entries: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class StartTlsResponse:
    request_id: int
    status: Status


@dataclass(frozen=True, slots=True)
class UnservedResponse:
    """Answers an unserved request: it repeats the header and has no inner message."""

    request_id: int
    status: Status
    operation: int
    version: int = 3
    ledger_id: int = 0
    entry_id: int = 0


Response = (
    AddResponse
    | ReadResponse
    | BatchReadResponse
    | ReadRunResponse
    | AuthResponse
    | WriteLacResponse
    | ReadLacResponse
    | ForceLedgerResponse
    | BookieInfoResponse
    | EntryListResponse
    | StartTlsResponse
    | UnservedResponse
)
