"""The tables of checks and repairs of ledgers, and of bookies that are taken out of service."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bk_core.display.table import Table
from bk_core.display.words import about, counted, rounded_size

if TYPE_CHECKING:
    from bk_core.client.repair.report import DecommissionReport, LedgerReport, RepairReport, StillNamed
    from bk_core.protocol.ledger.replication import EntryRanges, FragmentSpan, ReplicaReport

LEDGERS_SHOWN = 20
_RANGES_SHOWN = 4


def replicas(reports: Iterable[LedgerReport], *, only_bad: bool = False) -> Table:
    """Return the replicas that checks looked at, each with what is missing or damaged in it."""
    rows = [
        _replica_row(report.ledger_id, fragment.span, replica)
        for report in reports
        for fragment in report.fragments
        for replica in fragment.replicas
        if not (only_bad and replica.is_good)
    ]
    return Table(["#ledger", "entries", "#pos", "bookie", "#checked", "missing", "corrupt", "unreadable", "state"], rows)


def _replica_row(ledger_id: int, span: FragmentSpan, replica: ReplicaReport) -> list[object]:
    found = [_shown(ranges) for ranges in (replica.missing, replica.corrupt, replica.unreadable)]
    place = (_range(span.first_entry_id, span.last_entry_id), replica.position, replica.bookie, replica.checked)
    return [str(ledger_id), *place, *found, _state(replica)]


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def _shown(found: EntryRanges) -> str | None:
    if not found:
        return None
    more = len(found.ranges) - _RANGES_SHOWN
    text = ", ".join(_range(low, high) for low, high in found.ranges[:_RANGES_SHOWN])
    return text + (f" and {counted(more, 'more range')}" if more > 0 else "")


def _state(replica: ReplicaReport) -> str:
    if not replica.registered:
        return "bookie is gone"
    if replica.is_refused:
        return "unknown (not admitted)"
    if replica.silent is not None:
        return f"no answer ({replica.silent.name.lower().replace('_', ' ')})"
    if not replica.is_good:
        return "damaged"
    return "good" if replica.first_stored is not None else "good (stores nothing here)"


def check_notes(report: LedgerReport) -> Iterator[str]:
    """Yield what a check found that is in no row of its table."""
    if report.metadata.state.name != "CLOSED":
        first = report.metadata.last_fragment.first_entry_id
        yield f"{report.metadata.state.name}, entries from {first} on are not decided and were not checked"
    if report.open_tail_lost:
        yield f"its undecided last fragment names bookies that are gone: {', '.join(report.open_tail_lost)}"
    if report.digest_note:
        yield report.digest_note
    if report.needs_filling:
        yield "its write quorum was guaranteed, but nobody has sealed it yet; repair fills it in and seals it"


def check_facts(report: LedgerReport) -> dict[str, Any]:
    """Return the check of one ledger by the names that scripts get."""
    return {
        "ledger": report.ledger_id,
        "good": report.is_good,
        "status": report.status,
        "notAdmitting": list(report.not_admitting),
        "full": report.full,
        "state": report.metadata.state.name,
        "openTailLost": list(report.open_tail_lost),
        "unsealed": report.needs_filling,
        "digestNote": report.digest_note or None,
        "fragments": [
            {
                "firstEntryId": fragment.span.first_entry_id,
                "lastEntryId": fragment.span.last_entry_id,
                "replicas": [_replica_facts(replica) for replica in fragment.replicas],
            }
            for fragment in report.fragments
        ],
    }


def _replica_facts(replica: ReplicaReport) -> dict[str, Any]:
    return {
        "position": replica.position,
        "bookie": replica.bookie,
        "registered": replica.registered,
        "good": replica.is_good,
        "checked": replica.checked,
        "missing": replica.missing.ranges,
        "corrupt": replica.corrupt.ranges,
        "unreadable": replica.unreadable.ranges,
        "noAnswer": replica.silent.name if replica.silent is not None else None,
    }


def check(report: LedgerReport) -> list[Table | str]:
    """Return the check of one ledger: its replicas, notes, and the verdict."""
    told = {"good": "is good", "damaged": "is in need of repair", "unknown": "could not be looked at: bookies do not admit this client"}
    verdict = f"ledger {report.ledger_id} {told[report.status]}"
    return [replicas([report]), *check_notes(report), verdict]


def repairs(reports: Iterable[RepairReport]) -> Table:
    """Return the replicas that repairs moved to other bookies or filled in."""
    rows: list[list[object]] = []
    for report in reports:
        ledger = str(report.ledger_id)
        rows += [[ledger, str(m.first_entry_id), m.position, "moved", m.old, m.new, m.entries] for m in report.moved]
        rows += [[ledger, str(r.first_entry_id), r.position, "filled in", None, r.bookie, r.entries] for r in report.refilled]
    return Table(["#ledger", "#fragment", "#pos", "what", "from", "to", "#entries"], rows)


def repair_notes(report: RepairReport) -> Iterator[str]:
    """Yield what a repair did, or could not do, that is in no row of its table."""
    if report.recovered:
        yield "was recovered and is CLOSED now"
    if report.sealed:
        yield "filled in and sealed"
    if report.deleted:
        yield "was deleted meanwhile"
    if report.locked_by:
        yield f"left alone: {report.locked_by} is replicating it"
    if report.open_tail_lost:
        gone = ", ".join(report.open_tail_lost)
        yield f"its undecided last fragment names {gone}; its writer may replace them, or --recover-open closes the ledger"
    yield from report.problems


def repair_facts(report: RepairReport) -> dict[str, Any]:
    """Return the repair of one ledger by the names that scripts get."""
    return {
        "ledger": report.ledger_id,
        "complete": report.is_complete,
        "moved": [
            {"firstEntryId": m.first_entry_id, "position": m.position, "from": m.old, "to": m.new, "entries": m.entries}
            for m in report.moved
        ],
        "filledIn": [
            {"firstEntryId": r.first_entry_id, "position": r.position, "bookie": r.bookie, "entries": r.entries} for r in report.refilled
        ],
        "recovered": report.recovered,
        "sealed": report.sealed,
        "lockedBy": report.locked_by,
        "deleted": report.deleted,
        "openTailLost": list(report.open_tail_lost),
        "problems": report.problems,
        "notAdmitting": sorted(report.not_admitting),
        "entriesCopied": report.entries_copied,
        "bytesCopied": report.bytes_copied,
    }


def repair(report: RepairReport) -> list[Table | str]:
    """Return the repair of one ledger: what moved, notes, and how much was copied."""
    copied = f"{counted(report.entries_copied, 'entry', 'entries')} ({rounded_size(report.bytes_copied)}) copied"
    done = "fully repaired" if report.is_complete else "not fully repaired"
    return [repairs([report]), *repair_notes(report), f"ledger {report.ledger_id}: {copied}, {done}"]


def still_named(found: Iterable[StillNamed]) -> Table:
    """Return the ledgers that name a bookie which is to go."""
    return Table(["#ledger", "how", "log"], [[str(one.ledger_id), _use(one), one.log] for one in found])


def _use(found: StillNamed) -> str:
    if found.problem is not None:
        return f"not known: {found.problem}"
    if found.written:
        return "its last fragment is being written to the bookie"
    state = "" if found.state is None else found.state.name
    return f"{state}, not moved yet"


def decommission(report: DecommissionReport) -> list[Table | str]:
    """Return the replicas that were moved off a bookie, and the ledgers that name it still."""
    notes = [about(f"ledger {one.ledger_id}", note) for one in report.repairs for note in repair_notes(one)]
    named = f"{report.bookie} is still named by {counted(len(report.still_named), 'ledger')}"
    left: list[Table | str] = [still_named(report.still_named[:LEDGERS_SHOWN]), named]
    done = f"no fragment of any ledger names {report.bookie} any more"
    return [repairs(report.repairs), *notes, *(left if report.still_named else [done])]
