"""Rules broken on purpose (replication-protocol.md 13.4). Each mutation replaces methods of production classes for the time of one run; the
swarm must notice.

A mutation names the invariants of which one must fire. ``forced`` pins what the rule is about (see ``options.override``), the rest is drawn
as always. "crash" as an expectation: an assertion inside a machine noticed first.
"""

from __future__ import annotations

from dataclasses import replace

from bk_core.protocol.bookie.memory import MemoryBookieStorage
from bk_core.protocol.bookie.records import Reply
from bk_core.protocol.bookie.rules import BookieRules
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.recover.end_phase import EndPhase
from bk_core.protocol.ledger.recover.fence_phase import DENIALS, FencePhase
from bk_core.protocol.ledger.recover.recovery import LedgerRecovery
from bk_core.protocol.ledger.replication import FragmentRepair, check, fragments
from bk_core.protocol.ledger.write.acks import CountingWriter
from bk_core.protocol.ledger.write.base import WriterBase
from bk_core.protocol.ledger.write.close import ClosingWriter
from bk_core.protocol.ledger.write.ensemble_change import ChangingWriter
from bk_core.protocol.ledger.write.failures import FailingWriter
from bk_core.protocol.ledger.write.guarantee import GuaranteeingWriter
from bk_core.protocol.ledger.write.lac import ConfirmingWriter
from bk_core.protocol.ledger.write.options import ChangeWindow, EnsembleChangeMode
from bk_core.protocol.ledger.write.pending import AckSet
from bk_core.protocol.ledger.write.writer import LedgerWriter
from bk_core.protocol.log import reading
from bk_core.protocol.log.clearing import ListClearing
from bk_core.protocol.log.leader import LogLeader
from bk_core.protocol.log.reader_order import LogReaderOrder
from bk_core.protocol.log.trimming import LogTrimming, TrimBounds
from bk_core.protocol.wire.messages import Status
from tests.simulation import replicator
from tests.simulation.broken import (
    accepts_its_own_version,
    acknowledges_while_closing,
    all_fragments,
    always,
    asks_current_ensemble,
    asks_without_fence,
    changes_first,
    closes_nothing,
    closes_without_draining,
    commits_any_complete,
    commits_between_un_acks,
    copies_without_flag,
    counts_answers,
    counts_departed,
    counts_domains_of_departed,
    cuts_one_more,
    deletes_before_it_writes,
    fences_only_what_it_knows,
    forces_an_ack_quorum,
    forgets_fences,
    install_with_early,
    length_of_nothing,
    looks_once,
    loses_only_what_is_outstanding,
    moves_the_lac_by_acks,
    opens_with_recovery,
    overwrites_closed,
    persists_private_changes,
    remembers_departed,
    remembers_who_had_it,
    rereads_when_unknown,
    sends_by_difference,
    stamps_moving_lac,
    take_back_noting,
    taken_up_to_the_lac,
    takes_open_ledgers,
    tells_early,
    tombstone_without_fence,
    unverified_lac,
    uses_before_commit,
)
from tests.simulation.files_mutations import FILES_MUTATIONS
from tests.simulation.link_mutations import LINK_MUTATIONS
from tests.simulation.mutation import Mutation, applied
from tests.simulation.owner_mutations import OWNER_MUTATIONS
from tests.simulation.pressure import AMBIGUOUS, CHANGES, DEFERRED, DOMAINS, GWQ, RECOVERIES, STRAGGLERS, WIPES

