"""Safety, replication-protocol.md 13.1: one small function per invariant, called after every step in which its inputs changed.

| id | function | | id | function |
|---|---|---|---|---|
| I-1 | persistence | | I-14 | callback_discipline |
| I-2 | all_acked_entries_are_readable | | I-15 | handle_honesty |
| I-3 | acked_entries_reach_ack_quorum | | I-16 | recovery_exposes_nothing_early |
| I-4 | all_committed_entries_reach_ack_quorum | | I-17 | recoverer_lower_bound |
| I-5 | integrity_and_order | | I-18 | length |
| I-6 | no_dirty_read | | I-19 | no_stale_install |
| I-7 | agreement | | I-20 | deletion_safety |
| I-8 | metadata_shape | | I-G1 | gwq_earlier_fragments_are_full |
| I-9 | metadata_transitions | | I-G2 | gwq_sealed_ledgers_are_full |
| I-10 | window_soundness | | I-G3 | gwq_fully_replicated_prefix |
| I-11 | fence_is_sticky | | I-L1..10, I-K1..11 | in log_, link_invariants.py |
| I-12 | negative_is_for_ever | | I-R1 | replication_never_loses_copies |
| I-13 | bounded_stragglers | | L-1..11 | in liveness.py |
| RC-5 | fences_cover_before_reading | | WR-7 | acked_entries_span_domains |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bk_core.errors import MetadataFormatError
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from tests.simulation.log_invariants import LOG_INVARIANTS
from tests.simulation.truth import (
    ACK,
    CALLBACK,
    CAS,
    COLLECTED,
    FENCED,
    HANDLE,
    LAC,
    LOSS,
    META,
    OPENED,
    READ,
    STORED,
    VERDICT,
    Truth,
)

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.logs import LogTruth


class InvariantViolated(AssertionError):
    """``rule`` is the id of the invariant."""

    def __init__(self, rule: str, seed: int, detail: str, story: str) -> None:
        super().__init__(f"{rule} broken by seed {seed}: {detail}\n{story}")
        self.rule, self.seed, self.detail = rule, seed, detail


Finding = str | None
Check = Callable[["Cluster", Truth], Finding]


@dataclass(frozen=True, slots=True)
class Invariant:
    rule: str
    when: int  # mask of the changes after which it is evaluated
    check: Check


INVARIANTS: list[Invariant] = []


def invariant(rule: str, when: int) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        INVARIANTS.append(Invariant(rule, when, check))
        return check

    return register


class Checker:
    """Evaluates after a step what the step can have broken, and counts evaluations per rule."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.evaluated: Counter[str] = Counter()
        self._by_mask: dict[int, list[Invariant]] = {}

    def check(self) -> None:
        for truth in self.cluster.truths.values():
            if truth.dirty:
                self._check(truth)
        for log in self.cluster.logs:
            if log.changed or log.new_acks or log.new_stored:
                self._check_log(log)

    def _check_log(self, log: LogTruth) -> None:
        for one in LOG_INVARIANTS:
            found = one.check(self.cluster, log)
            self.evaluated[one.rule] += 1
            if found is not None:
                self.fail(one.rule, found)
        log.changed = False
        log.new_acks.clear()
        log.new_stored.clear()

    def _check(self, truth: Truth) -> None:
        dirty, truth.dirty = truth.dirty, 0
        chosen = self._by_mask.get(dirty)
        if chosen is None:
            chosen = self._by_mask[dirty] = [i for i in INVARIANTS if i.when & dirty]
        for one in chosen:
            found = one.check(self.cluster, truth)
            self.evaluated[one.rule] += 1
            if found is not None:
                self.fail(one.rule, found)
        truth.new_acks.clear()
        truth.new_stored.clear()
        truth.checked_from = 1 << 62

    def fail(self, rule: str, detail: str) -> None:
        world = self.cluster.world
        raise InvariantViolated(rule, world.seed, detail, "\n".join(world.lines[-40:]))


def _entries_to_check(truth: Truth, dirty_metadata: bool = True) -> list[int]:
    """Acknowledged entries whose place or copies may have changed, and those acknowledged in this step."""
    first = truth.checked_from
    if first > truth.top_acked:
        return truth.new_acks
    return [e for e in truth.acked if e >= first]


# --- persistence and replication -------------------------------------------------------------------------------------


