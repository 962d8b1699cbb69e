"""Apache's ``underreplication`` subtree: marked ledgers, replication locks and the switch (metadata.md 1.4). Paths and text; no store.

    ledgers/hhhh/hhhh/hhhh/hhhh/urL%010d   a ledger to be repaired: which bookies are said to be missing, and since when
    locks/urL%010d                         ephemeral: somebody copies this ledger right now
    disable                                exists: Apache's auto-recovery is switched off
    auditorelection/V_%010d                ephemeral, sequential: a vote; the bookie of the first one is the auditor
    lostBookieRecoveryDelay                seconds that the auditor waits before it marks what a lost bookie had
    checkallledgersctime                   when the auditor last looked at all ledgers

A lock only keeps replicators and bookies' garbage collectors from each other's way; the guard of the metadata is compare-and-set.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from bk_core.errors import MetadataFormatError
from bk_core.protocol.ledger.metadata import BookieId

NAME = "underreplication"
LEDGERS, LOCKS, DISABLE = f"{NAME}/ledgers", f"{NAME}/locks", f"{NAME}/disable"
VOTES, DELAY = f"{NAME}/auditorelection", f"{NAME}/lostBookieRecoveryDelay"
CHECKED = f"{NAME}/checkallledgersctime"
VOTE = "V_"  # and ten digits
LEVELS = 4  # directories of four hexadecimal digits above a mark

_LEVEL = re.compile(r"[0-9a-f]{4}")
_LEAF = re.compile(r"urL([0-9]{10,19})")
_STRING = re.compile(r'^\s*(\w+)\s*:\s*"((?:[^"\\]|\\.)*)"\s*$', re.ASCII)
_NUMBER = re.compile(r"^\s*(\w+)\s*:\s*(-?[0-9]+)\s*$", re.ASCII)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True, slots=True)
class Mark:
    """A ledger marked as under-replicated. ``version`` is what deleting it must name."""

    ledger_id: int
    replicas: tuple[BookieId, ...]
    created_ms: int | None
    version: int


class ReplicationLock(Protocol):
    """A held lock; it also goes with the session that made it."""

    def is_held(self) -> bool:
        """True while this process holds the lock; a lost session loses it."""

    def release(self) -> None: ...


class Candidate(Protocol):
    """One who wants to be the auditor. The vote goes with the session that cast it, and is cast anew by the next question."""

    def is_elected(self) -> bool:
        """Return True while this candidate is the auditor of the cluster."""

    def withdraw(self) -> None: ...


class UnderreplicationStore(Protocol):
    """The part of a metadata store that replicators use. Errors as in bk_core/metadata/store.py."""

    def mark_of(self, ledger_id: int) -> Mark | None: ...

    def marked_ledgers(self) -> Iterator[int]:
        """Yield the ids of marked ledgers, ascending."""

    def mark(self, ledger_id: int, replicas: Iterable[BookieId], created_ms: int) -> None:
        """Ask replicators to repair a ledger. An existing mark gets the bookies it did not name, and keeps its time."""

    def unmark(self, mark: Mark) -> bool:
        """Remove the mark of a repaired ledger. Return False if somebody marked it again meanwhile; then the mark stays. It may stay also
        if the answer was lost, which returns False, too."""

    def lock(self, ledger_id: int, owner: str) -> ReplicationLock | None:
        """Return the lock, or None if somebody else holds it. ``owner`` is a name for people to read."""

    def lock_holder(self, ledger_id: int) -> str | None:
        """Return the name that the lock's holder gave itself, or None if there is none."""

    def is_disabled(self) -> bool:
        """Return True if the operator switched Apache's auto-recovery off."""

    def set_disabled(self, disabled: bool) -> bool:
        """Switch Apache's auto-recovery off or on, for the whole cluster. Return False if it was so already."""

    def auditor(self) -> str | None:
        """Return the name of the elected auditor, who marks ledgers; None if no auto-recovery runs."""

    def candidate(self, owner: str) -> Candidate:
        """Return a candidate for the auditor. Nothing is written before it is asked if it is elected. ``owner`` is a name for people to
        read."""

    def recovery_delay_s(self) -> int | None:
        """Return the seconds that an auditor waits for a lost bookie; None where nobody has set them, which is 0."""

    def set_recovery_delay(self, seconds: int) -> None:
        """Store the seconds that auditors wait for a lost bookie, Apache's and ours. 0 has them wait for none."""

    def checked_ms(self) -> int | None:
        """Return the time at which an auditor last looked at all ledgers, in milliseconds since 1970; None if none ever did."""

    def note_checked(self, now_ms: int) -> None:
        """Store that an auditor has looked at all ledgers."""


