"""Compares what a query that was restarted has written and kept with what an undisturbed one has."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

States = Mapping[str, Sequence[str]]


@dataclass
class Judged:
    """``states``: rows of state that were compared; ``wrong``: those that only one has. ``left``: what the store leaves behind."""

    case: str = ""
    side: str = ""
    kills: int = 0
    stops: int = 0
    batches: int = 0
    rows: int = 0
    missing: int = 0
    doubled: int = 0
    foreign: int = 0
    states: int = 0
    wrong: int = 0
    left: int = 0
    problem: str = ""
    errors: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.missing or self.doubled or self.foreign or self.wrong or self.left or self.problem)


def compared(
    rows: Sequence[str],
    states: Mapping[str, Sequence[str]],
    right_rows: Sequence[str],
    right_states: Mapping[str, Sequence[str]],
    exactly: bool,
) -> Judged:
    """``exactly``: a row that is there too often counts."""
    found, wanted = Counter(rows), Counter(right_rows)
    one = Judged(rows=len(rows), missing=(wanted - found).total())
    one.foreign = sum(count for row, count in found.items() if row not in wanted)
    one.doubled = sum(found[row] - wanted[row] for row in wanted if found[row] > wanted[row]) if exactly else 0
    for name in {*states, *right_states}:
        have, should = Counter(states.get(name, ())), Counter(right_states.get(name, ()))
        one.states += have.total()
        one.wrong += (have - should).total() + (should - have).total()
    if not wanted:
        one.problem = "the undisturbed query wrote no row, so nothing is proved"
    return one


def consecutive(rows: Sequence[str]) -> Judged:
    """Judge a source that follows the clock: it has its values from 0 on, each once."""
    values = Counter(int(json.loads(row)["v"]) for row in rows)
    one = Judged(rows=len(rows), missing=max(values, default=-1) + 1 - len(values), doubled=values.total() - len(values))
    if not values:
        one.problem = "no row was written, so nothing is proved"
    return one


def line(one: Judged) -> str:
    state = "ok  " if one.good else "BAD "
    counts = f"kills {one.kills} stops {one.stops} batches {one.batches} rows {one.rows} missing {one.missing} doubled {one.doubled}"
    counts += f" foreign {one.foreign}; state rows {one.states} wrong {one.wrong}; left {one.left}; errors at a stop {len(one.errors)}"
    return f"{state}{one.case} [{one.side}]: {counts}" + (f"\n      {one.problem}" if one.problem else "")


def table(judged: Sequence[Judged]) -> str:
    """Markdown: one row for each case and place."""
    lines = [
        "| Query | Checkpoint in | Kills | Stops | Batches | Rows | Missing | Doubled | State rows | Differing | Left | |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for one in judged:
        counts = (one.kills, one.stops, one.batches, one.rows, one.missing, one.doubled + one.foreign, one.states, one.wrong, one.left)
        lines.append(f"| {one.case} | {one.side} | " + " | ".join(map(str, counts)) + f" | {'' if one.good else '**bad**'} |")
    total = [sum(getattr(one, name) for one in judged) for name in ("kills", "stops", "batches", "rows", "missing")]
    total.append(sum(one.doubled + one.foreign for one in judged))
    total += [sum(getattr(one, name) for one in judged) for name in ("states", "wrong", "left")]
    bad = sum(not one.good for one in judged)
    lines.append("| **all** | | " + " | ".join(map(str, total)) + f" | {f'**{bad} bad**' if bad else ''} |")
    return "\n".join(lines)
