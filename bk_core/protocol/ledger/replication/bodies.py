"""Takes verified entry bodies out of read answers, byte for byte as the bookie sent them."""

from __future__ import annotations

from dataclasses import dataclass, field

from bk_core.errors import DigestError, RemoteProtocolError
from bk_core.protocol.entry import layout
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.protocol.wire.messages import BatchReadResponse, ReadResponse

PART_LENGTH_BYTES = 4  # u32 before each body of a batch read


@dataclass(frozen=True, slots=True)
class Body:
    """One entry of an answer. ``problem`` is the reason why the copy is not what was asked for (RD-8); then ``entry`` is None."""

    entry_id: int
    data: bytes = field(repr=False)
    entry: layout.Entry | None = None
    problem: str | None = None


def bodies_of(response: object, ledger_id: int, first: int, last: int, digest_type: DigestType, hmac_key: bytes) -> list[Body]:
    """Return the entries of the answer from ``first`` on, at most up to ``last``, each judged for itself."""
    if isinstance(response, ReadResponse):
        parts = [] if response.body is None else [bytes(response.body)]
    elif isinstance(response, BatchReadResponse):
        parts = _parts(bytes(response.bodies or b""))
    else:
        parts = []
    return [_judged(data, ledger_id, first + i, digest_type, hmac_key) for i, data in enumerate(parts[: last - first + 1])]


def _parts(data: bytes) -> list[bytes]:
    parts: list[bytes] = []
    at = 0
    while at + PART_LENGTH_BYTES <= len(data):
        start = at + PART_LENGTH_BYTES
        at = start + int.from_bytes(data[at:start], "big")
        if at > len(data):
            break  # the answer is cut off; its complete entries still count
        parts.append(data[start:at])
    return parts


def _judged(data: bytes, ledger_id: int, entry_id: int, digest_type: DigestType, hmac_key: bytes) -> Body:
    try:
        return Body(entry_id, data, layout.decode_body(data, ledger_id, entry_id, digest_type, hmac_key))
    except (DigestError, RemoteProtocolError) as error:
        return Body(entry_id, data, problem=str(error.args[0]))
