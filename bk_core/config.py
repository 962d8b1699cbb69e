"""The settings of a client: one frozen value, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, TypedDict, cast, get_args

from bk_core.arguments import COUNT, POSITIVE, POSITIVE_SECONDS, SECONDS, TEXT, check_fields, one_of, settings, whole
from bk_core.errors import ArgumentTypeError, InvalidArgumentError
from bk_core.metadata.access import METADATA_AUTH, MetadataAuth, MetadataTls
from bk_core.metadata.uri import placement_of, rack_script_here, shown
from bk_core.protocol.ledger.placement import location
from bk_core.protocol.ledger.read.options import ReadOptions
from bk_core.protocol.limits import Limits
from bk_core.security import Security, security_of

WireProtocol: TypeAlias = Literal["v2", "v3"]
Placement: TypeAlias = Literal["random", "rack-aware"]
EnsembleChange: TypeAlias = Literal["immediate", "delayed", "disabled"]
CONNECTIONS_MAX = 64
RACK_SCRIPT_TIMEOUT_S = 10.0
MIN_RACKS = 2
SET_BY_HAND = (
    "ensemble_change", "operation_timeout_s", "metadata_timeout_s", "await_store", "add_quorum_timeout_s",
    "placement", "min_racks", "local_rack", "connections_per_bookie", "log_root",
)  # fmt: skip
"""The settings that a program may have a reason to set. The others, and all of ``Limits`` and ``ReadOptions``, are for tests, for odd
networks and for experts."""
_CHECKS = {
    "protocol": TEXT,
    "placement": replace(TEXT, optional=True),
    "ensemble_change": TEXT,
    "connections_per_bookie": whole(1, CONNECTIONS_MAX),
    "operation_timeout_s": POSITIVE_SECONDS,
    "metadata_timeout_s": POSITIVE_SECONDS,
    "min_racks": POSITIVE,
    "rack_script": replace(TEXT, optional=True),
    "rack_script_timeout_s": POSITIVE_SECONDS,
    "quarantine_s": SECONDS,
    "quarantine_errors": POSITIVE,
    "add_quorum_timeout_s": POSITIVE_SECONDS,
    "busy_resends_max": COUNT,
    "min_ack_racks": POSITIVE,
    "limits": one_of(Limits, "Limits(...)"),
    "reads": one_of(ReadOptions, "ReadOptions(...)"),
    "metadata_auth": METADATA_AUTH,
    "metadata_tls": one_of(MetadataTls, "MetadataTls(...)"),
    "security": one_of(Security, "Security(...)"),
}


@settings
@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The settings of a client. ``connect`` takes all but ``uri`` and ``protocol`` by name; most programs set none of them, or
    ``ensemble_change`` and the timeouts. Placement is described in metadata.md 5."""

    uri: str
    """The metadata store and the ledgers root of the cluster, such as ``zk://host:2181/ledgers``."""
    protocol: WireProtocol = "v2"
    """The wire protocol: "v2" sends adds and reads over v2, and what v2 lacks over v3; "v3" uses v3 alone (wire-protocol.md 6)."""
    connections_per_bookie: int = 1
    """The number of connections to each bookie over which the ledgers are spread. One ledger uses one connection for its adds and reads."""
    operation_timeout_s: float = 60.0
    """The longest time that a blocking call takes; of a recovery, the longest time without progress."""
    metadata_timeout_s: float = 10.0
    """The longest time of one try at the metadata store."""
    await_store: bool = False
    """With True, connecting waits for ``metadata_timeout_s`` for a metadata store that refuses connections or whose name is not known,
    because it is being started. With False these are errors at once (SES-11)."""
    log_root: str | None = None
    """The place of logs in the metadata store; None is the cluster's own (OWN-8). It takes precedence over ``log_root`` in the URI."""
    limits: Limits = field(default_factory=Limits)
    """Bounds of the machines. While no bookie that may have an entry can be reached, reads and recoveries ask again for
    ``limits.unreachable_ns``, but for no longer than nine tenths of ``operation_timeout_s``."""
    placement: Placement | None = None
    """The choice of bookies: "random" takes any; with "rack-aware" every write set spans ``min_racks`` racks as far as it can. None takes
    what the URI says (``placement=rack-aware``, for what is given nothing but a URI), and "random" where it says nothing."""
    racks: Mapping[str, str] | None = None
    """The rack of each bookie: its id or host to a place such as "/rack-a". None takes ``rack_script`` or, without one, the cluster's own
    mapping, Pulsar's ``/bookies``."""
    rack_script: str | None = None
    """The path of a script on this host that tells the racks of bookies, as Java's ``networkTopologyScriptFileName``: it gets up to 100
    addresses as arguments and prints a place such as "/rack-a" for each. None takes the one that the variable ``BK_RACK_SCRIPT`` names, if
    it is set and placement is rack-aware; executors of Spark need it by ``spark.executorEnv``. Connecting waits for its first answer
    (metadata.md 5.1)."""
    rack_script_timeout_s: float = RACK_SCRIPT_TIMEOUT_S
    """The time after which the script is killed. Where it fails, bookies keep their last known racks or are in the default rack, and the
    script is asked again a minute later."""
    min_racks: int = MIN_RACKS
    """The number of racks that a write set spans, with rack-aware placement."""
    enforce_racks: bool = False
    """With True, an ensemble that does not span ``min_racks`` racks is refused with NotEnoughBookiesError."""
    local_rack: str | None = None
    """The rack where the first bookie of a ledger should stand."""
    opportunistic_striping: bool = False
    """With True, a ledger is created with a smaller ensemble, never below its write quorum, when bookies are short."""
    quarantine_s: float = 30.0
    """The time for which a bookie that failed is avoided while there are others; 0 is never. A bookie whose connection broke is asked
    again after that time, and avoided until it answers."""
    quarantine_errors: int = 1
    """The number of failures within a minute after which a bookie is avoided."""
    ensemble_change: EnsembleChange = "immediate"
    """The moment at which a failed bookie is replaced: "immediate" is at once, "delayed" only when the ack quorum is out of reach without
    it (or the bookie turned read-only), "disabled" never. Recovery's write-backs follow it too."""
    commit_during_change: bool = False
    """With True, entries that have their ack quorum without the departing bookies are acknowledged while a change is being recorded. With
    False they wait. In ledgers with a guaranteed write quorum they never wait."""
    add_quorum_timeout_s: float | None = None
    """The time for which an entry may stay unacknowledged before its writer fails with AddQuorumTimeoutError; None is for ever."""
    busy_resends_max: int = 8
    """The number of times that entries are sent again to a bookie with too many requests, after pauses that grow to 5 s, before the bookie
    counts as failed."""
    min_ack_racks: int = 1
    """The number of racks that the bookies which acknowledge an entry must span, with rack-aware placement."""
    close_in_recovery: bool = False
    """With True, a writer whose ledger is being recovered closes it at its own end instead of leaving that to the recovery."""
    recovery_barrier: bool = True
    """With True, the bookies that denied the first missing entry journal one more request before a recovery takes the end for final
    (RC-11a), because Apache's bookies may answer before their fence mark is on disk. It costs a recovery one round trip over v3."""
    reads: ReadOptions = field(default_factory=ReadOptions)
    """The way in which ledgers are read, unless a call says otherwise."""
    metadata_auth: MetadataAuth | None = None
    """The identity of this client at the metadata store: a ZooKeeperAuth, with the rights on what it creates there, or an EtcdAuth. None
    gives no credentials."""
    metadata_tls: MetadataTls | None = None
    """The certificates of TLS to the metadata store, for a URI with ``zk+tls://`` or ``etcd+tls://``; None then trusts the authorities of
    the system."""
    security: Security | None = None
    """The TLS and the authentication of the connections to bookies; None is what the options of the URI say (``bookie_ca_file``,
    ``bookie_user`` and the like), or without both."""

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS)
        if not self.uri:
            raise InvalidArgumentError("uri must name a metadata service, for example zk://127.0.0.1:2181/ledgers")
        for name, known in (("protocol", WireProtocol), ("placement", Placement), ("ensemble_change", EnsembleChange)):
            if (given := getattr(self, name)) is not None and given not in get_args(known):
                raise InvalidArgumentError(f"{name} must be one of {', '.join(get_args(known))}, not {given!r}")
        self._check_placement()
        self._check_racks()
        if self.security is not None and security_of(self.uri) is not None:
            raise InvalidArgumentError("TLS and passwords of bookies stand in the URI or beside it, not in both")

    @property
    def shown_uri(self) -> str:
        """The URI as it may be shown to others: without its options, which name files of keys and passwords."""
        return shown(self.uri).removesuffix("?...")

    @property
    def bookie_security(self) -> Security | None:
        """The ``security`` that holds: the one beside the URI, or the one in its options."""
        return self.security or security_of(self.uri)

    @property
    def placement_policy(self) -> Placement:
        """The ``placement`` that holds: the one beside the URI, the one in its options, or "random"."""
        return self.placement or cast(Placement, placement_of(self.uri) or "random")

    @property
    def script_of_racks(self) -> str | None:
        """The path of the script that tells the racks: ``rack_script``, or the one that the environment of this process names where
        placement is rack-aware and there is no mapping; None where no script tells them."""
        if self.rack_script is not None or self.racks is not None or self.placement_policy != "rack-aware":
            return self.rack_script
        return rack_script_here()

    @property
    def machine_limits(self) -> Limits:
        """The ``limits`` for operations that wait for bookies which cannot be reached. Their wait is a little shorter than the call that it
        is for, so that the call ends with what each bookie said (RD-13)."""
        bound_ns = int(0.9e9 * self.operation_timeout_s)
        return self.limits if self.limits.unreachable_ns <= bound_ns else replace(self.limits, unreachable_ns=bound_ns)

    def _check_placement(self) -> None:
        of_uri = placement_of(self.uri)
        if self.placement is not None and of_uri is not None and of_uri != self.placement:
            raise InvalidArgumentError(f"placement is {self.placement!r}, and {of_uri!r} in the options of the URI: leave one of them out")
        if self.placement_policy == "rack-aware":
            return
        given = {
            "racks": self.racks is not None,
            "rack_script": self.rack_script is not None,
            "rack_script_timeout_s": self.rack_script_timeout_s != RACK_SCRIPT_TIMEOUT_S,
            "min_racks": self.min_racks != MIN_RACKS,
            "enforce_racks": self.enforce_racks,
            "local_rack": self.local_rack is not None,
            "min_ack_racks": self.min_ack_racks > 1,
        }
        if any(given.values()):
            *names, last = [name for name, is_given in given.items() if is_given]
            what = f"{', '.join(names)} and {last} mean" if names else f"{last} means"
            raise InvalidArgumentError(f"{what} nothing without placement='rack-aware'")

    def _check_racks(self) -> None:
        if self.racks is not None and self.rack_script is not None:
            raise InvalidArgumentError("racks come from a mapping (racks) or from a script (rack_script), not from both")
        if self.rack_script is not None and not self.rack_script:
            raise InvalidArgumentError("rack_script must be the path of a script, not an empty text")
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
    placement: Placement | None
    racks: Mapping[str, str] | None
    rack_script: str | None
    rack_script_timeout_s: float
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
    metadata_auth: MetadataAuth | None
    metadata_tls: MetadataTls | None
    security: Security | None
