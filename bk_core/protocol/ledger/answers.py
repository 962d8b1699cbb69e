"""The verified content of read answers (RD-8): batches become runs, and LACs are taken from entries and explicit packets."""

from __future__ import annotations

from dataclasses import dataclass, field

from bk_core import kernels
from bk_core.errors import DigestError, RemoteProtocolError
from bk_core.protocol import BytesLike
from bk_core.protocol.entry import layout
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.protocol.ledger.run import EntryRun
from bk_core.protocol.wire.messages import ReadLacResponse, ReadResponse


@dataclass(frozen=True, slots=True)
class Wanted:
    """The entries that an answer should bring, and the means to check them: first, first + step, ... up to last."""

    ledger_id: int
    first: int
    last: int
    step: int
    digest_type: DigestType
    hmac_key: bytes = field(repr=False)


def entry_run(items: BytesLike, header_bytes: int, wanted: Wanted) -> tuple[EntryRun | None, DigestError | None]:
    """Return the good prefix of an answer with many entries, and the error behind it (RD-10).

    ``items`` is ``(u32 length, header_bytes, body)*``. Raises DigestError if the first entry is bad already or other entries came than were
    asked for, and RemoteProtocolError if the bytes are no such items.
    """
    problem: DigestError | None = None
    try:
        columns = _unpack(items, header_bytes, wanted)
    except DigestError as error:
        good = int(error.context.get("item", 0))
        if good == 0:
            raise
        problem = error
        columns = _unpack(memoryview(items)[: kernels.skip_frames(items, 0, len(items), good)], header_bytes, wanted)
    ids, offsets, values, _ = columns
    count = len(ids) // 8
    if wanted.first + (count - 1) * wanted.step > wanted.last:
        message = f"a read of ledger {wanted.ledger_id} from entry {wanted.first} to {wanted.last} brought more entries"
        raise DigestError(message, ledger=wanted.ledger_id)
    return EntryRun(wanted.first, count, values, memoryview(offsets).cast("q"), wanted.step), problem


def _unpack(items: BytesLike, header_bytes: int, wanted: Wanted) -> tuple[BytesLike, BytesLike, BytesLike, BytesLike]:
    digest_type = int(wanted.digest_type)
    return kernels.unpack_entries(items, header_bytes, wanted.ledger_id, digest_type, wanted.hmac_key, wanted.first, wanted.step)


def told_lac(response: object, ledger_id: int, digest_type: DigestType, hmac_key: bytes) -> int | None:
    """Return the LAC in an answer to a last-entry read or a LAC read: the highest of its parts, or None if it tells none.

    Only digest-checked values count (LC-1, RC-6), because a value above the writer's true LAC would cost safety. The bodies count even
    beside a failure status: a bookie with an explicit LAC and no entries answers so (wire-protocol.md 8.8). Raises DigestError and
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
    """Return ``told_lac``, or None where it would raise, because a bad answer counts as no answer."""
    try:
        return told_lac(response, ledger_id, digest_type, hmac_key)
    except (DigestError, RemoteProtocolError):
        return None
