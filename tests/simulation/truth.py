"""The true events of one ledger: the simulator's memory, out of reach of the machines (replication-protocol.md 13.1).

Sets of bookies are ints, bit i for bookie i, so that every invariant is a mask and a count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bk_core.protocol.entry import digests
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState

# What changed since the last check. An invariant names those it depends on and is evaluated only then: nothing else can break it.
META, ACK, LOSS, STORED, LAC, FENCE, CALLBACK, READ, VERDICT, OPENED, CAS, HANDLE, COLLECTED, FENCED = (1 << i for i in range(14))


@dataclass(slots=True)
class Version:
    """One version of the metadata and who wrote it (creator, writer, recoverer, replicator, deleter)."""

    metadata: LedgerMetadata
    by: str
    role: str


@dataclass(slots=True)
class PendingCas:
    """A compare-and-set that was sent at ``version`` and could still apply. ``given_up``: its client heard UNKNOWN."""

    client: str
    role: str
    version: int
    wanted: LedgerMetadata
    given_up: bool = False


@dataclass(slots=True)
class Stored:
    """One entry arriving at one bookie."""

    bookie: int
    entry_id: int
    recovery: bool
    payload_good: bool
    denied: bool
    promised: bool


@dataclass(slots=True)
class Straggling:
    """The moment a covering set of the last ensemble was durably fenced (I-13)."""

    version: int
    top_acked: int
    stored: dict[int, int]
    fenced: int


@dataclass(slots=True)
class Adds:
    """The callbacks of one writer handle (I-14), and what it was asked."""

    owner: str
    pushed: list[tuple[int, int]] = field(default_factory=list)  # (first entry, count)
    done: list[tuple[int, int, int, bool]] = field(default_factory=list)  # (first, count, serial number, good), in the order they fired
    refused: dict[int, None] = field(default_factory=dict)  # serial numbers of appends that consumed no id
    completed: dict[int, None] = field(default_factory=dict)
    last_good: int = -1
    failed: bool = False
    checked: int = 0


class Truth:
    """Ghost state of one ledger."""

    def __init__(self, ledger_id: int, metadata: LedgerMetadata, bits: dict[str, int], *, exact: bool = True) -> None:
        self.ledger_id = ledger_id
        self.bits = bits
        self.exact = exact  # False: with deferred sync; ``acked`` is then what the LAC has reached, the callbacks come before it (WR-17)
        self.ordered = True  # False: the caller chooses ids, and lengths are in the order of submission (WR-2)
        self.domains_min = 1  # an acknowledged entry spans so many fault domains (WR-7)
        self.master_key = digests.master_key(metadata.password)
        self.history: list[Version] = [Version(metadata, "creator", "creator")]
        self.ensembles: dict[tuple[str, ...], None] = {f.ensemble: None for f in metadata.fragments}
        self.deleted = False
        self.submitted: dict[int, bytes] = {}
        self.sizes_before: dict[int, int] = {}
        self.acked: dict[int, bytes] = {}
        self.top_acked = -1
        self.new_acks: list[int] = []
        self.copies: dict[int, int] = {}  # entry -> bookies that hold it durably
        self.lost = 0  # bookies that lost data
        self.losses = 0  # how often one did
        self.fenced = 0  # durably
        self.promised = 0  # bookies whose answer to a fencing request left
        self.denied: dict[tuple[int, int], None] = {}
        self.new_stored: list[Stored] = []
        self.lacs: dict[int, int] = {}  # bookie -> highest LAC it ever held
        self.top_lac = -1
        self.straggling: Straggling | None = None
        self.pending: list[PendingCas] = []
        self.adds: list[Adds] = []
        self.seen: list[tuple[str, int, bytes]] = []  # SEEN
        self.top_seen = -1
        self.checked_seen = 0
        self.reader_lacs: dict[str, int] = {}
        self.reading: list[tuple[str, tuple[str, ...], int]] = []  # recoverers that began to read: from where, who had promised
        self.verdicts: dict[str, int] = {}  # recoverer -> last
        self.opened: list[tuple[str, int, int]] = []  # (who, last entry, length) of every handle on the CLOSED ledger
        self.exposed: list[tuple[str, LedgerState, bool]] = []  # recoverer, metadata state at its completion, whether it succeeded
        self.closes: list[tuple[str, LedgerMetadata]] = []
        self.handles: dict[str, tuple[int, int, tuple[str, ...] | None]] = {}  # client -> (previous version, version, ensemble)
        self.collected: list[tuple[int, bool]] = []  # (bookie, allowed by B-12)
        self.slots: dict[int, int] = {}  # GWQ: bookie -> highest LAFR in its explicit-LAC slot
        self.lafr: tuple[int, int] = (-1, -1)  # GWQ: (LAFR, LAC) of the writer
        self.full_to = -1  # up to here I-G3 has seen all copies
        self.plainly_recovered = False  # a client that knows nothing of GWQ took part (G-25)
        self.checked_from = 0  # first entry whose place in the metadata changed since the last check
        self.dirty = META
        self.stored_above: Callable[[int], dict[int, int]] = lambda entry_id: {}  # set by the cluster, which knows the disks
        self._masks: dict[tuple[tuple[str, ...], int], int] = {}

    # --- metadata --------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        return self.history[-1].metadata

    @property
    def version(self) -> int:
        return len(self.history) - 1

    @property
    def closed(self) -> bool:
        return self.history[-1].metadata.state is LedgerState.CLOSED

    @property
    def end(self) -> int:
        """The last entry the metadata speaks of for certain: last_entry if CLOSED, else the last acknowledged one."""
        md = self.history[-1].metadata
        return md.last_entry_id if md.state is LedgerState.CLOSED else self.top_acked

    @property
    def gwq(self) -> bool:
        return "gwq" in self.history[0].metadata.custom

    def install(self, metadata: LedgerMetadata, by: str, role: str) -> None:
        old = self.metadata
        kept = 0
        for a, b in zip(old.fragments, metadata.fragments, strict=False):
            if a != b:
                break
            kept += 1
        changed = metadata.fragments[kept].first_entry_id if kept < len(metadata.fragments) else 1 << 62
        self.checked_from = min(self.checked_from, changed)
        self.history.append(Version(metadata, by, role))
        for fragment in metadata.fragments[kept:]:
            self.ensembles[fragment.ensemble] = None
        self.pending = [p for p in self.pending if p.version >= self.version]
        self.dirty |= META
        self._maybe_straggling()

    # --- entries and bookies -----------------------------------------------------------------------------------------

    def mask(self, ensemble: tuple[str, ...], entry_id: int) -> int:
        """The bookies of an entry's write set."""
        md = self.history[0].metadata
        first = entry_id % md.ensemble_size
        found = self._masks.get((ensemble, first))
        if found is None:
            found = 0
            for k in range(md.write_quorum_size):
                found |= 1 << self.bits[ensemble[(first + k) % md.ensemble_size]]
            self._masks[ensemble, first] = found
        return found

    def holders(self, entry_id: int, metadata: LedgerMetadata | None = None) -> int:
        """Bookies of the entry's write set in ``metadata`` (default: the current one) that hold it durably."""
        fragments = (metadata or self.history[-1].metadata).fragments
        index = len(fragments) - 1
        while fragments[index].first_entry_id > entry_id:
            index -= 1
        return self.copies.get(entry_id, 0) & self.mask(fragments[index].ensemble, entry_id)

    def submit(self, entry_id: int, payload: bytes) -> None:
        self.submitted[entry_id] = payload

    def acknowledge(self, entry_id: int) -> None:
        self.acked[entry_id] = self.submitted[entry_id]
        if entry_id > self.top_acked:
            self.top_acked = entry_id
        self.new_acks.append(entry_id)
        self.dirty |= ACK

    def lac_at(self, bookie: int, lac: int) -> None:
        self.lacs[bookie] = lac
        if lac > self.top_lac:
            self.top_lac = lac
        self.dirty |= LAC

    def fence_durable(self, bookie: int) -> None:
        self.fenced |= 1 << bookie
        self.dirty |= FENCE
        self._maybe_straggling()

    def lose(self, bookie: int) -> None:
        """The bookie lost its disk."""
        keep = ~(1 << bookie)
        for entry_id in self.copies:
            self.copies[entry_id] &= keep
        self.lost |= 1 << bookie
        self.losses += 1
        self.fenced &= keep
        self.checked_from = 0
        self.dirty |= LOSS

    def _maybe_straggling(self) -> None:
        """I-13: remember who had what when the fence first covered the last ensemble."""
        md = self.metadata
        if self.straggling is not None or md.state is LedgerState.OPEN or self.deleted:
            return
        ensemble, size = md.last_fragment.ensemble, md.ensemble_size
        for start in range(size):
            mask = self.mask(ensemble, start)
            if (mask & ~self.fenced).bit_count() >= md.ack_quorum_size:
                return
        self.straggling = Straggling(self.version, self.top_acked, self.stored_above(self.top_acked), self.fenced)

    def note_handle(self, client: str, version: int, ensemble: tuple[str, ...] | None) -> None:
        before = self.handles.get(client)
        if before is None or before[1] != version or before[2] != ensemble:
            self.handles[client] = (before[1] if before else -1, version, ensemble)
            self.dirty |= HANDLE

    def describe(self) -> str:
        md = self.metadata
        fragments = ", ".join(f"{f.first_entry_id}: {' '.join(f.ensemble)}" for f in md.fragments)
        end = f" last {md.last_entry_id} length {md.length}" if md.state is LedgerState.CLOSED else ""
        return f"v{self.version} {md.state.name} {{{fragments}}}{end}"


def payload_of(body: Any) -> bytes:
    """The payload of an entry body with a CRC32C digest (wire-protocol.md 7.1): behind 32 bytes of header and 4 of digest."""
    return bytes(body[36:])
