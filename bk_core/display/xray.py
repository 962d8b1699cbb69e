"""The map and the tables of an x-ray: a row for each bookie, a column for each stretch of entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from bk_core.display.table import Lines, Table
from bk_core.display.words import counted, id_text, rounded_size

if TYPE_CHECKING:
    from bk_core.client.log.verify import LogDamage, LogVerification
    from bk_core.client.xray import Xray, XrayProblem
    from bk_core.protocol.ledger.xray import BookieXray

PROBLEMS_SHOWN = 50
MAP_WIDTH = 64
"""The columns of a map in a notebook."""


class Mark(NamedTuple):
    """A state as a map shows it: with Unicode, without, in its colour, and in words."""

    mark: str
    plain: str
    style: str
    words: str


NONE = Mark("·", ".", "dim", "holds none of these entries")
MARKS = {  # by the name of the state, the worst last: a column shows the worst of its entries
    "GOOD": Mark("█", "#", "green", "there, and read"),
    "LISTED": Mark("▒", "=", "green", "there, not read"),
    "UNASKED": Mark("~", "~", "yellow", "not asked: the bookie is gone"),
    "SILENT": Mark("?", "?", "yellow", "no answer"),
    "UNREADABLE": Mark("!", "!", "magenta", "cannot be read there"),
    "MISSING": Mark("○", "o", "red", "missing"),
    "CORRUPT": Mark("X", "X", "bold red", "wrong digest or id"),
}
_RANKS = {name: rank for rank, name in enumerate(MARKS, 1)}
_BY_RANK = {0: NONE, **{rank: MARKS[name] for name, rank in _RANKS.items()}}


class MapRow(NamedTuple):
    """One bookie of a map: its marks, one for each column."""

    bookie: str
    marks: Sequence[Mark]


def columns(xray: Xray, width: int) -> list[tuple[int, int]]:
    """Return the entries that each column of a map stands for, first and last; a map has at most ``width`` columns.

    Where there is not a column for each entry, a column of a striped ledger stands for E entries at least, so that every bookie has some.
    """
    count = xray.last - xray.first + 1
    if count <= 0:
        return []
    most = min(max(1, width), count)
    if most < count and xray.metadata.write_quorum_size < xray.metadata.ensemble_size:
        most = max(1, min(most, count // xray.metadata.ensemble_size))
    edges = [xray.first + count * at // most for at in range(most + 1)]
    return [(low, high - 1) for low, high in zip(edges, edges[1:], strict=False)]


def map_rows(xray: Xray, width: int) -> list[MapRow]:
    """Return the rows of a map with at most ``width`` columns, in the order of the ledger's bookies."""
    shown = columns(xray, width)
    ranks = {bookie.bookie: bytearray(len(shown)) for bookie in xray.bookies}
    count, most = xray.last - xray.first + 1, len(shown)
    size, quorum = xray.metadata.ensemble_size, xray.metadata.write_quorum_size
    for replica in xray.replicas:
        row = ranks[replica.bookie]
        for stretch in replica.stretches:
            rank = _RANKS[stretch.state.name]
            low = _column(stretch.first - xray.first, count, most)
            high = _column(stretch.last - xray.first, count, most)
            for at in range(low, high + 1):
                # of a striped ledger, a column of few entries may have none of this position's
                if row[at] < rank and (high - low < 2 or at in (low, high) or _holds(shown[at], replica.position, size, quorum)):
                    row[at] = rank
    return [MapRow(bookie, [_BY_RANK[rank] for rank in row]) for bookie, row in ranks.items() if any(row)]


def _column(entry: int, count: int, most: int) -> int:
    """Return the column of an entry, counted from the first of the map: the last one whose edge is not above it."""
    return ((entry + 1) * most - 1) // count


def _holds(span: tuple[int, int], position: int, size: int, quorum: int) -> bool:
    first, last = span
    return last - first + 1 >= size or any((position - entry) % size < quorum for entry in range(first, last + 1))


def legend(rows: Sequence[MapRow]) -> list[Mark]:
    """Return the marks that occur, in the order of MARKS, and that of nothing."""
    found = {mark for row in rows for mark in row.marks}
    return [mark for mark in (*MARKS.values(), NONE) if mark in found]


def scale(xray: Xray, width: int) -> str:
    """Return the line above a map: the first entry at its left end, the last one at its right end."""
    left, right = str(xray.first), str(xray.last)
    shown = len(columns(xray, width))
    return f"{left}{right.rjust(shown - len(left))}" if shown > len(left) + len(right) else f"{left} to {right}"


