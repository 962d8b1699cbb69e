"""Liveness at quiescence, replication-protocol.md 13.2: everything is healed, enough bookies are up, whoever was told to run still does.

| id | function | | id | function |
|---|---|---|---|---|
| L-1 | every_add_has_completed | | L-7 | nothing_stays_in_recovery_or_limbo |
| L-2 | a_writer_left_alone_commits_everything | | L-8 | recoverers_do_not_prevent_each_other |
| L-3 | a_guaranteed_writer_replicates_everything | | L-9 | no_compare_and_set_loop |
| L-4 | the_ledger_is_closed | | L-10 | fragments_are_full_again |
| L-5 | a_close_returns | | L-11 | nothing_leaks_after_the_end |
| L-6 | readers_reach_the_end | | | |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bk_core.protocol.ledger.metadata import LedgerState

if TYPE_CHECKING:
    from tests.simulation.swarm import LedgerPlay

Finding = str | None
Check = Callable[["LedgerPlay"], Finding]


@dataclass(frozen=True, slots=True)
class Liveness:
    rule: str
    check: Check
    alone: bool  # evaluated while the writer is still open and nobody recovers


LIVENESS: list[Liveness] = []


def liveness(rule: str, *, alone: bool = False) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        LIVENESS.append(Liveness(rule, check, alone))
        return check

    return register


def check_writer_alone(run: LedgerPlay) -> None:
    _check(run, alone=True)


def check_end(run: LedgerPlay) -> None:
    _check(run, alone=False)


def _check(run: LedgerPlay, *, alone: bool) -> None:
    for one in LIVENESS:
        if one.alone is alone:
            run.cluster.checker.evaluated[one.rule] += 1
            found = one.check(run)
            if found is not None:
                run.cluster.checker.fail(one.rule, found)


@liveness("L-1")
def every_add_has_completed(run: LedgerPlay) -> Finding:
    adds = run.writer.adds
    if run.writer.alive and len(adds.done) < len(adds.pushed):
        return f"{len(adds.pushed)} appends, {len(adds.done)} completed"
    return None


@liveness("L-2", alone=True)
def a_writer_left_alone_commits_everything(run: LedgerPlay) -> Finding:
    machine = run.writer.machine
    if not machine.idle or machine.last_add_confirmed != machine.last_add_pushed:
        return f"LAC {machine.last_add_confirmed}, LAP {machine.last_add_pushed}, idle: {machine.idle}"
    if machine.unretired_entries:
        return f"{machine.unretired_entries} entries are held though everything is committed (WR-9)"
    return None


@liveness("L-3", alone=True)
def a_guaranteed_writer_replicates_everything(run: LedgerPlay) -> Finding:
    machine = run.writer.machine
    if run.truth.gwq and machine.last_add_fully_replicated != machine.last_add_confirmed:
        return f"LAFR {machine.last_add_fully_replicated}, LAC {machine.last_add_confirmed}"
    return None


@liveness("L-4")
def the_ledger_is_closed(run: LedgerPlay) -> Finding:
    state = run.truth.metadata.state
    return None if state is LedgerState.CLOSED else f"the ledger is {state.name}"


@liveness("L-5")
def a_close_returns(run: LedgerPlay) -> Finding:
    writer = run.writer
    if writer.alive and len(writer.close_results) < len(writer.closing):
        return f"{len(writer.closing)} closes, {len(writer.close_results)} results"
    return None


@liveness("L-6")
def readers_reach_the_end(run: LedgerPlay) -> Finding:
    last = run.truth.metadata.last_entry_id
    for reader in run.readers:
        if reader.tailing and reader.position <= last:
            return f"{reader.name} is before entry {reader.position}, the ledger ends at {last}"
    return None


@liveness("L-7")
def nothing_stays_in_recovery_or_limbo(run: LedgerPlay) -> Finding:
    if run.truth.metadata.state is LedgerState.IN_RECOVERY:
        return "the ledger stays IN_RECOVERY"
    for name, bookie in run.cluster.bookies.items():
        record = bookie.storage.ledger(run.truth.ledger_id)
        if record is not None and record.limbo:
            return f"{name} stays in limbo"
    return None


@liveness("L-8")
def recoverers_do_not_prevent_each_other(run: LedgerPlay) -> Finding:
    for recoverer in run.recoverers:
        if recoverer.alive and recoverer.result is None:
            return f"{recoverer.name} never ends ({recoverer.state.name})"
    return None


@liveness("L-9")
def no_compare_and_set_loop(run: LedgerPlay) -> Finding:
    """Each one was decided, repeats an UNKNOWN one, or follows a conflict; a conflict needs somebody's write."""
    versions = len(run.truth.history)
    for client in run.cluster.clients:
        bound = versions + 2 * client.cas_unknown + 2
        if client.cas_sent > bound:
            return f"{client.name} sent {client.cas_sent} compare-and-sets; {client.cas_unknown} were ambiguous, {versions} versions exist"
    return None


@liveness("L-10")
def fragments_are_full_again(run: LedgerPlay) -> Finding:
    """With a re-replicator at work; checked after it has found nothing left to do."""
    md = run.truth.metadata
    if not run.replicators:
        return None
    for replicator in run.replicators:
        if not replicator.content:
            return f"{replicator.name} never finishes"
    for e in range(md.last_entry_id + 1):
        if run.truth.holders(e).bit_count() < md.write_quorum_size:
            return f"entry {e} is on {run.cluster.names(run.truth.holders(e))} only ({run.truth.describe()})"
    if md.guaranteed and not md.sealed:
        return "the ledger was filled in and is not sealed (G-27)"
    return None


@liveness("L-11")
def nothing_leaks_after_the_end(run: LedgerPlay) -> Finding:
    for client in run.cluster.clients:
        if client.leaks:
            return f"{client.name} still acts after its end: {client.leaks[0]}"
    return None
