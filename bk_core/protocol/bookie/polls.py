"""The long polls that wait (wire-protocol.md 8.7), by tag, ledger and deadline."""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable
from dataclasses import dataclass

from bk_core.protocol.wire.messages import ReadRequest

_STALE_MAX = 64


@dataclass(slots=True)
class Poll:
    tag: Hashable
    request: ReadRequest
    deadline_ms: int


class PollTable:
    """Waiting polls by tag, by ledger and by deadline. An ended poll is forgotten at once, but its place among the deadlines is removed
    later."""

    def __init__(self) -> None:
        self._by_tag: dict[Hashable, Poll] = {}
        self._by_ledger: dict[int, list[Hashable]] = {}
        self._deadlines: list[Poll] = []  # latest first; it holds ended polls until they come up or become too many

    def __len__(self) -> int:
        return len(self._by_tag)

    def add(self, poll: Poll) -> None:
        self._by_tag[poll.tag] = poll
        self._by_ledger.setdefault(poll.request.ledger_id, []).append(poll.tag)
        insort(self._deadlines, poll, key=_latest_first)

    def get(self, tag: Hashable) -> Poll | None:
        return self._by_tag.get(tag)

    def waits_for(self, ledger_id: int) -> bool:
        return ledger_id in self._by_ledger

    def of_ledger(self, ledger_id: int) -> list[Poll]:
        """Return the polls of a ledger in the order in which they came."""
        return [self._by_tag[tag] for tag in self._by_ledger.get(ledger_id, ())]

    def forget(self, poll: Poll) -> None:
        """Forget ``poll``, which waits no longer."""
        del self._by_tag[poll.tag]
        tags = self._by_ledger[poll.request.ledger_id]
        tags.remove(poll.tag)
        if not tags:
            del self._by_ledger[poll.request.ledger_id]
        if len(self._deadlines) > 2 * len(self._by_tag) + _STALE_MAX:
            self._deadlines = sorted(self._by_tag.values(), key=_latest_first)

    def next_deadline_ms(self) -> int | None:
        while self._deadlines and not self._waits(self._deadlines[-1]):
            self._deadlines.pop()
        return self._deadlines[-1].deadline_ms if self._deadlines else None

    def next_due(self, now_ms: int) -> Poll | None:
        """Return a poll whose time is over; the caller must ``forget`` it."""
        deadline_ms = self.next_deadline_ms()
        return self._deadlines[-1] if deadline_ms is not None and deadline_ms <= now_ms else None

    def _waits(self, poll: Poll) -> bool:
        return self._by_tag.get(poll.tag) is poll


def _latest_first(poll: Poll) -> int:
    return -poll.deadline_ms