@invariant("I-1", META | ACK)
def persistence(cluster: Cluster, truth: Truth) -> Finding:
    md = truth.metadata
    if md.state is LedgerState.CLOSED:
        if truth.top_acked > md.last_entry_id:
            return f"entry {truth.top_acked} is acknowledged, the ledger is closed at {md.last_entry_id}"
        ends = {v.metadata.last_entry_id for v in truth.history if v.metadata.state is LedgerState.CLOSED}
        if len(ends) > 1:
            return f"closed at {sorted(ends)}"
    return None


@invariant("I-2", META | ACK | LOSS)
def all_acked_entries_are_readable(cluster: Cluster, truth: Truth) -> Finding:
    if not truth.deleted:
        for e in _entries_to_check(truth):
            if not truth.holders(e) and cluster.loss_is_bounded(truth, e):
                return f"entry {e} is acknowledged and on none of its bookies ({truth.describe()})"
    return None


@invariant("I-3", META | ACK)
def acked_entries_reach_ack_quorum(cluster: Cluster, truth: Truth) -> Finding:
    if not truth.lost and not truth.deleted:
        quorum = truth.metadata.ack_quorum_size
        for e in _entries_to_check(truth):
            if truth.holders(e).bit_count() < quorum:
                return f"entry {e} is acknowledged and on {cluster.names(truth.holders(e))} only ({truth.describe()})"
    return None


@invariant("WR-7", ACK)
def acked_entries_span_domains(cluster: Cluster, truth: Truth) -> Finding:
    """Not in replication-protocol.md 13.1: the optional predicate, on the bookies that hold the positions when the entry is
    acknowledged."""
    if truth.domains_min < 2 or truth.lost or truth.metadata.state is not LedgerState.OPEN:
        return None
    for e in truth.new_acks:
        holders = truth.holders(e)
        domains = {cluster.placement.domain_of(name) for name, bookie in cluster.bookies.items() if holders & bookie.bit}
        if len(domains) < truth.domains_min:
            return f"entry {e} is acknowledged and on {cluster.names(holders)} only, all in {' '.join(sorted(domains)) or 'no domain'}"
    return None


@invariant("I-4", META)
def all_committed_entries_reach_ack_quorum(cluster: Cluster, truth: Truth) -> Finding:
    md = truth.metadata
    if md.state is LedgerState.CLOSED and not truth.lost and not truth.deleted:
        for e in range(md.last_entry_id + 1):
            if truth.holders(e).bit_count() < md.ack_quorum_size:
                return f"closed over entry {e}, which is on {cluster.names(truth.holders(e))} only ({truth.describe()})"
    return None


@invariant("I-5", STORED | READ)
def integrity_and_order(cluster: Cluster, truth: Truth) -> Finding:
    for stored in truth.new_stored:
        if not stored.payload_good:
            return f"bookie {stored.bookie + 1} stores something else as entry {stored.entry_id}"
    for who, e, payload in truth.seen[truth.checked_seen :]:
        if truth.submitted.get(e) != payload:
            return f"{who} read {payload!r} as entry {e}"
    return None


@invariant("I-6", META | LAC | READ | ACK)
def no_dirty_read(cluster: Cluster, truth: Truth) -> Finding:
    md = truth.metadata
    if truth.deleted:
        return None
    top_reader = max(truth.reader_lacs.values(), default=-1)
    if md.state is LedgerState.CLOSED:
        if truth.top_lac > md.last_entry_id:
            return f"a bookie has LAC {truth.top_lac}, the ledger is closed at {md.last_entry_id}"
        if top_reader > md.last_entry_id or truth.top_seen > md.last_entry_id:
            return f"a reader has LAC {top_reader} and saw entry {truth.top_seen}, the ledger is closed at {md.last_entry_id}"
        return None
    bound = max(truth.top_acked, md.last_fragment.first_entry_id - 1)
    if truth.top_lac > bound or top_reader > bound:
        return f"LAC {truth.top_lac} at a bookie, {top_reader} at a reader; acknowledged up to {truth.top_acked}"
    return None


@invariant("I-7", READ | OPENED | META)
def agreement(cluster: Cluster, truth: Truth) -> Finding:
    for who, e, payload in truth.seen[truth.checked_seen :]:
        if truth.submitted.get(e, payload) != payload:
            return f"{who} read entry {e} differently"
        truth.top_seen = max(truth.top_seen, e)
    truth.checked_seen = len(truth.seen)
    ends = {(last, length) for _, last, length in truth.opened}
    if len(ends) > 1:
        return f"handles on the closed ledger disagree: {truth.opened}"
    return None


