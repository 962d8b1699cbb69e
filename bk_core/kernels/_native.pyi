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
) -> tuple[bytes, bytes]: ...
def unpack_entries(
    data: Buffer,
    header_bytes: int,
    ledger_id: int,
    digest_type: int,
    hmac_key: bytes,
    /,
) -> tuple[bytes, bytes, bytes, bytes]: ...
