"""Verifies a log: every copy of every entry that it lists, on every bookie, with its digest. It neither fences nor writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from bk_core.arguments import POSITIVE, SECRET, checked
from bk_core.client.log.check import LogCheck, check_log
from bk_core.client.log.history import read_log
from bk_core.client.log.list_store import LogClient
from bk_core.client.xray import XrayProblem
from bk_core.display.words import counted
from bk_core.errors import BkError, MetadataFormatError, NoSuchLedgerError
from bk_core.protocol.log.history import Item
from bk_core.protocol.log.segments import HistoryRef, Segment
from bk_core.protocol.log.view import LogView

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper
    from bk_core.client.repair.report import OnProgress

DAMAGES_MAX = 10_000
"""The number of damages that are kept. Further ones are only counted."""


@dataclass(frozen=True, slots=True)
class LogDamage:
    """Copies of listed entries that are in need of repair. ``first_seq`` and ``last_seq`` are the segments that were read together, None
    for a ledger of the history."""

    ledger_id: int
    first_seq: int | None
    last_seq: int | None
    problem: XrayProblem


@dataclass(frozen=True, slots=True, repr=False)
class LogVerification:
    """The result of a verification. ``check`` is what ``check_log`` says of the list; ``copies`` and ``bytes_read`` count what was read.

    ``damages`` are at most DAMAGES_MAX stretches of copies; ``damaged`` counts the copies of all. ``unknown`` counts those on bookies that
    do not admit this client, which ``damages`` have too: nothing is known of them (RR-19).
    """

    log: str
    check: LogCheck
    ledgers: int
    copies: int
    bytes_read: int
    damaged: int
    damages: tuple[LogDamage, ...]
    unknown: int = 0

    def __repr__(self) -> str:
        told = f"{counted(self.copies, 'copy', 'copies')}, {self.damaged:,} in need of repair"
        told += f", {self.unknown:,} unknown" if self.unknown else ""
        told += f", {counted(len(self.check.problems), 'problem')} of the list"
        return f"<LogVerification {self.log}: {told}>"

    def _repr_html_(self) -> str:
        """Return the tables that a notebook shows."""
        from bk_core.display import logs, table, xray

        damages = [xray.damages(self.damages)] if self.damages else []
        return table.html(*logs.check(self.check), *damages, xray.verified(self))

    @property
    def is_good(self) -> bool:
        """True if the list has no problem, no copy is in need of repair and none is unknown."""
        return self.check.is_good and not self.damaged and not self.unknown


@checked(password=SECRET, bytes_per_second=POSITIVE)
def verify_log(
    client: LogClient,
    name: str,
    *,
    password: bytes = b"",
    bytes_per_second: int | None = None,
    on_progress: OnProgress | None = None,
) -> LogVerification:
    """Check the list of a log, then read every copy of every entry that it lists, history included, and check its digest.

    ``bytes_per_second`` bounds how fast copies are read. ``on_progress`` is called with a ``Progress`` of the ledger at hand. Raises
    NoSuchLogError, WrongClusterError, and OperationTimeoutError when nothing moves any more.
    """
    checked_list = check_log(client, name, password=password)
    view = read_log(client, name)
    damages: list[LogDamage] = []
    ledgers, copies, size, damaged, unknown = set(), 0, 0, 0, 0
    for ledger_id, first, last, seqs in _spans(view):
        try:
            found = cast("BookKeeper", client).xray(
                ledger_id, first=first, last=last, full=True, password=password, bytes_per_second=bytes_per_second, on_progress=on_progress
            )
        except NoSuchLedgerError:  # trimmed meanwhile, or told by the check
            continue
        except MetadataFormatError:
            if not any(one.ledger_id == ledger_id for one in checked_list.problems):
                raise
            continue
        ledgers.add(ledger_id)
        copies, size = copies + found.copies, size + found.bytes_read
        unknown, damaged = unknown + found.unknown, damaged - found.unknown
        for problem in found.problems:
            damaged += problem.stretch.count
            if len(damages) < DAMAGES_MAX:
                damages.append(LogDamage(ledger_id, *seqs, problem))
    return LogVerification(name, checked_list, len(ledgers), copies, size, damaged, tuple(damages), unknown)


def _spans(view: LogView) -> Iterator[tuple[int, int, int | None, tuple[int | None, int | None]]]:
    """Yield ledger, first and last entry (None: its end) and segments of what is listed. Neighbours in one ledger are one span."""
    open_span: tuple[int, int, int | None, tuple[int, int]] | None = None
    for item in _items(view, view.listed.items):
        if isinstance(item, HistoryRef):
            yield item.ledger_id, 0, None, (None, None)
            continue
        if not item.live and not item.entries:
            continue
        if open_span is not None and item.ledger_id == open_span[0] and open_span[2] == item.first_entry_id - 1:
            open_span = (open_span[0], open_span[1], item.last_entry_id, (open_span[3][0], item.seq))
            continue
        if open_span is not None:
            yield open_span
        open_span = (item.ledger_id, item.first_entry_id, item.last_entry_id, (item.seq, item.seq))
    if open_span is not None:
        yield open_span


def _items(view: LogView, items: Iterable[Item]) -> Iterator[Segment | HistoryRef]:
    """Yield every chunk of the history that can be read, and the segments in it; those that cannot are told by the check of the list."""
    for item in items:
        if item.after_seq <= view.listed.trimmed_seq:
            continue
        yield item
        if isinstance(item, HistoryRef):
            try:
                below = view.load(item)
            except BkError:
                continue
            yield from _items(view, below)
