"""The findings of the demo, as one value and as a terminal shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table

from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_spark.demo.compare import Comparison


@dataclass(frozen=True, slots=True)
class FragmentRow:
    """Entries first_entry_id .. last_entry_id of a ledger (none if last < first) and the bookies that keep them."""

    first_entry_id: int
    last_entry_id: int
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One data ledger of the log. ``rows`` and ``bytes`` count what its committed segments hold."""

    ledger_id: int
    state: str
    write_quorum_size: int
    segments: int
    rows: int
    bytes: int
    fragments: tuple[FragmentRow, ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened ``at_s`` seconds after the start."""

    at_s: float
    text: str
    fault: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows dropped into the input and rows committed to the log, ``at_s`` seconds after the start."""

    at_s: float
    dropped: int
    committed: int


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of the whole run. Sizes are in bytes, times in seconds; ``bookies`` maps each bookie to True if it was killed.

    ``write_s`` is the time of the batches whose progress was recorded, ``timed_share`` is their part of all rows: neither contains what the
    killed driver had not yet recorded.
    """

    comparison: Comparison
    parts: int
    batches: int
    source_bytes: int
    log_bytes: int
    write_s: float
    timed_share: float
    read_s: float
    wall_s: float
    peak_memory_bytes: int
    bookies: dict[str, bool]
    ledgers: tuple[LedgerRow, ...]
    moments: tuple[Moment, ...]
    samples: tuple[Sample, ...]
    delays: tuple[dict[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        return {"exact": self.comparison.exact, **asdict(self)}


def fragment_rows(metadata: LedgerMetadata, last_entry_id: int) -> tuple[FragmentRow, ...]:
    """Fragments of a ledger of which entries 0 .. last_entry_id matter."""
    ends = [following.first_entry_id - 1 for following in metadata.fragments[1:]] + [last_entry_id]
    pairs = zip(metadata.fragments, ends, strict=True)
    return tuple(FragmentRow(fragment.first_entry_id, min(end, last_entry_id), fragment.ensemble) for fragment, end in pairs)


def replicas_per_bookie(ledger: LedgerRow) -> dict[str, int]:
    """Table entries per bookie by the rule of write sets: entry e lies on positions (e + k) mod E, k < Qw (Q-1)."""
    counts: dict[str, int] = {}
    for fragment in ledger.fragments:
        size = len(fragment.ensemble)
        for position, bookie in enumerate(fragment.ensemble):
            firsts = ((position - k) % size for k in range(ledger.write_quorum_size))
            held = sum(_count_congruent(fragment.first_entry_id, fragment.last_entry_id, first, size) for first in firsts)
            counts[bookie] = counts.get(bookie, 0) + held
    return counts


def _count_congruent(first: int, last: int, residue: int, modulus: int) -> int:
    """The number of e in first .. last with e mod modulus == residue."""
    return max(0, (last - residue) // modulus - (first - 1 - residue) // modulus)


def render(report: Report) -> RenderableType:
    return Group(_events(report), _ledgers(report), _replicas(report), _delays(report.delays), _verdict(report))


def _events(report: Report) -> Table:
    table = Table(title="what happened", title_justify="left")
    table.add_column("s", justify="right")
    table.add_column("event", overflow="fold")
    for moment in report.moments:
        table.add_row(f"{moment.at_s:.1f}", moment.text, style="bold red" if moment.fault else None)
    return table


def _ledgers(report: Report) -> Table:
    table = Table(title="ledgers of the log", title_justify="left")
    for name in ("ledger", "state", "segments", "rows", "MB", "fragment", "entries"):
        table.add_column(name, justify="left" if name == "state" else "right")
    table.add_column("ensemble", overflow="fold")
    for ledger in report.ledgers:
        head = [str(ledger.ledger_id), ledger.state, str(ledger.segments), f"{ledger.rows:,}", f"{ledger.bytes / 1e6:.2f}"]
        for index, fragment in enumerate(ledger.fragments):
            entries = (
                f"{fragment.first_entry_id} - {fragment.last_entry_id}" if fragment.last_entry_id >= fragment.first_entry_id else "none"
            )
            table.add_row(*(head if index == 0 else [""] * 5), str(index), entries, " ".join(fragment.ensemble))
    return table


def _replicas(report: Report) -> Table:
    table = Table(title="replicas per bookie, in entries, by the ledgers' metadata", title_justify="left")
    table.add_column("bookie")
    for ledger in report.ledgers:
        table.add_column(f"ledger {ledger.ledger_id}", justify="right")
    table.add_column("all", justify="right")
    counts = [replicas_per_bookie(ledger) for ledger in report.ledgers]
    for bookie, killed in report.bookies.items():
        row = [count.get(bookie, 0) for count in counts]
        name = f"{bookie} (killed)" if killed else bookie
        table.add_row(name, *(str(n) if n else "-" for n in row), str(sum(row)), style="red" if killed else None)
    return table


def _delays(delays: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="mean departure delay in minutes, by carrier and month (computed by Spark from the log)", title_justify="left")
    months = sorted({row["month"] for row in delays})
    cells = {(row["carrier"], row["month"]): row["dep_delay"] for row in delays}
    table.add_column("carrier")
    for month in months:
        table.add_column(str(month), justify="right")
    table.add_column("flights", justify="right")
    for carrier in sorted({row["carrier"] for row in delays}):
        values = [cells.get((carrier, month)) for month in months]
        flights = sum(row["flights"] for row in delays if row["carrier"] == carrier)
        table.add_row(carrier, *("" if value is None else f"{value:.1f}" for value in values), f"{flights:,}")
    return table


def _verdict(report: Report) -> Panel:
    result = report.comparison
    changed = {name: count for name, count in result.changed.items() if count}
    fragments = sum(len(ledger.fragments) for ledger in report.ledgers)
    numbers = Table.grid(padding=(0, 2))
    numbers.add_row("rows", f"{result.found:,} read, {result.expected:,} written from {report.parts} files in {report.batches} batches")
    numbers.add_row("log", f"{len(report.ledgers)} ledgers, {fragments} fragments, {report.log_bytes / 1e6:.1f} MB of entries")
    csv, entries = (_rate(size * report.timed_share, report.write_s) for size in (report.source_bytes, report.log_bytes))
    numbers.add_row("in", f"{csv} of CSV, {entries} of entries, by the time of whole batches")
    numbers.add_row("out", f"{_rate(report.log_bytes, report.read_s)} of entries")
    numbers.add_row("duplicates", str(result.doubled))
    numbers.add_row("missing", str(result.missing))
    numbers.add_row("changed", ", ".join(f"{name}: {count}" for name, count in changed.items()) or f"0 in {len(result.changed)} columns")
    if result.foreign:
        numbers.add_row("never written", str(result.foreign))
    numbers.add_row("wall time", f"{report.wall_s:.1f} s")
    numbers.add_row("peak memory", f"{report.peak_memory_bytes / 1e6:,.0f} MB in all processes together")
    title = "every row exactly once" if result.exact else "NOT THE SAME ROWS"
    return Panel(numbers, title=title, border_style="green" if result.exact else "red", expand=False)


def _rate(size: float, seconds: float) -> str:
    return f"{size / 1e6 / seconds:.1f} MB/s" if seconds > 0 else "-"
