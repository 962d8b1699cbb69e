"""The options of a recovery. Every combination is safe; they differ in cost and in the bookies that they work with."""

from __future__ import annotations

from dataclasses import dataclass

from bk_core.protocol.ledger.write.options import EnsembleChangeMode


@dataclass(frozen=True, slots=True)
class RecoveryOptions:
    """Options of one recovery.

    ``ensemble_change``
        How write-backs deal with a bookie that fails (EC-3). IMMEDIATE replaces it; with DELAYED a recovery needs no spare bookie as long
        as Qa of each write set take the entries.
    ``barrier``
        RC-11a: before the end is made final, have the bookies that denied the first missing entry journal one more request, so that
        their fence marks are durable. Wanted with bookies that answer a denied fence read before the mark is (B-4); Apache's do, our own
        do not. One more round trip, protocol v3. A read-only bookie that has entries of the ledger is asked for a force instead; one
        without any confirms nothing until it is writable.
    ``reread_last_fragment``
        When the metadata says IN_RECOVERY already, start at the first entry of the last fragment and ignore the LACs heard. Another
        recoverer was here; if it was one that stamps its own moving LAC into write-backs (Apache's does, RC-7), the LAC heard may lie
        above entries whose copies its unrecorded ensembles took with them. On by default: it costs reading and storing the last fragment
        once more, and only after a recovery that died, failed or is still running; switched off it would cost, rarely, entries with fewer
        than Qa copies. Either way nothing acknowledged is lost; and either way a reader may have believed such a LAC before (open
        question 2). Where all recoverers freeze their LAC (D6) it may be switched off.
    ``explicit_lafr``
        G-22, guaranteed ledgers only: ask the bookies for the explicit LAC, which is the LAFR there, to read less. Never waited for long.
    ``limbo_counts_as_fenced``
        RC-25: an UNKNOWN_LEDGER_STATE answer to a fence request counts as fenced. True only of bookies that fence on boot whatever they
        put in limbo (B-10). Never makes such an answer a denial.
    ``bump_version``
        D3, the other choice: write the metadata even if it is IN_RECOVERY already, so that an earlier recoverer has to look again before
        it can close.
    ``sequential_reads``
        RC-8: ask the replicas of an entry one after the other instead of at once. Fewer bytes, more time.
    """

    ensemble_change: EnsembleChangeMode = EnsembleChangeMode.IMMEDIATE
    barrier: bool = False
    reread_last_fragment: bool = True
    explicit_lafr: bool = True
    limbo_counts_as_fenced: bool = False
    bump_version: bool = False
    sequential_reads: bool = False