def per_column(xray: Xray, width: int) -> str:
    """Return in words how many entries a column stands for."""
    sizes = {high - low + 1 for low, high in columns(xray, width)}
    if not sizes:
        return "there is no entry to look at"
    if max(sizes) == 1:
        return "each column is one entry"
    many = f"{min(sizes):,}" if len(sizes) == 1 else f"{min(sizes):,} or {max(sizes):,}"
    return f"each column is {many} entries, and shows the worst of them"


def bookies(xray: Xray) -> Table:
    """Return the bookies: the numbers that each reported, and how many of its copies are there, were read, are missing, wrong, or not
    known."""
    rows = []
    for seen in xray.bookies:
        counts: dict[str, int] = {}
        for replica in xray.replicas:
            if replica.bookie == seen.bookie:
                for state, count in replica.stretches.counts.items():
                    counts[state.name] = counts.get(state.name, 0) + count
        there = counts.get("GOOD", 0) + counts.get("LISTED", 0)
        unknown = sum(counts.get(name, 0) for name in ("UNREADABLE", "SILENT", "UNASKED"))
        wrong = counts.get("CORRUPT", 0)
        numbers = (there, counts.get("GOOD", 0) + wrong, counts.get("MISSING", 0), wrong, unknown)
        rows.append([seen.bookie, *map(id_text, (seen.lac, seen.last_entry_id)), *numbers, _told(seen)])
    return Table(["bookie", "#LAC", "#last", "#there", "#read", "#missing", "#wrong", "#unknown", "state"], rows)


def _told(seen: BookieXray) -> str:
    if not seen.registered:
        return "is gone"
    if seen.silent is not None:
        return f"silent ({seen.silent.name.lower().replace('_', ' ')})"
    return "lists its entries" if seen.lists else "answers"


def problems(xray: Xray, most: int | None = PROBLEMS_SHOWN) -> Table:
    """Return the copies that are in need of repair, at most ``most`` stretches of them."""
    return Table(["entries", "#copies", "#pos", "bookie", "what"], (_problem(one) for one in islice(xray.problems, most)))


def _problem(problem: XrayProblem) -> list[object]:
    stretch = problem.stretch
    span = str(stretch.first) if stretch.count == 1 else f"{stretch.first}-{stretch.last}"
    return [span, stretch.count, problem.position, problem.bookie, MARKS[stretch.state.name].words]


def notes(xray: Xray) -> Iterator[str]:
    """Yield what an x-ray found that is in no row of its tables."""
    more = sum(1 for _ in xray.problems) - PROBLEMS_SHOWN
    if more > 0:
        yield f"and {counted(more, 'more stretch', 'more stretches')} in need of repair: --json has all"
    state = xray.metadata.state.name
    if state != "CLOSED":
        yield f"ledger {xray.ledger_id} is {state}, acknowledged up to entry {xray.lac} as far as bookies report"
        waiting = sum(one.stretch.count for one in xray.on_their_way)
        if waiting:
            yield f"{counted(waiting, 'copy', 'copies')} missing in the fragment that is being written: the writer may still send them"
    if xray.digest_note:
        yield xray.digest_note


def verdict(xray: Xray) -> str:
    """Return the last line: what was looked at, how fast, and the result."""
    rate = f", {xray.copies / xray.seconds:,.0f}/s" if xray.seconds > 0 else ""
    read = f"{rounded_size(xray.bytes_read)} read" if xray.bytes_read else "none read"
    counts = {state.name: count for state, count in xray.counts.items()}
    unseen = [f", {counts[name]:,} {words}" for name, words in (("UNASKED", "not asked"), ("SILENT", "not answered")) if name in counts]
    looked = f"{counted(xray.copies, 'copy', 'copies')} looked at ({read}, {xray.seconds:.1f} s{rate}){''.join(unseen)}"
    bad = sum(one.stretch.count for one in xray.problems) - xray.unknown
    return f"ledger {xray.ledger_id}: {looked}: {_judged(bad, xray.unknown)}"


def _judged(bad: int, unknown: int, more: str = "") -> str:
    found = f"{bad:,} in need of repair{more}" if bad else "none in need of repair"
    return found + (f", {unknown:,} unknown: this client is not admitted" if unknown else "")


