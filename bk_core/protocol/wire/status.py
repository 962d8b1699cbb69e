"""Status numbers of both protocols and the error class of each status (wire-protocol.md 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from bk_core.errors import (
    BadRequestError,
    BadVersionError,
    BkError,
    BookieIOError,
    BookieSecurityError,
    BookieTimeoutError,
    BookieUnavailableError,
    FencedError,
    InvalidArgumentError,
    NoSuchEntryError,
    NoSuchLedgerOnBookieError,
    ReadOnlyError,
    RemoteProtocolError,
    TooManyRequestsError,
    UnauthorizedError,
    UnknownLedgerStateError,
)
from bk_core.protocol.wire.messages import Status

V2_NUMBERS: Mapping[Status, int] = MappingProxyType(
    {
        Status.OK: 0,
        Status.NO_LEDGER: 1,
        Status.NO_ENTRY: 2,
        Status.BAD_REQUEST: 100,
        Status.IO_ERROR: 101,
        Status.UNAUTHORIZED: 102,
        Status.BAD_VERSION: 103,
        Status.FENCED: 104,
        Status.READ_ONLY: 105,
        Status.TOO_MANY_REQUESTS: 106,
        Status.UNKNOWN_LEDGER_STATE: 107,
    }
)
V2_STATUSES: Mapping[int, Status] = MappingProxyType({number: status for status, number in V2_NUMBERS.items()})
V3_STATUSES: Mapping[int, Status] = MappingProxyType({int(status): status for status in V2_NUMBERS})

ERRORS: Mapping[Status, type[BkError]] = MappingProxyType(
    {
        Status.NO_LEDGER: NoSuchLedgerOnBookieError,
        Status.NO_ENTRY: NoSuchEntryError,
        Status.BAD_REQUEST: BadRequestError,
        Status.IO_ERROR: BookieIOError,
        Status.UNAUTHORIZED: UnauthorizedError,
        Status.BAD_VERSION: BadVersionError,
        Status.FENCED: FencedError,
        Status.READ_ONLY: ReadOnlyError,
        Status.TOO_MANY_REQUESTS: TooManyRequestsError,
        Status.UNKNOWN_LEDGER_STATE: UnknownLedgerStateError,
        Status.TIMEOUT: BookieTimeoutError,
        Status.UNAVAILABLE: BookieUnavailableError,
        Status.PROTOCOL_ERROR: RemoteProtocolError,
        Status.NOT_ADMITTED: BookieSecurityError,
    }
)


def status_from_v2(number: int) -> Status:
    """Return the status of a v2 error code. An unknown code is a generic failure of that bookie (wire-protocol.md 14.1 item 8)."""
    return V2_STATUSES.get(number, Status.IO_ERROR)


def status_from_v3(number: int) -> Status:
    """Return the status of a v3 status number. Unknown numbers are treated as in v2; the result is never one of the local (negative)
    values."""
    return V3_STATUSES.get(number, Status.IO_ERROR)


def v2_number(status: Status) -> int:
    """Return the code to send over v2. UNKNOWN_LEDGER_STATE is sent as EIO: a Java v2 client drops the connection on 107 (wire-protocol.md
    11.3).

    Raises InvalidArgumentError for a local status, which has no number.
    """
    if status is Status.UNKNOWN_LEDGER_STATE:
        return V2_NUMBERS[Status.IO_ERROR]
    try:
        return V2_NUMBERS[status]
    except KeyError:
        raise InvalidArgumentError(f"{status!r} is never sent") from None


def v3_number(status: Status) -> int:
    """Return the number to send over v3. Raises InvalidArgumentError for a local status."""
    if status not in V2_NUMBERS:
        raise InvalidArgumentError(f"{status!r} is never sent")
    return int(status)
