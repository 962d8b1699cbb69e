"""Reads some entries of a ledger, and what each bookie of their write sets has of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bk_core.client.inspect import EntryHeader, entry_headers
from bk_core.display.words import counted, preview, safe
from bk_core.errors import BkError
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.protocol.wire.messages import Status

if TYPE_CHECKING:
    from bk_core.client import BookKeeper
    from bk_core.client.ledger.read_handle import ReadHandle

WINDOW = 20  # entries that are shown at once
WINDOW_OF_LARGE = 4  # where entries are larger than LARGE bytes, so that looking at them takes little memory
LARGE = 200_000
LINE_MAX = 120  # characters of a payload in a list
ODD_SHARE = 5  # a payload of which one character in so many is no text is shown as bytes
HEAD_MAX = 4096  # bytes of one payload that are kept


@dataclass(frozen=True, slots=True)
class SeenEntry:
    """An entry: the size of its payload, and its beginning; ``problem`` says why it could not be read."""

    entry_id: int
    size: int = 0
    head: bytes = b""
    problem: str | None = None

    @property
    def shown(self) -> str:
        """The beginning of the payload in one line: text with its control characters spelled out, bytes in hexadecimal."""
        return self.problem or _line(self.head, self.size)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some entries of a ledger that ends at ``end`` now (-1 if nothing is confirmed), beginning with ``first``."""

    first: int
    end: int
    entries: tuple[SeenEntry, ...]


@dataclass(frozen=True, slots=True)
class Replica:
    """The copy of an entry that a bookie has, or has not. ``state`` is ok, missing, corrupt or silent."""

    bookie: str
    state: str
    told: str


def _line(head: bytes, size: int) -> str:
    words = head.decode("utf-8", "replace")[:LINE_MAX]  # the last character of a head may be cut
    odd = sum(not letter.isprintable() or letter == "\ufffd" for letter in words)
    if not words or odd * ODD_SHARE > len(words):
        return preview(head)
    return safe(words, kept="") + (" ..." if size > len(words.encode()) else "")


def window_of(metadata: LedgerMetadata) -> int:
    """Return how many entries are looked at together."""
    if metadata.state is LedgerState.CLOSED and metadata.last_entry_id >= 0:
        return WINDOW_OF_LARGE if metadata.length / (metadata.last_entry_id + 1) > LARGE else WINDOW
    return WINDOW


def read_stretch(client: BookKeeper, ledger_id: int, password: bytes, first: int | None, count: int) -> Stretch:
    """Read up to ``count`` entries from ``first`` on, without it the last ones of a ledger that is not closed, else the first ones. Nothing
    is fenced. Behind an entry that cannot be read, only those are read of which a bookie has a good copy at hand: each of the others would
    take as long as the first one.

    Raises NoSuchLedgerError, WrongPasswordError, and what ``open_ledger`` raises where the bookies do not say where an open ledger ends."""
    with client.open_ledger(ledger_id, password=password) as handle:
        end = handle.last_add_confirmed
        if first is None:
            first = 0 if handle.is_closed else max(0, end - count + 1)
        entries: list[SeenEntry] = []
        lacking: dict[int, str] | None = None
        for entry_id in range(first, min(first + count - 1, end) + 1):
            if lacking and entry_id in lacking:
                entries.append(SeenEntry(entry_id, problem=lacking[entry_id]))
                continue
            entries.append(_seen(handle, entry_id))
            if lacking is None and entries[-1].problem is not None:
                lacking = _lacking(client, ledger_id, handle.metadata, range(entry_id + 1, min(first + count - 1, end) + 1))
        return Stretch(first, end, tuple(entries))


def _seen(handle: ReadHandle, entry_id: int) -> SeenEntry:
    try:
        payload = b"".join(bytes(run.values) for run in handle.read_runs(entry_id, entry_id))
    except BkError as error:
        return SeenEntry(entry_id, problem=str(error))
    return SeenEntry(entry_id, len(payload), payload[:HEAD_MAX])


def _lacking(client: BookKeeper, ledger_id: int, metadata: LedgerMetadata, entry_ids: range) -> dict[int, str]:
    """Return the entries of which no bookie shows a good copy, each with what its bookies say."""
    found = replicas_of(client, ledger_id, metadata, entry_ids.start, entry_ids.stop - 1)
    told = {one: ", ".join(f"{replica.bookie} {replica.told}" for replica in replicas) for one, replicas in found.items()}
    return {one: f"no good copy now: {told[one]}" for one, replicas in found.items() if all(copy.state != "ok" for copy in replicas)}


def replicas_of(client: BookKeeper, ledger_id: int, metadata: LedgerMetadata, first: int, last: int) -> dict[int, tuple[Replica, ...]]:
    """Return what each bookie of the write set has of the entries ``first`` to ``last``."""
    found: dict[int, list[Replica]] = {entry_id: [] for entry_id in range(first, last + 1)}
    for header in entry_headers(client, ledger_id, metadata, range(first, last + 1)):
        found[header.entry_id].append(_replica(header))
    return {entry_id: tuple(replicas) for entry_id, replicas in found.items()}


def _replica(header: EntryHeader) -> Replica:
    if header.status is Status.OK:
        if header.digest_ok:
            return Replica(header.bookie, "ok", f"{counted(header.payload_bytes or 0, 'byte')}, LAC {header.last_add_confirmed}")
        return Replica(header.bookie, "corrupt", "its digest or ids do not match")
    if header.status in (Status.NO_ENTRY, Status.NO_LEDGER):
        return Replica(header.bookie, "missing", header.status.name.lower().replace("_", " "))
    return Replica(header.bookie, "silent", header.status.name.lower().replace("_", " "))
