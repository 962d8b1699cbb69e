"""Every bound of the client's machines. Names end in the unit; beside each default stand the extreme values that a simulation may draw."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from bk_core.arguments import INT64_MAX, check_fields, whole

_FRAME_BYTES_MAX = 2**31 - 1  # a frame's length is four bytes with a sign


def _limit(default: int, *nasty: int) -> Any:
    return field(default=default, metadata={"nasty": nasty})


@dataclass(frozen=True, slots=True)
class Limits:
    frame_bytes_max: int = _limit(5 * 1024 * 1024)
    add_timeout_ns: int = _limit(5_000_000_000, 1, 50_000_000)
    read_timeout_ns: int = _limit(5_000_000_000, 1, 50_000_000)
    speculative_read_ns: int = _limit(2_000_000_000, 1)
    speculative_read_ns_max: int = _limit(60_000_000_000, 1)
    # These bound the requests to bookies that may have an entry while none of them can be reached: the total time, the first pause, and the
    # longest pause, up to which pauses double (RD-13). A client's operation timeout bounds the total time (ClientConfig.machine_limits).
    unreachable_ns: int = _limit(30_000_000_000)
    read_again_ns: int = _limit(100_000_000)
    read_again_ns_max: int = _limit(2_000_000_000)
    # Tails (LC-5): the time that a bookie may hold a poll, the least time between polls that bring nothing, and the least time between
    # reads of the metadata.
    long_poll_ns: int = _limit(2_000_000_000, 1_000_000)
    tail_pause_ns: int = _limit(200_000_000, 1)
    tail_look_ns: int = _limit(5_000_000_000, 1)
    # Entries that must be sent to a bookie again (WR-6, EC-3, G-7): the first pause, the last pause, up to which pauses double, and the
    # number of repeats after which the bookie is staged out.
    add_retry_ns: int = _limit(100_000_000, 1)
    add_retry_ns_max: int = _limit(5_000_000_000, 1)
    pinned_retries_max: int = _limit(3, 0, 1)
    placement_retry_ns: int = _limit(1_000_000_000, 1)
    ensemble_changes_max: int = _limit(2**31 - 1, 0, 1, 2)
    recovery_window_entries: int = _limit(256, 1, 2)
    recovery_retries_max: int = _limit(8, 0, 1)
    recovery_retry_ns: int = _limit(300_000_000, 1)
    recovery_lafr_wait_ns: int = _limit(100_000_000, 1)
    metadata_retry_ns: int = _limit(200_000_000, 1)
    explicit_lac_ns: int = _limit(200_000_000, 1)
    read_window_bytes: int = _limit(64 * 1024 * 1024, 1)  # a recovery's reads in flight, all copies counted
    # The size of one batch answer: as much as an Apache bookie gives at most (maxBatchReadSize, its longest frame).
    read_batch_bytes: int = _limit(5 * 1024 * 1024, 1)
    read_chunk_entries: int = _limit(8192, 1, 2)
    read_chunks_in_flight: int = _limit(6, 1)
    # The number of entries of a long read between one replica's turn and the next one's. An Apache bookie that has to seek reads 100
    # entries ahead.
    read_turn_entries: int = _limit(400, 1, 3)
    # The bytes that one read or tail may hold for its reader, and may have asked for, estimated from the sizes of the entries so far. If
    # entries suddenly are larger than those before them, the answers that were asked for already may exceed this, by as much again at most.
    read_ahead_bytes: int = _limit(32 * 1024 * 1024, 1)
    pending_bytes_max: int = _limit(64 * 1024 * 1024, 1)
    unretired_bytes_max: int = _limit(64 * 1024 * 1024, 1)
    # An Apache bookie queues 10,000 adds a thread and refuses the next one (wire-protocol.md 8.2); a bookie that lags must not get there.
    unretired_entries_max: int = _limit(8000, 1)
    # Re-replication: the memory of one fragment's check or copy, and the number of its tries before it reports (RR-8).
    replication_bytes_in_flight: int = _limit(16 * 1024 * 1024, 1)
    replication_retries_max: int = _limit(4, 0, 1)
    replication_retry_ns: int = _limit(500_000_000, 1)

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for a value that is no whole number or is out of its range."""
        check_fields(self, _CHECKS)


_NONE_AT_ALL = {"unreachable_ns", "ensemble_changes_max", "pinned_retries_max", "recovery_retries_max", "replication_retries_max"}
_CHECKS = {
    field.name: whole(0 if field.name in _NONE_AT_ALL else 1, _FRAME_BYTES_MAX if field.name == "frame_bytes_max" else INT64_MAX)
    for field in fields(Limits)
}
