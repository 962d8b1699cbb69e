"""Finds what an operator should look at, in what the watcher knows anyway. The page of the doctor looks deeper, when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bk_core.display.ledgers import DOWN, UNREADABLE, bookie_states
from bk_core.display.words import counted
from bk_core.ui.watching import Watcher

NAMED = 5  # bookies, of each kind
SPARE = 1  # a bookie more than the usual ensemble of three, so that a writer can replace one


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to look at, and what to do. ``weight`` is bad or watch."""

    weight: str
    said: str
    advice: str


def findings(watcher: Watcher, marked: int | None) -> Iterator[Finding]:
    """Yield what is wrong, or soon may be. ``marked`` is the number of ledgers that are marked as under-replicated, None if not known."""
    sight = watcher.sight
    if sight is None:
        return
    states = bookie_states(sight.bookies.writable, sight.bookies.readonly, sight.cookies)
    down = [bookie for bookie, state in states.items() if state == DOWN]
    if down:
        named = ", ".join(down[:NAMED]) + (", ..." if len(down) > NAMED else "")
        said = f"{counted(len(down), 'bookie')} {'is' if len(down) == 1 else 'are'} down: {named}"
        each = "" if len(down) == 1 else ", and so each of them"
        gone = f"if it is gone for good, `bk bookie decommission {down[0]} --delete-cookie`{each}"
        yield Finding("bad", said, f"start it again with its data; {gone}")
    if sight.bookies.readonly:
        said = f"{counted(len(sight.bookies.readonly), 'bookie')} read-only: {', '.join(sight.bookies.readonly[:NAMED])}"
        yield Finding("watch", said, "look at its disks: trim logs, or add room")
    writable = len(sight.bookies.writable)
    if writable < 3:
        yield Finding(
            "bad", f"only {counted(writable, 'bookie')} can be written to", "ledgers of three bookies (the default) cannot be made"
        )
    elif writable < 3 + SPARE and len(sight.cookies) > 3:
        yield Finding("watch", "no spare bookie can be written to", "a writer of three bookies that loses one has none to replace it")
    if marked:
        said = f"{counted(marked, 'ledger')} marked as under-replicated"
        yield Finding("watch", said, "`bk ledger repair --all` copies what is missing, if auto-recovery does not")
    unreadable = watcher.index.states().get(UNREADABLE, 0)
    if unreadable:
        yield Finding("bad", f"{counted(unreadable, 'ledger')} with metadata that cannot be understood", "`bk cluster doctor` names them")