# --- paths and text -----------------------------------------------------------------------------------------------------


def leaf(ledger_id: int) -> str:
    return f"urL{ledger_id:010d}"


def mark_path(ledger_id: int) -> str:
    """Return the path below the ledgers root, without a leading slash: directories in hexadecimal, the leaf in decimal."""
    digits = f"{ledger_id & (1 << 64) - 1:016x}"
    return "/".join((LEDGERS, *(digits[at : at + 4] for at in range(0, 16, 4)), leaf(ledger_id)))


def lock_path(ledger_id: int) -> str:
    return f"{LOCKS}/{leaf(ledger_id)}"


def ledger_of_leaf(name: str) -> int | None:
    match = _LEAF.fullmatch(name)
    return int(match[1]) if match else None


def is_level(name: str) -> bool:
    return _LEVEL.fullmatch(name) is not None


def encode_mark(replicas: Iterable[BookieId], created_ms: int | None) -> bytes:
    """Return an UnderreplicatedLedgerFormat in protobuf's text format."""
    lines = [f'replica: "{_escaped(bookie)}"\n' for bookie in replicas]
    if created_ms is not None:
        lines.append(f"ctime: {created_ms}\n")
    return "".join(lines).encode()


def decode_mark(data: bytes, ledger_id: int, version: int) -> Mark:
    """Return the mark. Raises MetadataFormatError for text of another kind."""
    replicas: list[BookieId] = []
    created_ms: int | None = None
    for line in data.decode("utf-8", "replace").splitlines():
        if not line.strip():
            continue
        text, number = _STRING.match(line), _NUMBER.match(line)
        if text and text[1] == "replica":
            replicas.append(_unescaped(text[2]))
        elif number and number[1] == "ctime":
            created_ms = int(number[2])
        elif not text and not number:
            raise MetadataFormatError(f"the mark of ledger {ledger_id} is no list of replicas", ledger=ledger_id)
    return Mark(ledger_id, tuple(replicas), created_ms, version)


def encode_lock(owner: str) -> bytes:
    """Return a LockDataFormat in protobuf's text format."""
    return f'bookieId: "{_escaped(owner)}"\n'.encode()


def decode_lock(data: bytes) -> str:
    """Return the name of a lock's holder, or of a vote's bookie, or any other text as it is, because it is only shown."""
    text = data.decode("utf-8", "replace").strip()
    match = _STRING.match(text)
    return _unescaped(match[2]) if match and match[1] == "bookieId" else text


def vote_number(name: str) -> int | None:
    """Return the number of a vote, by which votes are ordered; None for another name."""
    digits = name.removeprefix(VOTE)
    return int(digits) if digits != name and digits.isascii() and digits.isdigit() else None


def encode_time(ms: int) -> bytes:
    """Return a message of protobuf with the one field 1, int64, in binary format."""
    data, rest = bytearray(b"\x08"), ms
    while rest >= 0x80:
        data.append(rest & 0x7F | 0x80)
        rest >>= 7
    data.append(rest)
    return bytes(data)


def decode_time(data: bytes) -> int | None:
    """Return what ``encode_time`` was given; None for other bytes, because no decision hangs on them but when to look next."""
    if not 2 <= len(data) <= 10 or data[0] != 0x08 or data[-1] >= 0x80:
        return None
    return sum((byte & 0x7F) << 7 * at for at, byte in enumerate(data[1:]))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text)


def merged(known: Iterable[BookieId], more: Iterable[BookieId]) -> tuple[BookieId, ...]:
    return tuple(dict.fromkeys((*known, *more)))


# --- in memory ----------------------------------------------------------------------------------------------------------


