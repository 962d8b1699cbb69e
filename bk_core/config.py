"""The settings of a client: one frozen value, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, TypedDict, get_args

from bk_core.arguments import COUNT, POSITIVE, POSITIVE_SECONDS, SECONDS, TEXT, check_fields, one_of, whole
from bk_core.errors import ArgumentTypeError, InvalidArgumentError
from bk_core.protocol.ledger.placement import location
from bk_core.protocol.ledger.read.options import ReadOptions
from bk_core.protocol.limits import Limits

WireProtocol: TypeAlias = Literal["v2", "v3"]
Placement: TypeAlias = Literal["random", "rack-aware"]
EnsembleChange: TypeAlias = Literal["immediate", "delayed", "disabled"]
CONNECTIONS_MAX = 64
_CHECKS = {
    "protocol": TEXT,
    "placement": TEXT,
    "ensemble_change": TEXT,
    "connections_per_bookie": whole(1, CONNECTIONS_MAX),
    "operation_timeout_s": POSITIVE_SECONDS,
    "metadata_timeout_s": POSITIVE_SECONDS,
    "min_racks": POSITIVE,
    "quarantine_s": SECONDS,
    "quarantine_errors": POSITIVE,
    "add_quorum_timeout_s": POSITIVE_SECONDS,
    "busy_resends_max": COUNT,
    "min_ack_racks": POSITIVE,
    "limits": one_of(Limits, "Limits(...)"),
    "reads": one_of(ReadOptions, "ReadOptions(...)"),
}


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The settings of a client.

    ``protocol``: "v2" sends adds and reads over v2, and what v2 lacks over v3; "v3" uses v3 alone (wire-protocol.md 6).

    ``connections_per_bookie``: the number of connections to each bookie that adds and reads are spread over. All adds and reads of one
    ledger use the same connection.

    ``log_root``: the place of logs in the metadata store, by default the cluster's own (OWN-8). It takes precedence over ``log_root`` in
    the URI.

    ``operation_timeout_s`` bounds every blocking call; for a recovery it bounds the time without progress. ``metadata_timeout_s`` bounds
    one try at the metadata store. With ``await_store``, connecting also waits that long for a store that refuses connections or whose name
    is not known, because it is being started; without it these are errors at once (SES-11). While no bookie that may have an entry can be
    reached, reads and recoveries ask again for ``limits.unreachable_ns`` (30 s), but for no longer than nine tenths of
    ``operation_timeout_s``.

    Choosing bookies (metadata.md 5): ``placement`` "random" takes any; "rack-aware" makes every write set span ``min_racks`` racks as far
    as it can, and with ``enforce_racks`` refuses an ensemble that does not. Racks come from ``racks`` (bookie id or host -> location such
    as "/rack-a"), else from the cluster's own mapping, Pulsar's ``/bookies``; ``local_rack`` is where the first bookie of a ledger should
    stand. ``opportunistic_striping`` creates a ledger with a smaller ensemble, never below its write quorum, when bookies are short. A
    bookie that failed ``quarantine_errors`` times within a minute is avoided for ``quarantine_s`` seconds while there are others (0:
    never). A bookie whose connection broke is asked again after that time, and avoided until it answers.

    Writing: ``ensemble_change`` "immediate" replaces a failed bookie at once, "delayed" only when the ack quorum is out of reach without it
    (or the bookie turned read-only), "disabled" never; recovery's write-backs follow it too. With ``commit_during_change``, entries that
    have their ack quorum without the departing bookies are acknowledged while a change is being recorded; by default they wait (ledgers
    with a guaranteed write quorum never do). ``add_quorum_timeout_s`` fails the writer when an entry stays unacknowledged for that long.
    ``busy_resends_max`` is how often entries are sent again to a bookie with too many requests, after pauses that grow to 5 s, before it
    counts as failed. ``min_ack_racks`` is the number of racks that the bookies which acknowledge an entry must span. With
    ``close_in_recovery``, a writer whose ledger is being recovered closes it at its own end instead of leaving that to the recovery.

    Recovery: with ``recovery_barrier``, the bookies that denied the first missing entry journal one more request before the end is final
    (RC-11a), because Apache's bookies may answer before their fence mark is on disk. It costs one round trip over v3 for each recovery.
    """

    uri: str
    protocol: WireProtocol = "v2"
    connections_per_bookie: int = 1
    operation_timeout_s: float = 60.0
    metadata_timeout_s: float = 10.0
    await_store: bool = False
    log_root: str | None = None
    limits: Limits = field(default_factory=Limits)
    placement: Placement = "random"
    racks: Mapping[str, str] | None = None
    min_racks: int = 2
    enforce_racks: bool = False
    local_rack: str | None = None
    opportunistic_striping: bool = False
    quarantine_s: float = 30.0
    quarantine_errors: int = 1
    ensemble_change: EnsembleChange = "immediate"
    commit_during_change: bool = False
    add_quorum_timeout_s: float | None = None
    busy_resends_max: int = 8
    min_ack_racks: int = 1
    close_in_recovery: bool = False
    recovery_barrier: bool = True
    reads: ReadOptions = field(default_factory=ReadOptions)

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS)
        if not self.uri:
            raise InvalidArgumentError("uri must name a metadata service, for example zk://127.0.0.1:2181/ledgers")
        for name, known in (("protocol", WireProtocol), ("placement", Placement), ("ensemble_change", EnsembleChange)):
            if getattr(self, name) not in get_args(known):
                raise InvalidArgumentError(f"{name} must be one of {', '.join(get_args(known))}, not {getattr(self, name)!r}")
        self._check_racks()

    @property
    def machine_limits(self) -> Limits:
        """The ``limits`` for operations that wait for bookies which cannot be reached. Their wait is a little shorter than the call that it
        is for, so that the call ends with what each bookie said (RD-13)."""
        bound_ns = int(0.9e9 * self.operation_timeout_s)
        return self.limits if self.limits.unreachable_ns <= bound_ns else replace(self.limits, unreachable_ns=bound_ns)

    def _check_racks(self) -> None:
        if self.min_ack_racks > 1 and self.placement != "rack-aware":
            raise InvalidArgumentError("min_ack_racks means nothing without placement='rack-aware'")
        about_racks = self.racks is not None or self.local_rack is not None or self.enforce_racks or self.min_racks != 2
        if about_racks and self.placement != "rack-aware":
            raise InvalidArgumentError("racks, min_racks, enforce_racks and local_rack mean nothing without placement='rack-aware'")
        for name, rack in (self.racks or {}).items():
            if not isinstance(rack, str):
                raise ArgumentTypeError(f"racks must map ids or hosts to text such as '/rack-a', not {name!r} to {rack!r}")
        if self.local_rack is not None and location(self.local_rack) is None:
            raise InvalidArgumentError(f"local_rack {self.local_rack!r} names no rack")


class ClientSettings(TypedDict, total=False):
    """The settings that ``connect`` takes by name: the fields of ClientConfig but ``uri`` and ``protocol``, for type checkers."""

    connections_per_bookie: int
    operation_timeout_s: float
    metadata_timeout_s: float
    await_store: bool
    log_root: str | None
    limits: Limits
    placement: Placement
    racks: Mapping[str, str] | None
    min_racks: int
    enforce_racks: bool
    local_rack: str | None
    opportunistic_striping: bool
    quarantine_s: float
    quarantine_errors: int
    ensemble_change: EnsembleChange
    commit_during_change: bool
    add_quorum_timeout_s: float | None
    busy_resends_max: int
    min_ack_racks: int
    close_in_recovery: bool
    recovery_barrier: bool
    reads: ReadOptions
