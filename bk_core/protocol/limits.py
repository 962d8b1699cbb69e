"""Every bound of the client's machines. Names end in the unit; beside each default stand the extreme values that a simulation may draw."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from bk_core.arguments import INT64_MAX, check_fields, settings, whole

_FRAME_BYTES_MAX = 2**31 - 1  # a frame's length is four bytes with a sign


def _limit(default: int, *nasty: int) -> Any:
    return field(default=default, metadata={"nasty": nasty})


@settings
@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of waiting, memory and repetition. They are for tests and for odd networks: the defaults suit all others."""

    frame_bytes_max: int = _limit(5 * 1024 * 1024)
    """The longest frame that is sent or taken."""
    add_timeout_ns: int = _limit(5_000_000_000, 1, 50_000_000)
    """The time without progress after which a bookie that has not answered adds counts as failed."""
    read_timeout_ns: int = _limit(5_000_000_000, 1, 50_000_000)
    """The time after which a bookie that has not answered a read is given up, and another replica is asked."""
    speculative_read_ns: int = _limit(2_000_000_000, 1)
    """The time after which another replica is asked beside one that has not answered (RD-4); it doubles with each."""
    speculative_read_ns_max: int = _limit(60_000_000_000, 1)
    """The longest such time."""
    unreachable_ns: int = _limit(30_000_000_000)
    """The time for which bookies that may have an entry are asked again while none of them can be reached (RD-13). A client's operation
    timeout bounds it (``ClientConfig.machine_limits``)."""
    read_again_ns: int = _limit(100_000_000)
    """The first pause between such requests; pauses double."""
    read_again_ns_max: int = _limit(2_000_000_000)
    """The longest such pause."""
    long_poll_ns: int = _limit(2_000_000_000, 1_000_000)
    """The time for which a bookie may hold a poll of a tail (LC-5)."""
    tail_pause_ns: int = _limit(200_000_000, 1)
    """The least time between polls that bring nothing."""
    tail_look_ns: int = _limit(5_000_000_000, 1)
    """The least time between reads of the metadata by a tail."""
    add_retry_ns: int = _limit(100_000_000, 1)
    """The first pause before entries are sent to a bookie again (WR-6, EC-3, G-7); pauses double."""
    add_retry_ns_max: int = _limit(5_000_000_000, 1)
    """The longest such pause."""
    pinned_retries_max: int = _limit(3, 0, 1)
    """With a guaranteed write quorum: the number of vain resends to a bookie that cannot be dropped yet, after which its successor is
    filled up beside it."""
    placement_retry_ns: int = _limit(1_000_000_000, 1)
    """With a guaranteed write quorum: the time after which bookies are looked for again where none was found (G-10)."""
    ensemble_changes_max: int = _limit(2**31 - 1, 0, 1, 2)
    """The number of changes of the ensemble after which a writer fails with WriteFailedError (EC-5)."""
    recovery_window_entries: int = _limit(256, 1, 2)
    """The number of entries that a recovery reads ahead."""
    recovery_retries_max: int = _limit(8, 0, 1)
    """The number of times that a recovery asks each bookie again in one step before it counts it as silent."""
    recovery_retry_ns: int = _limit(300_000_000, 1)
    """The pause before such a repetition."""
    recovery_lafr_wait_ns: int = _limit(100_000_000, 1)
    """The time for which the recovery of a ledger with a guaranteed write quorum waits for answers that would save it reading (G-12)."""
    metadata_retry_ns: int = _limit(200_000_000, 1)
    """The pause before a request to the metadata store whose outcome is not known is sent again."""
    explicit_lac_ns: int = _limit(200_000_000, 1)
    """The time after which a writer tells bookies a last add confirmed that no add has told them (WR-16)."""
    read_window_bytes: int = _limit(64 * 1024 * 1024, 1)
    """The bytes that the reads of a recovery may have in flight, all copies counted."""
    read_batch_bytes: int = _limit(5 * 1024 * 1024, 1)
    """The size of one batch answer: as much as an Apache bookie gives at most (its maxBatchReadSize, its longest frame)."""
    read_chunk_entries: int = _limit(8192, 1, 2)
    """The number of entries that one request of a long read asks for at most."""
    read_chunks_in_flight: int = _limit(6, 1)
    """The number of such requests at a time."""
    read_turn_entries: int = _limit(400, 1, 3)
    """The number of entries of a long read between one replica's turn and the next one's. An Apache bookie that has to seek reads 100
    entries ahead."""
    read_ahead_bytes: int = _limit(32 * 1024 * 1024, 1)
    """The bytes that one read or tail may hold for its reader, and may have asked for, estimated from the sizes of the entries so far. If
    entries suddenly are larger than those before them, the answers that were asked for already may exceed this, by as much again at
    most."""
    pending_bytes_max: int = _limit(64 * 1024 * 1024, 1)
    """The bytes that a writer may have unacknowledged; a call that would exceed it waits."""
    unretired_bytes_max: int = _limit(64 * 1024 * 1024, 1)
    """The bytes that a writer keeps because some bookie has not answered for them; a call that would exceed it waits."""
    unretired_entries_max: int = _limit(8000, 1)
    """The number of entries that it keeps so. An Apache bookie queues 10,000 adds a thread and refuses the next one (wire-protocol.md 8.2);
    a bookie that lags must not get there."""
    replication_bytes_in_flight: int = _limit(16 * 1024 * 1024, 1)
    """The memory of the check or copy of one fragment."""
    replication_retries_max: int = _limit(4, 0, 1)
    """The number of tries of a fragment before its failure is reported (RR-8)."""
    replication_retry_ns: int = _limit(500_000_000, 1)
    """The pause between such tries."""

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for a value that is no whole number or is out of its range."""
        check_fields(self, _CHECKS)


_NONE_AT_ALL = {"unreachable_ns", "ensemble_changes_max", "pinned_retries_max", "recovery_retries_max", "replication_retries_max"}
_CHECKS = {
    field.name: whole(0 if field.name in _NONE_AT_ALL else 1, _FRAME_BYTES_MAX if field.name == "frame_bytes_max" else INT64_MAX)
    for field in fields(Limits)
}