# --- metadata ----------------------------------------------------------------------------------------------------------


@invariant("I-8", META)
def metadata_shape(cluster: Cluster, truth: Truth) -> Finding:
    md = truth.metadata
    try:
        md.check()
    except MetadataFormatError as error:
        return str(error)
    for fragment in md.fragments:
        if len(set(fragment.ensemble)) < md.ensemble_size:
            return f"fragment {fragment.first_entry_id} names a bookie twice"
    if md.state is LedgerState.CLOSED and md.last_entry_id < md.last_fragment.first_entry_id - 1:
        return f"closed at {md.last_entry_id}, below its last fragment at {md.last_fragment.first_entry_id}"
    if len(truth.history) > 1:
        keys = {f.first_entry_id for f in md.fragments}
        lost = [f.first_entry_id for f in truth.history[-2].metadata.fragments if f.first_entry_id not in keys]
        if lost:
            return f"fragments {lost} vanished"
    return None


@invariant("I-9", META)
def metadata_transitions(cluster: Cluster, truth: Truth) -> Finding:
    """META-3, META-6, META-7, META-9."""
    if len(truth.history) < 2 or truth.deleted:
        return None
    old, new = truth.history[-2].metadata, truth.history[-1].metadata
    role = truth.history[-1].role
    if _fixed(old) != _fixed(new):
        return f"{role} changed what never changes"
    allowed = ALLOWED.get((old.state, new.state), ())
    if role == "writer" and old.state is LedgerState.IN_RECOVERY and not cluster.closes_in_recovery(truth.history[-1].by):
        return f"{truth.history[-1].by} closed a ledger that is being recovered (D1)"
    if role not in allowed:
        return f"{role} took the ledger from {old.state.name} to {new.state.name}"
    if role == "replicator":
        if old.state is not LedgerState.CLOSED and old.fragments[-1] != new.fragments[-1] and truth.history[-1].by != "foreign":
            return "the re-replicator changed the last fragment of a ledger that is not closed (RR-2, RR-12)"
        return _substitution(old, new)
    kept = len(old.fragments) - 1
    if old.fragments[:kept] != new.fragments[:kept]:
        return f"{role} changed a fragment before the last"
    if old.state is new.state is LedgerState.OPEN and len(new.fragments) > len(old.fragments) + 1:
        return "more than one fragment appended at once"
    if role == "recoverer" and new.state is LedgerState.IN_RECOVERY and old.fragments != new.fragments:
        return "the mark changed the fragments (RC-1)"
    return None


ALLOWED: dict[tuple[LedgerState, LedgerState], tuple[str, ...]] = {
    (LedgerState.OPEN, LedgerState.OPEN): ("writer", "replicator"),
    (LedgerState.IN_RECOVERY, LedgerState.IN_RECOVERY): ("replicator", "recoverer"),  # D3, the other choice: nothing but the version
    (LedgerState.CLOSED, LedgerState.CLOSED): ("replicator",),
    (LedgerState.OPEN, LedgerState.IN_RECOVERY): ("recoverer",),
    (LedgerState.OPEN, LedgerState.CLOSED): ("writer",),
    (LedgerState.IN_RECOVERY, LedgerState.CLOSED): ("recoverer", "writer"),  # D1: the writer only if it was told to
}


def _fixed(md: LedgerMetadata) -> tuple[object, ...]:
    custom = {k: v for k, v in md.custom.items() if k != "gwq.sealed"}
    return (md.ensemble_size, md.write_quorum_size, md.ack_quorum_size, md.digest_type, md.password, md.ctime_ms, custom)


def _substitution(old: LedgerMetadata, new: LedgerMetadata) -> Finding:
    """RR-7: same keys, same state, same end; bookies only."""
    if [f.first_entry_id for f in old.fragments] != [f.first_entry_id for f in new.fragments]:
        return "the re-replicator changed keys"
    if (old.last_entry_id, old.length) != (new.last_entry_id, new.length):
        return "the re-replicator changed the end"
    return None


@invariant("I-10", META | ACK | CAS)
def window_soundness(cluster: Cluster, truth: Truth) -> Finding:
    """Also under every version that an outstanding compare-and-set could still install."""
    if not truth.pending or truth.lost or truth.deleted:
        return None
    quorum, version = truth.metadata.ack_quorum_size, truth.version
    for pending in truth.pending:
        if pending.version != version:
            continue
        first = pending.wanted.last_fragment.first_entry_id
        for e in truth.acked if pending.role == "replicator" else range(first, truth.top_acked + 1):
            if e in truth.acked and truth.holders(e, pending.wanted).bit_count() < quorum:
                return f"entry {e} is acknowledged; the compare-and-set of {pending.client} would leave it below {quorum} copies"
    return None


