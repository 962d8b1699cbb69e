"""Verified content of read answers (RD-8): batches as runs, LACs out of entries and explicit packets."""

from __future__ import annotations

import struct
from array import array

from bk_core import kernels
from bk_core.errors import DigestError, RemoteProtocolError
from bk_core.protocol.entry import layout
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.protocol.ledger.run import EntryRun
from bk_core.protocol.wire.messages import ReadLacResponse, ReadResponse

_LENGTH = struct.Struct(">I")


def batch_run(
    bodies: bytes, ledger_id: int, first: int, last: int, digest_type: DigestType, hmac_key: bytes
) -> tuple[EntryRun | None, DigestError | None]:
    """The good prefix of a batch read of entries first..last, and what is wrong behind it (RD-10).

    Raises DigestError when the first entry is bad already or when other entries came than were asked for, RemoteProtocolError for bytes
    that are no batch.
    """
    problem: DigestError | None = None
    try:
        columns = kernels.unpack_entries(bodies, 0, ledger_id, int(digest_type), hmac_key)
    except DigestError as error:
        good = int(error.context.get("item", 0))
        if good == 0:
            raise
        problem = error
        columns = kernels.unpack_entries(bodies[: _end_of_items(bodies, good)], 0, ledger_id, int(digest_type), hmac_key)
    ids, offsets, values, _ = columns
    count = len(ids) // 8
    wanted = array("q", range(first, first + count))
    if bytes(ids) != wanted.tobytes() or first + count - 1 > last:
        raise DigestError(f"a batch read of ledger {ledger_id} from entry {first} brought other entries", ledger=ledger_id)
    return EntryRun(first, count, values, memoryview(offsets).cast("q")), problem


def _end_of_items(bodies: bytes, count: int) -> int:
    position = 0
    for _ in range(count):
        position += _LENGTH.size + _LENGTH.unpack_from(bodies, position)[0]
    return position


def told_lac(response: object, ledger_id: int, digest_type: DigestType, hmac_key: bytes) -> int | None:
    """The LAC in an answer to a last-entry read or a LAC read: the highest of its parts, None if it tells none.

    Only digest-checked values count (LC-1, RC-6): a value above the writer's true LAC would cost safety. The bodies count even beside a
    failure status: a bookie with an explicit LAC and no entries answers so (wire-protocol.md 8.8). Raises DigestError,
    RemoteProtocolError.
    """
    if isinstance(response, ReadResponse):
        parts, packet = response.body, None
    elif isinstance(response, ReadLacResponse):
        parts, packet = response.last_entry_body, response.lac_body
    else:
        return None
    values: list[int] = []
    if packet:
        values.append(layout.decode_lac_packet(packet, ledger_id, digest_type, hmac_key))
    if parts:
        values.append(layout.decode_body(parts, ledger_id, None, digest_type, hmac_key).last_add_confirmed)
    return max(values, default=None)


def checked_lac(response: object, ledger_id: int, digest_type: DigestType, hmac_key: bytes) -> int | None:
    """``told_lac``, or None where it would raise: a bad answer is no answer."""
    try:
        return told_lac(response, ledger_id, digest_type, hmac_key)
    except (DigestError, RemoteProtocolError):
        return None