class MemoryUnderreplication:
    """UnderreplicationStore in this process. Everything that shares one ``MemoryUnderreplicationState`` sees the same marks and locks."""

    def __init__(self, state: MemoryUnderreplicationState) -> None:
        self._state = state
        self._mine: set[int] = set()
        self._votes: list[_MemoryCandidate] = []

    def mark_of(self, ledger_id: int) -> Mark | None:
        with self._state.guard:
            return self._state.marks.get(ledger_id)

    def marked_ledgers(self) -> Iterator[int]:
        with self._state.guard:
            return iter(sorted(self._state.marks))

    def mark(self, ledger_id: int, replicas: Iterable[BookieId], created_ms: int) -> None:
        with self._state.guard:
            old = self._state.marks.get(ledger_id)
            if old is None:
                self._state.marks[ledger_id] = Mark(ledger_id, merged((), replicas), created_ms, 0)
            else:
                since_ms = old.created_ms or created_ms
                self._state.marks[ledger_id] = Mark(ledger_id, merged(old.replicas, replicas), since_ms, old.version + 1)

    def unmark(self, mark: Mark) -> bool:
        with self._state.guard:
            stored = self._state.marks.get(mark.ledger_id)
            if stored is not None and stored.version != mark.version:
                return False
            self._state.marks.pop(mark.ledger_id, None)
            return True

    def lock(self, ledger_id: int, owner: str) -> ReplicationLock | None:
        with self._state.guard:
            if ledger_id in self._state.locks:
                return None
            self._state.locks[ledger_id] = owner
            self._mine.add(ledger_id)
        return _MemoryLock(self, ledger_id)

    def lock_holder(self, ledger_id: int) -> str | None:
        with self._state.guard:
            return self._state.locks.get(ledger_id)

    def is_disabled(self) -> bool:
        return self._state.disabled

    def set_disabled(self, disabled: bool) -> bool:
        with self._state.guard:
            changed, self._state.disabled = self._state.disabled != disabled, disabled
        return changed

    def auditor(self) -> str | None:
        with self._state.guard:
            return self._state.votes[0].owner if self._state.votes else None

    def candidate(self, owner: str) -> Candidate:
        return _MemoryCandidate(self, owner)

    def stands_first(self, candidate: _MemoryCandidate) -> bool:
        with self._state.guard:
            if candidate not in self._state.votes:
                self._state.votes.append(candidate)
                self._votes.append(candidate)
            return self._state.votes[0] is candidate

    def withdraw(self, candidate: _MemoryCandidate) -> None:
        with self._state.guard:
            if candidate in self._state.votes:
                self._state.votes.remove(candidate)

    def recovery_delay_s(self) -> int | None:
        return self._state.recovery_delay_s

    def set_recovery_delay(self, seconds: int) -> None:
        self._state.recovery_delay_s = seconds

    def checked_ms(self) -> int | None:
        return self._state.checked_ms

    def note_checked(self, now_ms: int) -> None:
        self._state.checked_ms = now_ms

    def holds(self, ledger_id: int) -> bool:
        return ledger_id in self._mine

    def release(self, ledger_id: int) -> None:
        with self._state.guard:
            if ledger_id in self._mine:
                self._mine.remove(ledger_id)
                del self._state.locks[ledger_id]

    def release_all(self) -> None:
        """Release everything that belongs to one session, as the end of that session does."""
        for ledger_id in sorted(self._mine):
            self.release(ledger_id)
        for candidate in self._votes:
            self.withdraw(candidate)


class MemoryUnderreplicationState:
    __slots__ = ("checked_ms", "disabled", "guard", "locks", "marks", "recovery_delay_s", "votes")

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.marks: dict[int, Mark] = {}
        self.locks: dict[int, str] = {}
        self.disabled = False
        self.votes: list[_MemoryCandidate] = []
        self.checked_ms: int | None = None
        self.recovery_delay_s: int | None = None


class _MemoryCandidate:
    def __init__(self, store: MemoryUnderreplication, owner: str) -> None:
        self._store, self.owner = store, owner

    def is_elected(self) -> bool:
        return self._store.stands_first(self)

    def withdraw(self) -> None:
        self._store.withdraw(self)


class _MemoryLock:
    def __init__(self, owner: MemoryUnderreplication, ledger_id: int) -> None:
        self._owner, self._ledger_id = owner, ledger_id

    def is_held(self) -> bool:
        return self._owner.holds(self._ledger_id)

    def release(self) -> None:
        self._owner.release(self._ledger_id)
