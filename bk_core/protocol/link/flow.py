"""Bounds the bytes of answers that one connection has under way (LINK-5).

The window is as much as comes within ``HOLD_NS``. A fast link thus has many large answers under way and a slow one a few small ones, so
that nobody waits long behind them and little is lost with a connection. The rate follows from elapsed times: an answer takes as long as
everything that was asked for before it. Bytes that were not under way tell nothing, so a small answer that came alone does not enlarge the
window. The window doubles at most once in a round; a round ends when a request is answered that was sent after the last change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

HOLD_NS = 1_000_000_000
FIRST_WINDOW_BYTES = 256 << 10
WINDOW_BYTES_MAX = 64 << 20
PIECE_BYTES_MIN = 64 << 10  # a batch read asks for no less
PIECES = 4  # pieces of a window: one is made, one is on its way, one is used, and one is to spare
ENTRY_BYTES_UNKNOWN = 16 << 10
LEDGERS_MAX = 1024


@dataclass(slots=True)
class FlowWindow:
    """``window`` bytes may be under way, and ``in_flight`` bytes are."""

    window: int = FIRST_WINDOW_BYTES
    in_flight: int = 0
    _round_ns: int = 0  # answers to requests sent before this tell nothing about the current window
    _least_ns: int | None = None
    _limited: bool = False  # something had to wait in this round

    def connected(self) -> None:
        """Start over for a new connection. It may take another path, and nothing of the old one will come."""
        self.window, self.in_flight = FIRST_WINDOW_BYTES, 0
        self._round_ns, self._least_ns, self._limited = 0, None, False

    def admits(self, size: int) -> bool:
        """Return True if ``size`` bytes may be asked for. A single answer is always admitted, because one large entry would block for ever
        otherwise."""
        admitted = self.in_flight == 0 or self.in_flight + size <= self.window
        self._limited = self._limited or not admitted
        return admitted

    def piece(self, wanted: int, waiting: int) -> int:
        """Return the part of ``wanted`` bytes to ask for at once, while so many readers wait for their turn."""
        size = max(PIECE_BYTES_MIN, self.window // max(PIECES, waiting))
        self._limited = self._limited or size < wanted
        return min(wanted, size)

    def sent(self, size: int) -> None:
        self.in_flight += size

    def released(self, size: int) -> None:
        """Release the bytes of a request that was answered or will not be."""
        self.in_flight = max(0, self.in_flight - size)

    def took(self, sent_ns: int, now_ns: int, under_way: int | None = None) -> None:
        """Learn from a complete answer that was asked for at ``sent_ns``, when ``under_way`` bytes were under way (by default the whole
        window)."""
        took_ns = max(1, now_ns - sent_ns)
        self._least_ns = took_ns if self._least_ns is None else min(self._least_ns, took_ns)
        if sent_ns < self._round_ns:
            return
        aim_ns = self._least_ns + HOLD_NS
        if took_ns > 2 * aim_ns:
            self.window = max(PIECE_BYTES_MIN, self.window // 4, self.window * aim_ns // took_ns)
        elif self._limited and took_ns < aim_ns:
            came = self.window if under_way is None else under_way
            self.window = min(WINDOW_BYTES_MAX, 2 * self.window, max(self.window, came * aim_ns // took_ns))
        else:
            return
        self._round_ns, self._limited = now_ns, False


@dataclass(slots=True)
class EntrySizes:
    """The size of a ledger's entries, learned from answers. For a ledger that was never read it is a guess that lets a few be asked for."""

    _sizes: dict[int, int] = field(default_factory=dict)

    def of(self, ledger_id: int) -> int:
        return self._sizes.get(ledger_id, ENTRY_BYTES_UNKNOWN)

    def told(self, ledger_id: int, size: int, entries: int) -> None:
        if entries <= 0:
            return
        known = self._sizes.get(ledger_id)
        if known is None and len(self._sizes) >= LEDGERS_MAX:
            del self._sizes[next(iter(self._sizes))]
        one = max(1, size // entries)
        self._sizes[ledger_id] = one if known is None else max(1, (known + one) // 2)