__all__ = ["MUTATIONS", "Mutation", "applied"]

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "B-3",
        "a ledger that the bookie has no entries of is not fenced",
        ((BookieRules, "_fenced", fences_only_what_it_knows),),
        ("I-11", "I-12", "I-1", "I-17"),
        STRAGGLERS,
    ),
    Mutation(
        "B-4",
        "a fencing request is answered before the mark is durable",
        ((BookieRules, "_fence_reply", lambda self, tag, response: Reply(tag, response)),),
        ("I-11", "I-12", "I-1", "I-17"),
        {**STRAGGLERS, "crash": 0.3, "weather.slow_disk": 0.5},
        4000,
    ),
    Mutation(
        "B-6 (restart)",
        "fence marks are lost in a restart",
        ((MemoryBookieStorage, "_after_crash", forgets_fences),),
        ("I-11", "I-12", "I-1", "I-17"),
        {**STRAGGLERS, "crash": 0.3},
    ),
    Mutation(
        "B-6 (deletion)",
        "a deleted ledger leaves no fence",
        ((BookieRules, "_tombstone", tombstone_without_fence),),
        ("I-11",),
        {"delete": True},
    ),
    Mutation(
        "B-7",
        "an entry that cannot be read is denied",
        ((BookieRules, "_unreadable", always(Status.NO_ENTRY)),),
        ("I-1", "I-17"),
        {**STRAGGLERS, "damage": 0.5, "entries": 6, "append_every_ms": 2, "recover_at_ms": 30},
        4000,
    ),
    Mutation(
        "B-10 (limbo)",
        "a bookie that lost its disk denies what it lost",
        ((BookieRules, "_lost", lambda self, record: replace(record, fenced=True)),),
        ("I-1", "I-17"),
        {**WIPES, "recover_at_ms": 80},
        4000,
    ),
    Mutation(
        "B-10 (fence)",
        "a bookie that lost its disk is in limbo and not fenced",
        ((BookieRules, "_lost", lambda self, record: replace(record, limbo=True)),),
        ("I-11", "I-12", "I-1", "I-17"),
        WIPES,
        6000,
    ),
    Mutation(
        "META-11",
        "an ensemble is used before the store has it",
        ((ChangingWriter, "_propose", uses_before_commit),),
        ("I-3", "I-10", "I-19"),
        CHANGES,
    ),
    Mutation(
        "META-12",
        "after an ambiguous compare-and-set the store is read instead",
        ((ChangingWriter, "_after_unknown", rereads_when_unknown), (ChangingWriter, "_stale", accepts_its_own_version)),
        ("I-10", "I-3", "I-1", "I-G1", "I-G2", "I-G3"),
        AMBIGUOUS,
        20000,
    ),
    Mutation(
        "WR-2",
        "an id is compared with the LAC only, not with what was acknowledged",
        ((LedgerWriter, "_is_taken", taken_up_to_the_lac),),
        ("I-5",),
        {**DEFERRED, "writer.caller_ids": True},
    ),
    Mutation(
        "WR-7",
        "acknowledgements of replaced bookies count",
        ((WriterBase, "_set_ensemble", remembers_departed), (CountingWriter, "_acknowledged", counts_departed)),
        ("I-3", "I-10", "I-2", "I-4"),
        CHANGES,
        4000,
    ),
    Mutation(
        "WR-7 (domains)",
        "replaced bookies count for the fault domains",
        ((CountingWriter, "_acknowledged", remembers_who_had_it), (CountingWriter, "_across_domains", counts_domains_of_departed)),
        ("WR-7",),
        DOMAINS,
        4000,
    ),
    Mutation(
        "WR-8",
        "entries are acknowledged out of order",
        ((CountingWriter, "_advance", commits_any_complete),),
        ("I-3", "I-14", "I-2"),
        {**CHANGES, "entries_at_once": 1, "append_every_ms": 1},
    ),
    Mutation(
        "WR-17 (acks)",
        "with deferred sync the LAC moves when adds are acknowledged",
        ((CountingWriter, "_commit", moves_the_lac_by_acks),),
        ("I-2", "I-3"),
        DEFERRED,
    ),
    Mutation(
        "WR-17 (Qa)",
        "a force needs an ack quorum of the bookies, not all",
        ((ConfirmingWriter, "_force_answered", forces_an_ack_quorum),),
        ("I-2", "I-3"),
        DEFERRED,
    ),
    Mutation(
        "WR-17 (restart)",
        "a bookie that was away between the acknowledgement and the force is taken at its word",
        ((FailingWriter, "_lost", loses_only_what_is_outstanding),),
        ("I-2", "I-3"),
        {
            **DEFERRED,
            "quorums": (3, 3, 3),
            "crash": 0.2,
            "append_every_ms": 50,
            "force_every_ms": 100,
            "storm_ms": 500,
            "weather.slow": 0.0,
            "weather.reset": 1.0,
        },
    ),
    Mutation(
        "EC-7 (too high)",
        "a fragment starts behind the last entry pushed",
        ((WriterBase, "_first_entry_of_change", lambda self: self.last_add_pushed + 1),),
        ("I-3", "I-10", "I-4", "I-2"),
        CHANGES,
    ),
    Mutation(
        "EC-7 (too low)",
        "a fragment starts at the last committed entry",
        (
            (
                WriterBase,
                "_first_entry_of_change",
                lambda self: max(self.metadata.last_fragment.first_entry_id, self.last_add_confirmed),
            ),
        ),
        ("I-3", "I-10", "I-4", "I-2"),
        {**CHANGES, "quorums": (3, 2, 2), "bookies": 6},
    ),
    Mutation(
        "EC-8",
        "everything counts while the metadata of a change is on its way",
        ((WriterBase, "_positions_to_exclude", always(())), (WriterBase, "_window_blocks", always(False))),
        ("I-3", "I-10"),
        {**CHANGES, "weather.store_loss": 0.3},
    ),
    Mutation(
        "EC-10 (order)",
        "the commit runs between un-acking one entry and the next",
        ((ChangingWriter, "_take_back", commits_between_un_acks), (ChangingWriter, "_install", install_with_early)),
        ("I-3", "I-10", "I-4"),
        {**CHANGES, "quorums": (4, 2, 2), "bookies": 7, "entries_at_once": 1, "append_every_ms": 1, "writer.window": ChangeWindow.BLOCK},
        6000,
    ),
    Mutation(
        "EC-10 (no un-ack)",
        "acknowledgements of replaced bookies are kept",
        ((AckSet, "move", always(None)),),
        ("I-3", "I-10", "I-4", "L-1", "L-2"),
        CHANGES,
    ),
    Mutation(
        "EC-11",
        "only positions that changed are sent to",
        ((ChangingWriter, "_take_back", take_back_noting), (ChangingWriter, "_send_all_missing", sends_by_difference)),
        ("L-1", "L-2", "L-5", "L-3"),
        {**CHANGES, "recoverers": 0, "bookies": 4, "quorums": (3, 3, 3)},
        6000,
    ),
    Mutation(
        "CL-1",
        "entries are acknowledged after the close has fixed the end",
        (
            (ClosingWriter, "_begin_close", closes_without_draining),
            (CountingWriter, "_acknowledged", acknowledges_while_closing),
        ),
        ("I-1", "I-13"),
        {**CHANGES, "recoverers": 0, "close_at_ms": 40, "storm_ms": 150},
    ),
    Mutation(
        "CL-4",
        "a close succeeds although another client closed elsewhere",
        ((ClosingWriter, "_same_end", always(True)),),
        ("I-7", "I-15"),
        {
            **STRAGGLERS,
            "entries": 3,
            "recover_at_ms": 3,
            "close_at_ms": 60,
            "weather.loss": 0.2,
            "limits.add_timeout_ns": 1_000_000_000,
            "writer.quorum_timeout_ns": None,
        },
        4000,
    ),
    Mutation(
        "RC-2",
        "recovery reads follow its own write-backs",
        ((LedgerRecovery, "_ask", asks_current_ensemble),),
        ("I-1", "I-17", "I-10"),
        {
            **RECOVERIES,
            "quorums": (3, 2, 2),
            "bookies": 6,
            "entries": 25,
            "append_every_ms": 1,
            "recoverers": 1,
            "recover_at_ms": 25,
            "recoverer_dies": 0.0,
            "limits.recovery_window_entries": 1,
            "limits.add_timeout_ns": 15_000_000,
            "recovery.ensemble_change": EnsembleChangeMode.IMMEDIATE,
        },
        6000,
    ),
    Mutation(
        "RC-5",
        "a global count of answers is taken for coverage (Q-8)",
        ((Distribution, "covered", counts_answers),),
        ("RC-5",),
        {**RECOVERIES, "quorums": (4, 2, 2), "crash": 0.1},
    ),
    Mutation(
        "RC-6 (floor)",
        "recovery starts at the LAC heard, however low",
        ((FencePhase, "_floor", property(lambda self: -1)),),
        ("I-1", "I-17", "I-8", "crash"),
        {**CHANGES, **RECOVERIES, "crash": 0.12},
        4000,
    ),
    Mutation(
        "RC-6 (digest)",
        "a LAC under a bad digest counts",
        ((FencePhase, "_lac_of", unverified_lac),),
        ("I-4", "I-6", "I-18", "I-17", "L-4"),
        {**RECOVERIES, "damage": 0.5, "quorums": (3, 3, 2), "recovery.reread_last_fragment": False, "storm_ms": 300},
        4000,
    ),
    Mutation(
        "RC-7",
        "write-backs carry the moving LAC",
        ((LedgerWriter, "_package", stamps_moving_lac),),
        ("I-6",),
        RECOVERIES,
    ),
    Mutation(
        "RC-8",
        "recovery reads do not fence",
        ((LedgerRecovery, "_ask", asks_without_fence),),
        ("I-1", "I-12", "I-17"),
        STRAGGLERS,
        20000,
    ),
    Mutation(
        "RC-10 (QC - 1)",
        "one denial less ends the ledger",
        ((LedgerRecovery, "_denials_needed", lambda self: max(1, self._distribution.denials_needed - 1)),),
        ("I-1", "I-17"),
        RECOVERIES,
    ),
    Mutation(
        "RC-10 (one)",
        "one denial ends the ledger",
        ((LedgerRecovery, "_denials_needed", always(1)),),
        ("I-1", "I-17"),
        RECOVERIES,
    ),
    Mutation(
        "RC-11",
        "silence counts as a denial",
        ((LedgerRecovery, "_denies", lambda self, status: status in DENIALS or status in (Status.TIMEOUT, Status.UNAVAILABLE)),),
        ("I-1", "I-17"),
        {**RECOVERIES, "crash": 0.1, "weather.loss": 0.15},
    ),
    Mutation(
        "RC-15",
        "ensembles of a recovery are stored before it closes",
        ((ChangingWriter, "_propose", persists_private_changes),),
        ("I-9", "I-1", "I-17", "I-3"),
        {**RECOVERIES, "crash": 0.12},
    ),
    Mutation(
        "RC-16",
        "the length of an unread last entry is taken for nothing",
        ((EndPhase, "start", length_of_nothing),),
        ("I-18", "I-7"),
        RECOVERIES,
    ),
    Mutation(
        "RC-18",
        "a recovery closes a ledger that is closed",
        ((LedgerRecovery, "_metadata_read", overwrites_closed),),
        ("I-9", "I-1", "I-15"),
        RECOVERIES,
    ),
    Mutation(
        "RC-19",
        "a recovery answers its caller before the close is definite",
        ((LedgerRecovery, "_maybe_close", tells_early),),
        ("I-15", "I-16"),
        RECOVERIES,
    ),
    Mutation(
        "G-4",
        "nothing is pinned",
        ((GuaranteeingWriter, "_removable", always(True)),),
        ("I-3", "I-10", "I-G3"),
        GWQ,
    ),
    Mutation(
        "G-6",
        "departing bookies count inside the window",
        ((WriterBase, "_positions_to_exclude", always(())),),
        ("I-3", "I-10", "I-G1", "I-G3"),
        {**GWQ, "weather.store_loss": 0.3, "writer.window": None},
        4000,
    ),
    Mutation(
        "G-8",
        "failures are taken back while an ambiguous change is out, and the store is read instead",
        ((ChangingWriter, "_after_unknown", rereads_when_unknown), (ChangingWriter, "_stale", accepts_its_own_version)),
        ("I-10", "I-3", "I-G1", "I-G2", "I-G3"),
        {**AMBIGUOUS, "quorums": (4, 3, 2)},
        20000,
    ),
    Mutation(
        "G-11",
        "a guaranteed ledger is closed and sealed before everything is fully replicated",
        (
            (ClosingWriter, "_drained", lambda self: self.last_add_confirmed == self.last_add_pushed),
            (ClosingWriter, "_may_close_here", always(True)),
        ),
        ("I-G2",),
        {**GWQ, "recoverers": 0, "close_at_ms": 40},
    ),
    Mutation(
        "G-12",
        "recovery of a guaranteed ledger starts at the LAC",
        ((FencePhase, "base", property(lambda self: max(self.inquiry.highest_lac, self._floor))),),
        ("I-G2",),
        {**GWQ, **{k: v for k, v in RECOVERIES.items() if k != "gwq"}, "weather.loss": 0.15},
        4000,
    ),
    Mutation(
        "B-2",
        "recovery adds are refused by a fence",
        ((BookieRules, "_passes_fences", always(False)),),
        ("L-10", "L-4", "L-8", "L-7"),
        {"recoverers": 1, "replicators": 0, "gwq": False, "readers": 0, "calm_ms": 2000},
    ),
    Mutation(
        "RR-2",
        "the last fragment of a ledger that is not closed is copied",
        (
            (fragments, "is_eligible", lambda metadata, first: True),
            (check, "is_eligible", lambda metadata, first: True),
            (FragmentRepair, "_may_copy", always(True)),
            (replicator, "eligible_fragments", all_fragments),
        ),
        ("I-9", "I-R1", "I-3", "I-2", "I-10"),
        {**CHANGES, "replicators": 2},
    ),
    Mutation(
        "RR-5",
        "copies are written without the recovery flag",
        ((FragmentRepair, "handle", copies_without_flag),),
        ("L-10",),
        {**CHANGES, "replicators": 1, "recoverers": 1, "readers": 0},
    ),
    Mutation(
        "RR-7",
        "bookies are exchanged before the copies are there",
        ((FragmentRepair, "_go_on", changes_first),),
        ("I-R1", "I-3", "I-4", "I-2"),
        {**CHANGES, "replicators": 2, "weather.loss": 0.02},
        4000,
    ),
    Mutation(
        "LOG-1",
        "a new leader fences the last ledger only",
        ((LogLeader, "_ledgers_to_recover", lambda self, ledgers: ledgers[-1:]),),
        ("I-L2", "I-L3", "I-L4", "L-4"),
        {"log": True, "append_every_ms": 4, "storm_ms": 300},
    ),
    Mutation(
        "LOG-6",
        "a leader writes to the next ledger before the one before it is closed",
        ((LogLeader, "_old_is_settled", always(True)),),
        ("I-L2", "I-L3"),
        {"log": True, "append_every_ms": 4, "storm_ms": 300},
    ),
    Mutation(
        "LOG-7",
        "a leader rolls while more than its last ledger is open",
        ((LogLeader, "_may_roll", always(True)),),
        ("I-L2", "I-L3", "crash", "L-4"),
        {"log": True, "append_every_ms": 4, "storm_ms": 300},
    ),
    Mutation(
        "LOG-18",
        "a leader lists its next ledger again without looking whether a janitor has deleted it",
        ((LogLeader, "_check_following", LogLeader._write_list),),
        ("I-L6", "L-8", "L-4", "crash"),
        {"log": True, "append_every_ms": 4, "storm_ms": 300},
    ),
    Mutation(
        "LOG-15",
        "a reader goes on to the next ledger although this one is not closed",
        ((reading, "may_move_on", lambda segment, *, closed: True),),
        ("I-L2",),
        {"log": True, "append_every_ms": 4, "storm_ms": 300},
    ),
    Mutation(
        "LOG-11",
        "a trim takes ledgers that are not closed",
        ((LogTrimming, "_without_front", takes_open_ledgers),),
        ("I-L5", "I-L7"),
        {"log": True, "append_every_ms": 4, "storm_ms": 300},
    ),
    Mutation(
        "LOG-11 (order)",
        "a ledger is deleted before the list has condemned it",
        ((ListClearing, "_write", deletes_before_it_writes),),
        ("I-L7", "I-L6", "I-L5", "L-4", "L-8", "crash"),
        {"log": True, "append_every_ms": 4, "storm_ms": 300},
    ),
    Mutation(
        "LOG-11 (bounds)",
        "a trim cuts off one segment more than it was told",
        ((TrimBounds, "cut", cuts_one_more),),
        ("I-L8",),
        {"log": True, "append_every_ms": 4, "storm_ms": 300},
    ),
    Mutation(
        "LOG-12",
        "a ledger is deleted without being closed",
        ((ListClearing, "_close_ledger", closes_nothing),),
        ("I-L7",),
        {"log": True, "append_every_ms": 4, "storm_ms": 300},
    ),
    Mutation(
        "LOG-13",
        "a reader goes on with what is left whatever was trimmed unread",
        ((reading, "rows_lost", lambda trimmed_rows, rows_read: 0),),
        ("I-L2",),
        {"log": True, "append_every_ms": 4, "storm_ms": 300},
        6000,
    ),
    Mutation(
        "LOG-16",
        "a reader at the end of the log does not look at the list when it changes",
        ((LogReaderOrder, "_read_again", looks_once),),
        ("L-6",),
        {"log": True, "append_every_ms": 4, "storm_ms": 300},
    ),
    Mutation(
        "LOG-17",
        "a reader opens an unclosed ledger with recovery",
        ((LogReaderOrder, "_open", opens_with_recovery),),
        ("I-L9",),
        {"log": True, "append_every_ms": 4, "storm_ms": 300},
    ),
    *LINK_MUTATIONS,
    *OWNER_MUTATIONS,
    *FILES_MUTATIONS,
)
