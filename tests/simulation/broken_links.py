"""Broken versions of methods of links and sessions, for the table in link_mutations.py."""

from __future__ import annotations

from typing import Any

from bk_core.net.link import BookieLink
from bk_core.protocol.ledger.read.unreachable import Unreachable
from bk_core.protocol.link import Attempts, FlowWindow, LinkHealth, Patience, Turns
from bk_core.protocol.session.suspicion import Suspicion

_on_io = BookieLink._on_io
_took = FlowWindow.took


def counts_from_sending(self: LinkHealth, one: Patience, now_ns: int, patience_ns: int | None = None) -> bool:
    return one.sent_ns is not None and now_ns - one.sent_ns >= one.timeout_ns


def late_only_in_silence(self: LinkHealth, one: Patience, now_ns: int, patience_ns: int | None = None) -> bool:
    return self.is_silent(one, now_ns, patience_ns)


def never_silent(self: LinkHealth, one: Patience, now_ns: int, patience_ns: int | None = None) -> bool:
    return False


def admits_everything(self: Any, size: int) -> bool:
    self._limited = True
    return True


def grows_by_what_was_alone(self: Any, sent_ns: int, now_ns: int, under_way: int | None = None) -> None:
    _took(self, sent_ns, now_ns, None)


def last_comes_first(self: Turns[Any]) -> Any:
    reader = self._order.pop()
    waiting = self._by_reader[reader]
    item = waiting.pop(0)[2]
    self.size -= 1
    if waiting:
        self._order.append(reader)
    else:
        del self._by_reader[reader]
    return item


def peeks_at_last(self: Turns[Any]) -> Any:
    return self._by_reader[self._order[-1]][0][2]


def behind_its_own(self: Turns[Any], reader: Any, entry_id: int, item: Any) -> None:
    """In the order of arrival."""
    waiting = self._by_reader.get(reader)
    if waiting is None:
        waiting = self._by_reader[reader] = []
        self._order.append(reader)
    self._number += 1
    self.size += 1
    waiting.append((entry_id, self._number, item))


def gives_up_at_once(self: BookieLink, one: Any, status: Any) -> bool:
    return False


def repeats_for_ever(self: BookieLink, one: Any, status: Any) -> bool:
    return not self._closed


def never_again(self: Unreachable, now_ns: int) -> int | None:
    return None


def all_for_the_first(self: Attempts, now_ns: int) -> int | None:
    if self.left <= 0 or now_ns >= self.deadline_ns:
        return None
    self.left -= 1
    return self.deadline_ns - now_ns


def lets_through(self: BookieLink, readable: bool, writable: bool) -> None:
    _on_io(self, readable, writable)


def hears_nothing(self: Suspicion, bookie: str, status: Any) -> None:
    """No answer ends a suspicion."""


def asks_nobody(self: Suspicion, now_ns: int, registered: Any) -> list[str]:
    return []


def suspects_nobody(self: Suspicion, bookie: str, kind: str, now_ns: int) -> None:
    """A broken connection means nothing."""


def stays_where_it_was(self: BookieLink, address: tuple[str, int]) -> None:
    """The registry is not listened to."""


# --- clocks ----------------------------------------------------------------------------------------------------------


def asks_its_host(client: Any, **_: Any) -> int:
    return int(client.host_ms())


def as_the_clock_says(now_ms: int, before_ms: int, after_ms: int | None = None) -> int:
    return now_ms
