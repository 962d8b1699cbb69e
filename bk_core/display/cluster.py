"""The tables of a whole cluster: findings of a doctor, probes of bookies, and what a cluster is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from bk_core.display.table import Table
from bk_core.display.words import counted, disk_size, told_time

if TYPE_CHECKING:
    from bk_core.client.doctor.findings import Diagnosis, Finding
    from bk_core.client.doctor.probe import BookieProbe

_NAMED_MAX = 8


def findings(found: Iterable[Finding]) -> Table:
    """Findings of a doctor, one a line."""
    columns = ["severity", "finding", "what", "about", "what to do", "command"]
    return Table(columns, ((one.severity, one.code, one.what, about(one), one.advice, one.command or None) for one in found))


def about(finding: Finding) -> str | None:
    """Return the ledgers that a finding is about in words, None if it is about none. Bookies and logs stand in its sentence."""
    shown = finding.ledgers[:_NAMED_MAX]
    if not shown:
        return None
    more = finding.count - len(shown)
    names = ", ".join(map(str, shown))
    return f"{'ledger' if finding.count == 1 else 'ledgers'} {names}" + (f" and {more:,} more" if more > 0 else "")


def verdict(found: Diagnosis) -> str:
    """Return the result of a look at a cluster in one sentence."""
    states = list(found.bookies.values())
    parts = (counted(len(states), "bookie"), counted(found.ledgers.total, "ledger"), counted(found.logs, "log"))
    counts = [counted(found.count(severity), severity) for severity in ("error", "warning", "note") if found.count(severity)]
    return f"cluster {found.cluster}: {', '.join(parts)}: {', '.join(counts) or 'nothing wrong'}"


def diagnosis(found: Diagnosis) -> Iterator[Table | str]:
    """Yield a look at a cluster: its findings, and a line that sums it up."""
    if found.findings:
        yield findings(found.findings)
    for left in found.unchecked:
        yield f"not looked at: {left}"
    yield verdict(found)


def probes(found: Iterable[BookieProbe], states: Mapping[str, str]) -> Table:
    """Probes of bookies with their times."""
    columns = ["bookie", "state", "answer", "#connect", "#v2 p50", "#v2 p99", "#v3 p50", "#v3 p99", "#used", "#free"]
    return Table(columns, (_probe_row(probe, states.get(probe.bookie)) for probe in found))


def _probe_row(probe: BookieProbe, state: str | None) -> list[object]:
    times = [told_time(probe.round_trip_ns(share, protocol)) for protocol in ("v2", "v3") for share in (0.5, 0.99)]
    answer = probe.state if probe.answers else f"{probe.state}: {probe.problem}"
    return [probe.bookie, state, answer, told_time(probe.connect_ns), *times, *disk(probe)]


def disk(probe: BookieProbe | None) -> tuple[str | None, str | None]:
    """Return the used share and the free bytes of a bookie's disks in words, None for what is not known."""
    used = None if probe is None else probe.used
    if probe is None or used is None or probe.free_bytes is None:
        return None, None
    return f"{used:.0%}", disk_size(probe.free_bytes)
