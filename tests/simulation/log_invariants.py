"""Safety of logs, replication-protocol.md 10.5: one function per invariant.

| id | function |
|---|---|
| I-L1 | acknowledged_ledgers_are_listed |
| I-L2 | earlier_ledgers_are_closed |
| I-L3 | only_the_last_two_are_open |
| I-L4 | late_acknowledgements_were_seen |
| I-L5 | the_list_only_grows_and_is_cut |
| I-L6 | what_is_listed_exists |
| I-L7 | what_is_deleted_is_nobodys |
| I-L8 | a_trim_keeps_what_it_was_told_to_keep |
| I-L9 | readers_fence_nobody |
| I-L10 | times_are_the_stores |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bk_core.protocol.ledger.metadata import LedgerState

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.logs import LogTruth

Finding = str | None
Check = Callable[["Cluster", "LogTruth"], Finding]


@dataclass(frozen=True, slots=True)
class LogInvariant:
    rule: str
    check: Check


LOG_INVARIANTS: list[LogInvariant] = []


def log_invariant(rule: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        LOG_INVARIANTS.append(LogInvariant(rule, check))
        return check

    return register


@log_invariant("I-L1")
def acknowledged_ledgers_are_listed(cluster: Cluster, log: LogTruth) -> Finding:
    for ledger_id, entry_id in log.new_acks:
        if ledger_id not in log.ever:
            return f"entry {entry_id} of ledger {ledger_id} is acknowledged; the ledger was never listed"
    return None


@log_invariant("I-L2")
def earlier_ledgers_are_closed(cluster: Cluster, log: LogTruth) -> Finding:
    for ledger_id in log.new_stored:
        if ledger_id not in log.ledgers:
            if ledger_id not in log.ever:
                return f"an entry is stored in ledger {ledger_id}, which is not listed"
            continue
        for before in log.unclosed(log.ledgers[: log.ledgers.index(ledger_id)]):
            return f"an entry is stored in ledger {ledger_id} while ledger {before} before it is not closed"
    return log.disorder[0] if log.disorder else None


@log_invariant("I-L3")
def only_the_last_two_are_open(cluster: Cluster, log: LogTruth) -> Finding:
    still_open = log.unclosed(log.ledgers[:-2])
    return f"ledgers {still_open} are not closed and not among the last two of {log.ledgers}" if still_open else None


@log_invariant("I-L4")
def late_acknowledgements_were_seen(cluster: Cluster, log: LogTruth) -> Finding:
    """Behind a ledger of another leader on the list, an acknowledgement is of an entry that this leader has found."""
    for ledger_id, entry_id in log.new_acks:
        if ledger_id not in log.ledgers:
            continue
        following = log.ledgers[log.ledgers.index(ledger_id) + 1 :]
        if any(log.owner[other] != log.owner[ledger_id] for other in following):
            md = cluster.truths[ledger_id].metadata
            if md.state is not LedgerState.CLOSED or entry_id > md.last_entry_id:
                return f"entry {entry_id} of ledger {ledger_id} is acknowledged after another leader's ledger was listed behind it"
    return None


@log_invariant("I-L5")
def the_list_only_grows_and_is_cut(cluster: Cluster, log: LogTruth) -> Finding:
    if len(log.history) < 2:
        return None
    before, after = log.history[-2], log.history[-1]
    grown = after[: len(before)] == before and len(after) > len(before)
    cut = len(after) < len(before) and before[len(before) - len(after) :] == after
    still_open = [ledger_id for ledger_id in before[: len(before) - len(after)] if cut and not log.closed(ledger_id)]
    if still_open:
        return f"ledgers {still_open} were truncated and are not closed (LOG-11)"
    return None if grown or cut else f"the list went from {before} to {after}"


@log_invariant("I-L6")
def what_is_listed_exists(cluster: Cluster, log: LogTruth) -> Finding:
    return f"ledgers {log.ghosts} were gone or condemned when they were listed (LOG-18)" if log.ghosts else None


@log_invariant("I-L7")
def what_is_deleted_is_nobodys(cluster: Cluster, log: LogTruth) -> Finding:
    """LOG-11, LOG-12."""
    return log.wronged[0] if log.wronged else None


@log_invariant("I-L8")
def a_trim_keeps_what_it_was_told_to_keep(cluster: Cluster, log: LogTruth) -> Finding:
    return log.overdone[0] if log.overdone else None


@log_invariant("I-L9")
def readers_fence_nobody(cluster: Cluster, log: LogTruth) -> Finding:
    """LOG-17."""
    return log.fenced_by_readers[0] if log.fenced_by_readers else None


@log_invariant("I-L10")
def times_are_the_stores(cluster: Cluster, log: LogTruth) -> Finding:
    """JAN-1, JAN-2: commit times never go back, and retention by age takes nothing that is younger on the metadata store's clock."""
    return log.untimely[0] if log.untimely else None
