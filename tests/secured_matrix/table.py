"""The places of the matrix, what is argued in them and why, and the tables of results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal, TypeAlias

from bk_core.bookie.apache import KNOWN_VERSIONS

EMBEDDED = "embedded"
BOOKIES = (*KNOWN_VERSIONS, EMBEDDED)
TRANSPORTS = ("plain", "tls", "mutual")
AUTHS = ("none", "digest", "gssapi")
PROTOCOLS = ("v2", "v3")
OPERATIONS = (
    *("write", "Java writes", "read", "Java reads", "recover", "Java recovers", "long poll"),
    *("Spark batch", "Spark stream", "wrong secret", "shows nothing", "certificate", "without TLS"),
)
State: TypeAlias = Literal["passed", "refused", "argued", "left out", "failed"]
JAVA = ("Java writes", "Java reads", "Java recovers")
SPARK = ("Spark batch", "Spark stream")
_WORDS: Mapping[State, str] = {"passed": "ok", "refused": "refused", "left out": "-", "failed": "**FAILED**"}


@dataclass(frozen=True)
class Place:
    """One cluster: whose bookies, the way to them, and how clients say who they are."""

    bookies: str
    transport: str
    auth: str

    @property
    def name(self) -> str:
        return f"{self.bookies} {self.transport} {self.auth}"


@dataclass(frozen=True)
class Sign:
    """A text that one of the files must have, which ``files`` names as a pattern below the folder of a place."""

    files: str
    text: str


@dataclass
class Cell:
    """One operation in one row. ``note`` is the reason where it is argued, the error where it failed, and otherwise what was seen."""

    state: State
    note: str = ""
    seconds: float = 0.0


@dataclass
class Row:
    """One place over one protocol, and what came of each operation."""

    place: Place
    protocol: str
    cells: dict[str, Cell] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.place.name} {self.protocol}"


def rows_of(bookies: Sequence[str] = BOOKIES) -> list[Row]:
    """Return the rows of the matrix, with nothing played."""
    return [Row(Place(*place), protocol) for *place, protocol in product(bookies, TRANSPORTS, AUTHS, PROTOCOLS)]


def argued(place: Place, operation: str) -> str | None:
    """Return why an operation cannot be played in a place, None if it is played."""
    if operation == "without TLS" and place.transport == "plain":
        return "there is no TLS to leave out"
    if operation == "shows nothing" and place.auth == "none":
        return "nobody is asked who he is"
    return None


JAVA_STAYS_OUT = (
    "Java's client does not come in at Apache's own bookies by TLS and SASL together over this wire (wire-protocol.md 10.4), as was seen "
    "and stands in the logs"
)
UNDECODED = Sign("java.log", "unknown response : op code = 6")
NOT_TLS = Sign("bookie-*/bookie.log", "NotSslRecordException")
NO_FRAME = Sign("bookie-*/bookie.log", "initialCapacity : -1 (expected: >= 0)")


def signs_outside(place: Place, protocol: str) -> tuple[Sign, ...]:
    """Return what stands in the logs, at least one of it, where Java's client and Apache's bookies fail at each other by no fault of ours;
    nothing where Java comes in. Document: wire-protocol.md 10.4."""
    if place.bookies == EMBEDDED or place.transport == "plain" or place.auth == "none":
        return ()
    if place.bookies == "4.14.7":
        return (NO_FRAME,) if protocol == "v2" else (NOT_TLS,)
    return (UNDECODED,) if protocol == "v2" else ()


def is_good(rows: Sequence[Row]) -> bool:
    """Return True if no cell failed."""
    return all(cell.state != "failed" for row in rows for cell in row.cells.values())


def table(rows: Sequence[Row]) -> str:
    """Markdown: a line for each row, a column for each operation, and below it the reasons of what is argued."""
    reasons: dict[str, str] = {}
    lines = [f"| bookies | way | who | wire | {' | '.join(OPERATIONS)} |", "|" + " --- |" * (4 + len(OPERATIONS))]
    for row in rows:
        words = (_word(row.cells.get(operation, Cell("left out")), reasons) for operation in OPERATIONS)
        lines.append(f"| {' | '.join((row.place.bookies, row.place.transport, row.place.auth, row.protocol, *words))} |")
    lines += ["", *(f"* {mark}: {reason}." for reason, mark in reasons.items()), "", counted(rows)]
    return "\n".join(lines)


def _word(cell: Cell, reasons: dict[str, str]) -> str:
    if cell.state == "argued":
        return reasons.setdefault(cell.note, chr(ord("a") + len(reasons)))
    return _WORDS[cell.state]


def counted(rows: Sequence[Row]) -> str:
    """Return how many cells there are of each state."""
    counts = Counter(cell.state for row in rows for cell in row.cells.values())
    return ", ".join(f"{counts[state]} {state}" for state in ("passed", "refused", "argued", "left out", "failed") if counts[state])


def summary(rows: Sequence[Row]) -> str:
    """Markdown, smaller: a line for each way and authentication, a column for each kind of bookies."""
    kinds = list(dict.fromkeys(row.place.bookies for row in rows))
    lines = [f"| way | who | {' | '.join(kinds)} |", "|" + " --- |" * (2 + len(kinds))]
    for transport, auth in product(TRANSPORTS, AUTHS):
        cells = [" / ".join(_summed([row for row in rows if row.place == Place(kind, transport, auth)])) for kind in kinds]
        lines.append(f"| {transport} | {auth} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _summed(rows: Sequence[Row]) -> Iterator[str]:
    states = [cell.state for row in rows for cell in row.cells.values()]
    for state in ("passed", "refused", "argued", "left out", "failed"):
        if state in states:
            yield f"{states.count(state)} {state}"


def saved(path: Path, rows: Sequence[Row]) -> list[Row]:
    """Write the rows into a file of JSON. What it has and what was not played now stays. Return all rows in their order."""
    kept = {row.name: row for row in loaded(path)} if path.exists() else {}
    for row in rows:
        before = kept.setdefault(row.name, Row(row.place, row.protocol)).cells
        before |= {name: cell for name, cell in row.cells.items() if cell.state != "left out" or name not in before}
    there = [kept[row.name] for row in rows_of() if row.name in kept]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(row) for row in there], indent=1) + "\n")
    return there


def loaded(path: Path) -> list[Row]:
    """Return the rows in a file of JSON."""
    return [
        Row(Place(**one["place"]), one["protocol"], {name: Cell(**cell) for name, cell in one["cells"].items()})
        for one in json.loads(path.read_text())
    ]