# --- promises of bookies -------------------------------------------------------------------------------------------------


@invariant("I-11", STORED)
def fence_is_sticky(cluster: Cluster, truth: Truth) -> Finding:
    for stored in truth.new_stored:
        if stored.promised and not stored.recovery:
            return f"bookie {stored.bookie + 1} had answered a fencing request and stored entry {stored.entry_id}"
    return None


@invariant("I-12", STORED)
def negative_is_for_ever(cluster: Cluster, truth: Truth) -> Finding:
    for stored in truth.new_stored:
        if stored.denied and not stored.recovery:
            return f"bookie {stored.bookie + 1} had denied entry {stored.entry_id} to a recoverer and stored it"
    return None


@invariant("I-13", META | ACK)
def bounded_stragglers(cluster: Cluster, truth: Truth) -> Finding:
    md, then = truth.metadata, truth.straggling
    for e in truth.new_acks:
        if md.state is LedgerState.CLOSED and e > md.last_entry_id:
            return f"entry {e} acknowledged after the ledger closed at {md.last_entry_id}"
        if then is None or truth.lost:
            continue
        ensemble = truth.history[then.version].metadata.last_fragment.ensemble
        mask = truth.mask(ensemble, e)
        unfenced = (mask & ~then.fenced).bit_count()
        if (then.stored.get(e, 0) & mask).bit_count() < md.ack_quorum_size - unfenced:
            return f"entry {e} acknowledged though a covering set was fenced and only {cluster.names(then.stored.get(e, 0))} had it"
    return None


@invariant("I-20", COLLECTED)
def deletion_safety(cluster: Cluster, truth: Truth) -> Finding:
    for bookie, allowed in truth.collected:
        if not allowed:
            return f"bookie {bookie + 1} deleted a ledger it may not delete"
    return None


# --- handles -------------------------------------------------------------------------------------------------------------


@invariant("I-14", CALLBACK)
def callback_discipline(cluster: Cluster, truth: Truth) -> Finding:
    for adds in truth.adds:
        for index in range(adds.checked, len(adds.done)):
            first, count, serial, good = adds.done[index]
            if serial in adds.completed:
                return f"{adds.owner}: append {first}+{count} completed twice"
            adds.completed[serial] = None
            if serial in adds.refused:
                continue
            if good and adds.failed:
                return f"{adds.owner}: append {first}+{count} succeeded after another one had failed"
            if good and first != adds.last_good + 1:
                return f"{adds.owner}: append {first}+{count} acknowledged after entry {adds.last_good}"
            if good:
                adds.last_good = first + count - 1
            else:
                adds.failed = True
        adds.checked = len(adds.done)
        confirmed = cluster.confirmed(adds.owner)
        if truth.exact and confirmed is not None and confirmed < adds.last_good:
            return f"{adds.owner}: LAC {confirmed} below the last acknowledged entry {adds.last_good}"
    return None


@invariant("I-15", OPENED)
def handle_honesty(cluster: Cluster, truth: Truth) -> Finding:
    md = truth.metadata
    for who, last, length in truth.opened:
        if truth.deleted:
            return None
        if md.state is not LedgerState.CLOSED or (last, length) != (md.last_entry_id, md.length):
            return f"{who} says closed at {last} with {length} bytes; the store says {truth.describe()}"
    return None


@invariant("I-16", OPENED)
def recovery_exposes_nothing_early(cluster: Cluster, truth: Truth) -> Finding:
    for who, state, good in truth.exposed:
        if good and state is not LedgerState.CLOSED:
            return f"{who} gave its caller a handle while the ledger was {state.name}"
    return None


@invariant("I-17", VERDICT | ACK)
def recoverer_lower_bound(cluster: Cluster, truth: Truth) -> Finding:
    for who, last in truth.verdicts.items():
        if last < truth.top_acked:
            return f"{who} ends the ledger at {last}; entry {truth.top_acked} is acknowledged"
    return None


