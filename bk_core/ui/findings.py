"""Finds what an operator should look at, in what the watcher knows anyway. The page of the doctor looks deeper, when somebody asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from shlex import quote

from bk_core.client.doctor import findings as doctor
from bk_core.display.ledgers import DOWN, UNREADABLE, bookie_states
from bk_core.display.words import counted
from bk_core.ui.watching import Watcher

NAMED = 5  # bookies or ledgers, of each kind
SPARE = 1  # a bookie more than the usual ensemble of three, so that a writer can replace one


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to look at, and what to do. ``code`` is the doctor's, with the doctor's severity; "" for what the doctor does not know.
    ``ledgers`` are the first of those that it is about, ``count`` is the number of all."""

    severity: doctor.Severity
    said: str
    advice: str
    code: str = ""
    ledgers: tuple[int, ...] = ()
    count: int = 1


def _of(code: str, said: str, advice: str, ledgers: tuple[int, ...] = (), count: int = 1) -> Finding:
    return Finding(doctor.CODES[code][0], said, advice, code, ledgers, count)


def findings(watcher: Watcher, judged: Iterable[doctor.Finding] = ()) -> Iterator[Finding]:
    """Yield what is wrong, or soon may be, by what was seen last. ``judged`` are findings of the doctor."""
    sight = watcher.sight
    if sight is None:
        return
    lost = watcher.index.without_copy({*sight.bookies.writable, *sight.bookies.readonly})
    if lost:
        said = f"{counted(len(lost), 'ledger')} with entries of which no running bookie has a copy"
        advice = "bring back a bookie that has them, with its data; nothing else can restore them"
        yield _of("no-live-copy", said, advice, tuple(lost[:NAMED]), len(lost))
    states = bookie_states(sight.bookies.writable, sight.bookies.readonly, sight.cookies)
    down = [bookie for bookie, state in states.items() if state == DOWN]
    if down:
        named = ", ".join(down[:NAMED]) + (", ..." if len(down) > NAMED else "")
        said = f"{counted(len(down), 'bookie')} {'is' if len(down) == 1 else 'are'} down: {named}"
        each = "" if len(down) == 1 else ", and so each of them"
        gone = f"if it is gone for good, `bk bookie decommission {quote(down[0])} --delete-cookie`{each}"
        yield _of("bookie-down", said, f"start it again with its data; {gone}")
    if sight.bookies.readonly:
        said = f"{counted(len(sight.bookies.readonly), 'bookie')} read-only: {', '.join(sight.bookies.readonly[:NAMED])}"
        yield _of("bookie-read-only", said, "look at its disks: trim logs, or add room")
    writable = len(sight.bookies.writable)
    if writable < 3:
        said = f"only {counted(writable, 'bookie')} can be written to"
        yield _of("bookies-too-few", said, "ledgers of three bookies (the default) cannot be made")
    elif writable < 3 + SPARE and len(sight.cookies) > 3:
        yield Finding("warning", "no spare bookie can be written to", "a writer of three bookies that loses one has none to replace it")
    for one in judged:
        advice = f"{one.advice}: `{one.command}`" if one.command else one.advice
        yield Finding(one.severity, one.what, advice, one.code, one.ledgers[:NAMED], one.count)
    unreadable = watcher.index.states().get(UNREADABLE, 0)
    if unreadable:
        said = f"{counted(unreadable, 'ledger')} with metadata that cannot be understood"
        yield _of("ledger-unreadable", said, "`bk cluster doctor` names them")