def shown(xray: Xray) -> list[Table | Lines | str]:
    """Return the x-ray of one ledger for a notebook: its map with its legend, bookies, problems, notes and the verdict."""
    rows = map_rows(xray, MAP_WIDTH)
    wide = max((len(row.bookie) for row in rows), default=0)
    lines = [f"{'':{wide}}  {scale(xray, MAP_WIDTH)}"] if rows else []
    lines += [f"{row.bookie:{wide}}  {''.join(mark.mark for mark in row.marks)}" for row in rows]
    lines += ["", *(f"{mark.mark} {mark.words}" for mark in legend(rows))] if rows else []
    found = problems(xray)
    listed = list(found.rows)
    parts: list[Table | Lines | str] = [Lines(lines)] if rows else []
    parts += [per_column(xray, MAP_WIDTH), bookies(xray)]
    parts += [Table(found.columns, listed)] if listed else []
    return [*parts, *notes(xray), verdict(xray)]


def facts(xray: Xray) -> dict[str, object]:
    """Return an x-ray by the names that scripts get (docs/site/pages/guides/looking.md has them)."""
    return {
        "ledger": xray.ledger_id,
        "good": xray.is_good,
        "state": xray.metadata.state.name,
        "first": xray.first,
        "last": xray.last,
        "lac": xray.lac,
        "full": xray.full,
        "copies": xray.copies,
        "bytesRead": xray.bytes_read,
        "seconds": round(xray.seconds, 3),
        "counts": {state.name.lower(): count for state, count in xray.counts.items()},
        "digestNote": xray.digest_note or None,
        "bookies": [
            {
                "bookie": one.bookie,
                "registered": one.registered,
                "lac": one.lac,
                "lastEntryId": one.last_entry_id,
                "lists": one.lists,
                "noAnswer": None if one.silent is None else one.silent.name,
            }
            for one in xray.bookies
        ],
        "replicas": [
            {
                "firstEntryId": one.first_entry_id,
                "lastEntryId": one.last_entry_id,
                "position": one.position,
                "bookie": one.bookie,
                "decided": one.decided,
                "stretches": [[part.first, part.last, part.count, part.state.name.lower()] for part in one.stretches],
            }
            for one in xray.replicas
        ],
    }


def damages(found: Iterable[LogDamage], most: int = PROBLEMS_SHOWN) -> Table:
    """Return the copies of a log's entries that are in need of repair, at most ``most`` stretches of them."""
    return Table(["segments", "#ledger", "entries", "#copies", "#pos", "bookie", "what"], (_damage(one) for one in islice(found, most)))


def _damage(damage: LogDamage) -> list[object]:
    first, last = damage.first_seq, damage.last_seq
    seqs = "history" if first is None else str(first) if first == last else f"{first}-{last}"
    return [seqs, str(damage.ledger_id), *_problem(damage.problem)]


def verified(report: LogVerification) -> str:
    """Return the last line of a verification."""
    more = len(report.damages) - PROBLEMS_SHOWN
    left = f" ({counted(more, 'more stretch', 'more stretches')} not shown: --json has them)" if more > 0 else ""
    looked = f"{counted(report.copies, 'copy', 'copies')} in {counted(report.ledgers, 'ledger')} looked at"
    read = f"{looked}, {rounded_size(report.bytes_read)} read"
    lists = f"{counted(len(report.check.problems), 'problem')} of its list" if report.check.problems else "its list is good"
    return f"log {report.log}: {lists}; {read}: {_judged(report.damaged, report.unknown, left)}"


def verified_facts(found: LogVerification) -> dict[str, object]:
    """Return a verification by the names that scripts get (docs/site/pages/guides/looking.md has them)."""
    return {
        "log": found.log,
        "good": found.is_good,
        "ledgers": found.ledgers,
        "copies": found.copies,
        "bytesRead": found.bytes_read,
        "damaged": found.damaged,
        "unknown": found.unknown,
        "listProblems": [
            {"problem": one.kind, "ledger": one.ledger_id, "firstSeq": one.first_seq, "lastSeq": one.last_seq, "what": one.what}
            for one in found.check.problems
        ],
        "damages": [
            {
                "ledger": one.ledger_id,
                "firstSeq": one.first_seq,
                "lastSeq": one.last_seq,
                "bookie": one.problem.bookie,
                "position": one.problem.position,
                "first": one.problem.stretch.first,
                "last": one.problem.stretch.last,
                "copies": one.problem.stretch.count,
                "state": one.problem.stretch.state.name.lower(),
            }
            for one in found.damages
        ],
    }