@invariant("RC-5", FENCED)
def fences_cover_before_reading(cluster: Cluster, truth: Truth) -> Finding:
    """Not in replication-protocol.md 13.1: nothing else would notice (Q-9). No write set of the ensemble read from may hold an ack quorum
    of unpromised bookies."""
    for who, ensemble, promised in truth.reading:
        md = truth.history[0].metadata
        for start in range(md.ensemble_size):
            if (truth.mask(ensemble, start) & ~promised).bit_count() >= md.ack_quorum_size:
                return f"{who} reads with only {cluster.names(promised)} of {' '.join(ensemble)} fenced"
    truth.reading.clear()
    return None


@invariant("I-18", META)
def length(cluster: Cluster, truth: Truth) -> Finding:
    """With ids chosen by the caller the length is advisory: a recovery takes what was submitted before the last entry (WR-2)."""
    md = truth.metadata
    if md.state is LedgerState.CLOSED and not truth.deleted and truth.ordered:
        total = sum(len(truth.submitted.get(e, b"")) for e in range(md.last_entry_id + 1))
        if total != md.length:
            return f"length {md.length} recorded, {total} bytes written"
    return None


@invariant("I-19", HANDLE)
def no_stale_install(cluster: Cluster, truth: Truth) -> Finding:
    for who, (before, version, ensemble) in truth.handles.items():
        if version < before:
            return f"{who} went from metadata version {before} back to {version}"
        if ensemble is not None and ensemble not in truth.ensembles:
            return f"{who} writes to {' '.join(ensemble)}, which no version of the metadata names"
    return None


# --- guaranteed write quorum and re-replication --------------------------------------------------------------------------


@invariant("I-G1", META)
def gwq_earlier_fragments_are_full(cluster: Cluster, truth: Truth) -> Finding:
    if not truth.gwq or truth.lost or truth.deleted or truth.plainly_recovered:
        return None
    md = truth.metadata
    for e in range(md.last_fragment.first_entry_id):
        if e <= truth.end and truth.holders(e).bit_count() < md.write_quorum_size:
            return f"entry {e} of an earlier fragment is on {cluster.names(truth.holders(e))} only ({truth.describe()})"
    return None


@invariant("I-G2", META)
def gwq_sealed_ledgers_are_full(cluster: Cluster, truth: Truth) -> Finding:
    md = truth.metadata
    if md.state is not LedgerState.CLOSED or "gwq.sealed" not in md.custom or truth.lost or truth.deleted:
        return None
    for e in range(md.last_entry_id + 1):
        if truth.holders(e).bit_count() < md.write_quorum_size:
            return f"sealed, and entry {e} is on {cluster.names(truth.holders(e))} only ({truth.describe()})"
    return None


@invariant("I-G3", META | ACK | STORED | HANDLE)
def gwq_fully_replicated_prefix(cluster: Cluster, truth: Truth) -> Finding:
    if not truth.gwq or truth.lost or truth.deleted:
        return None
    md = truth.metadata
    lafr, lac = truth.lafr
    if lafr > lac:
        return f"LAFR {lafr} above LAC {lac}"
    top_slot = max(truth.slots.values(), default=-1)
    if not truth.plainly_recovered:
        for e in range(truth.full_to + 1, max(top_slot, lafr) + 1):
            if truth.holders(e).bit_count() < md.write_quorum_size:
                return f"LAFR is {max(top_slot, lafr)}, and entry {e} is on {cluster.names(truth.holders(e))} only"
        truth.full_to = -1 if truth.checked_from < 1 << 62 else max(truth.full_to, top_slot, lafr)
    for e in range(md.last_fragment.first_entry_id, truth.top_acked + 1):
        if e in truth.acked and truth.holders(e).bit_count() < md.ack_quorum_size:
            return f"committed entry {e} is on {cluster.names(truth.holders(e))} of the last ensemble only"
    return None


@invariant("I-R1", META)
def replication_never_loses_copies(cluster: Cluster, truth: Truth) -> Finding:
    if len(truth.history) < 2 or truth.history[-1].role != "replicator" or truth.deleted:
        return None
    old, dead = truth.history[-2].metadata, cluster.dead()
    for e in range(truth.end + 1):
        before = truth.holders(e, old) & ~dead
        if truth.lost & truth.mask(truth.metadata.fragment_of(e).ensemble, e):
            continue  # a bookie that got its copies and then lost its disk is nobody's fault
        if truth.holders(e).bit_count() < before.bit_count():
            return f"entry {e} had copies on {cluster.names(before)}, now on {cluster.names(truth.holders(e))}"
    return None
