from collections.abc import Sequence

from typing_extensions import Buffer

CRC32C_KERNEL: str

def crc32c(data: Buffer, value: int = 0, /) -> int: ...
def scan_frames(data: Buffer, frame_bytes_max: int, /) -> tuple[bytes, int]: ...
def frame_adds(
    payloads: Buffer,
    offsets: Buffer,
    ledger_id: int,
    first_entry_id: int,
    last_add_confirmed: int,
    length_before: int,
    digest_type: int,
    hmac_key: bytes,
    master_key: bytes,
    flags: int,
    /,
) -> tuple[bytes | memoryview, bytes]: ...
def unpack_entries(
    data: Buffer,
    header_bytes: int,
    ledger_id: int,
    digest_type: int,
    hmac_key: bytes,
    first_entry_id: int = -1,
    step: int = 1,
    /,
) -> tuple[bytes | memoryview, bytes | memoryview, bytes | memoryview, bytes | memoryview]: ...
def unpack_part(
    data: Buffer,
    ledger_id: int,
    digest_type: int,
    hmac_key: bytes,
    first_entry_id: int,
    values: Buffer,
    offsets: Buffer,
    taken: int,
    /,
) -> tuple[int, int, int]: ...
def new_block(size: int, /) -> memoryview: ...
def scan_responses(
    data: Buffer, start: int, stop: int, frame_bytes_max: int, /
) -> tuple[list[tuple[int, int, int, int, int, int, int]], int, int]: ...
def scan_requests(
    data: Buffer, start: int, stop: int, frame_bytes_max: int, /
) -> tuple[list[tuple[int, int, int, int, int, int, int]], int, int]: ...
def take_bodies(data: Buffer, start: int, stop: int, /) -> tuple[bytes, int]: ...
def measure_run(offsets: Buffer, /) -> tuple[int, int, int, int]: ...
def frame_reads(ledger_id: int, first_entry_id: int, count: int, step: int = 1, flags: int = 0, /) -> bytes: ...
def frame_reads_v3(ledger_id: int, first_entry_id: int, count: int, step: int, first_number: int, /) -> bytes: ...
def frame_add_responses(ledger_id: int, first_entry_id: int, count: int, code: int, /) -> bytes: ...
def frame_read_responses(ledger_id: int, first_entry_id: int, bodies: Sequence[Buffer] | Buffer, /) -> bytes: ...
def entry_bits(frames: Buffer, first_entry_id: int, span: int, /) -> bytes: ...
def skip_frames(data: Buffer, start: int, stop: int, count: int, /) -> int: ...
def interleave(lanes: Sequence[Sequence[tuple[Buffer, Buffer]]], /) -> tuple[bytes, bytes]: ...
def select_frames(
    frames: Buffer,
    offsets: Buffer,
    start: int,
    first_entry_id: int,
    position: int,
    ensemble_size: int,
    write_quorum_size: int,
    /,
) -> bytes: ...
def frame_adds_v3(
    frames: Buffer,
    offsets: Buffer,
    start: int,
    first_entry_id: int,
    position: int,
    ensemble_size: int,
    write_quorum_size: int,
    ledger_id: int,
    first_number: int,
    recovery: int,
    deferred_sync: int,
    /,
) -> bytes: ...
def scan_responses_v3(
    data: Buffer, start: int, stop: int, frame_bytes_max: int, /
) -> tuple[list[tuple[int, int, int, int, int, int, int]], int, int]: ...
def v3_read_frames(data: Buffer, start: int, stop: int, /) -> tuple[bytes, int, int | None]: ...
