"""Exports ledgers to files of entries, imports them, and copies them from ledger to ledger, byte for byte.

A new ledger is read again and compared before anybody is told its id. If anything fails it is deleted; a process that dies leaves it
OPEN. It carries ``purpose=import`` in its custom metadata, also when it is done (META-7): one that is OPEN too was left by such a process.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bk_core.arguments import check_reached
from bk_core.client.log.live_writers import WRITER
from bk_core.client.operations import wait
from bk_core.client.repair.report import OnProgress, Progress
from bk_core.client.transfer.entry_file import Entries, EntryFile, EntryWriter, entries_of
from bk_core.client.transfer.new_file import check_ending, check_free, new_file, old_file
from bk_core.errors import BkError, CopyMismatchError, ExportFormatError
from bk_core.protocol.ledger.metadata import GWQ_MARK, GWQ_SEAL, DigestName, DigestType, LedgerMetadata
from bk_core.protocol.log.identity import LOG_ID_KEY, LOG_KEY, LOG_ROOT_KEY

if TYPE_CHECKING:
    from bk_core.client import BookKeeper, ReadHandle

IN_FLIGHT_BYTES = 32 << 20
PURPOSE = "import"
OWN_MARKS = frozenset({LOG_KEY, LOG_ID_KEY, LOG_ROOT_KEY, WRITER, GWQ_MARK, GWQ_SEAL, "epoch"})
"""Names of custom metadata that say whose a ledger is. A copy is nobody's, so it never gets them."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The result of an export, an import or a copy: how many entries, their payload bytes, and how long it took. ``ledger_id`` is the
    source of an export, and else the new ledger. ``closed`` is False if the source may go on after the last entry. ``path`` is the file,
    None for a copy."""

    ledger_id: int
    entries: int
    bytes: int
    seconds: float
    closed: bool = True
    path: str | None = None


@dataclass(frozen=True, slots=True)
class NewLedger:
    """The settings of a new ledger; None is that of its source. ``keep_custom`` gives it the source's custom metadata, without what says
    whose the source is."""

    ensemble_size: int | None = None
    write_quorum_size: int | None = None
    ack_quorum_size: int | None = None
    digest_type: str | None = None
    password: bytes = field(default=b"", repr=False)
    keep_custom: bool = False


class Fingerprint:
    """Tells if two sequences of entries are the same, however they are cut into runs."""

    def __init__(self) -> None:
        self.entries = self.bytes = 0
        self._values, self._sizes = hashlib.blake2b(), hashlib.blake2b()

    def add(self, run: Entries) -> None:
        self.entries += run.count
        self.bytes += run.offsets[-1]
        self._values.update(run.values)
        self._sizes.update(run.sizes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fingerprint) and self._told == other._told

    __hash__ = None  # type: ignore[assignment]

    @property
    def _told(self) -> tuple[bytes, bytes]:
        return self._values.digest(), self._sizes.digest()


def header_of(ledger_id: int, metadata: LedgerMetadata, first: int, last: int) -> dict[str, Any]:
    """Return the header of a file of this ledger's entries. The password is in none."""
    return {
        "what": "ledger",
        "ledger": ledger_id,
        "state": metadata.state.name,
        "firstEntryId": first,
        "lastEntryId": last,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum_size,
        "ackQuorumSize": metadata.ack_quorum_size,
        "digestType": metadata.digest_type.name,
        "custom": {key: base64.b64encode(value).decode() for key, value in sorted(metadata.custom.items())},
    }


def export_ledger(
    client: BookKeeper,
    ledger_id: int,
    path: Path,
    *,
    first: int = 0,
    last: int | None = None,
    password: bytes = b"",
    digest_type: DigestName | None = None,
    on_progress: OnProgress | None = None,
) -> Transfer:
    """Write the entries ``first`` to ``last`` of a ledger into a new file; without ``last`` up to the last add confirmed.

    Raises InvalidArgumentError for a ``first`` beyond the end, ExportFileError for a path that exists or cannot be written,
    ExportFormatError for a name of another format, and what opening and reading a ledger raises. No file is left then.
    """
    began = time.monotonic()
    check_ending(path, "entries of a ledger go into a file of their own form, for which any other name does")
    check_free(path)
    with client.open_ledger(ledger_id, password=password, digest_type=digest_type) as handle:
        check_reached(ledger_id, first, handle.last_add_confirmed)
        end = handle.last_add_confirmed if last is None else min(last, handle.last_add_confirmed)
        with new_file(path) as target:
            writer = EntryWriter(target, header_of(ledger_id, handle.metadata, first, end))
            for run in source_runs(handle, first, end):
                writer.write(run)
                _say(on_progress, ledger_id, "export", writer.entries, end - first + 1, writer.bytes)
            writer.finish()
        return Transfer(ledger_id, writer.entries, writer.bytes, time.monotonic() - began, handle.is_closed, str(path))


def import_ledger(client: BookKeeper, path: Path, settings: NewLedger, *, on_progress: OnProgress | None = None) -> Transfer:
    """Make a ledger of the entries in a file, and read it again to see that they are the same. Its entries are numbered from 0 on.

    Raises ExportFileError and ExportFormatError for a file that cannot be read, is damaged or cut off; CopyMismatchError if what was read
    again differs; and what creating, appending and reading raises. The new ledger is deleted then.
    """
    with old_file(path) as source:
        file = EntryFile(source, str(path))
        if file.header.get("what") != "ledger":
            raise ExportFormatError(f"{path} holds the entries of a log: `bk log import` takes it", path=str(path))
        total, custom = _stated(file)
        done = _written(client, file.runs(), file.header, custom, f"file {path.name}", settings, total, on_progress)
        return replace(done, path=str(path))


def _stated(file: EntryFile) -> tuple[int, dict[str, bytes]]:
    """Return the number of entries and the custom metadata that the header of a ledger's file states. Raises ExportFormatError."""
    header = file.header
    numbers = [header.get(f"{name}Size") for name in ("ensemble", "writeQuorum", "ackQuorum")]
    numbers += [header.get(f"{name}EntryId") for name in ("first", "last")]
    custom: Any = header.get("custom")
    if not all(isinstance(one, int) for one in numbers) or header.get("digestType") not in DigestType.__members__:
        raise file.wrong("lacks sizes, ids or the digest type of its ledger in its header")
    try:
        found = {key: base64.b64decode(value, validate=True) for key, value in dict(custom).items()}
    except (TypeError, ValueError):
        raise file.wrong("has custom metadata in its header that is none") from None
    return max(0, header["lastEntryId"] - header["firstEntryId"] + 1), found


def copy_ledger(
    client: BookKeeper,
    ledger_id: int,
    settings: NewLedger,
    *,
    to: BookKeeper | None = None,
    first: int = 0,
    last: int | None = None,
    password: bytes = b"",
    digest_type: DigestName | None = None,
    on_progress: OnProgress | None = None,
) -> Transfer:
    """Copy entries of a ledger into a new one, of another cluster if ``to`` is its client. It is verified, and fails, as an import does.

    Raises InvalidArgumentError for a ``first`` beyond the end, and what opening and reading the ledger raises.
    """
    with client.open_ledger(ledger_id, password=password, digest_type=digest_type) as handle:
        check_reached(ledger_id, first, handle.last_add_confirmed)
        end = handle.last_add_confirmed if last is None else min(last, handle.last_add_confirmed)
        header, custom = header_of(ledger_id, handle.metadata, first, end), handle.metadata.custom
        runs = source_runs(handle, first, end)
        return _written(to or client, runs, header, custom, f"ledger {ledger_id}", settings, max(0, end - first + 1), on_progress)


def source_runs(handle: ReadHandle, first: int, last: int, *, unchecked_bound: bool = False) -> Iterator[Entries]:
    """Yield the entries ``first`` to ``last`` of a ledger."""
    for run in handle.read_runs(first, last, unchecked_bound=unchecked_bound) if last >= first else ():
        yield entries_of(run.first_entry_id, run.values, run.offsets)


def _written(
    client: BookKeeper,
    runs: Iterable[Entries],
    header: Mapping[str, Any],
    custom: Mapping[str, bytes],
    source: str,
    settings: NewLedger,
    total: int,
    on_progress: OnProgress | None,
) -> Transfer:
    began = time.monotonic()
    kept = {key: value for key, value in custom.items() if settings.keep_custom and key not in OWN_MARKS}
    handle = client.create_ledger(
        ensemble_size=settings.ensemble_size or int(header["ensembleSize"]),
        write_quorum_size=settings.write_quorum_size or int(header["writeQuorumSize"]),
        ack_quorum_size=settings.ack_quorum_size or int(header["ackQuorumSize"]),
        digest_type=DigestType[settings.digest_type or str(header["digestType"])],
        password=settings.password,
        custom={"application": b"bk", "purpose": PURPOSE.encode(), "source": source.encode(), **kept},
    )
    try:
        sent = Fingerprint()
        for run in _appended(client, handle, runs):
            sent.add(run)
            _say(on_progress, handle.ledger_id, "import", sent.entries, total, sent.bytes)
        handle.close()
        verify(client, handle.ledger_id, settings.password, sent, on_progress)
    except BaseException:
        with suppress(BkError):
            handle.close(forced=True)
        with suppress(BkError):
            client.delete_ledger(handle.ledger_id)
        raise
    return Transfer(handle.ledger_id, sent.entries, sent.bytes, time.monotonic() - began)


def _appended(client: BookKeeper, handle: Any, runs: Iterable[Entries]) -> Iterator[Entries]:
    """Append runs, some at a time, and yield each as it is sent. All are acknowledged at the end. Each acknowledgement is waited for up to
    the client's ``operation_timeout_s``, because with the metadata store away a ledger may give none."""
    timeout_s, what = client.config.operation_timeout_s, f"appending to the new ledger {handle.ledger_id}"
    waiting: deque[tuple[Future[int], int]] = deque()
    size = 0
    for run in runs:
        waiting.append((handle.append_run_future(run.values, run.offsets), run.offsets[-1]))
        size += run.offsets[-1]
        yield run
        while waiting and (size > IN_FLIGHT_BYTES or waiting[0][0].done()):
            future, done = waiting.popleft()
            wait(future, timeout_s, what)
            size -= done
    for future, _ in waiting:
        wait(future, timeout_s, what)


def verify(client: BookKeeper, ledger_id: int, password: bytes, sent: Fingerprint, on_progress: OnProgress | None) -> None:
    """Read a new ledger from its bookies, and raise CopyMismatchError unless it has exactly what was sent."""
    seen = Fingerprint()
    with client.open_ledger(ledger_id, password=password) as reader:
        for run in source_runs(reader, 0, reader.last_add_confirmed):
            seen.add(run)
            _say(on_progress, ledger_id, "verify", seen.entries, sent.entries, seen.bytes)
    if seen != sent:
        told = f"{seen.entries:,} entries with {seen.bytes:,} bytes, and {sent.entries:,} with {sent.bytes:,} were written"
        raise CopyMismatchError(f"ledger {ledger_id} has other entries than were written to it ({told}); it was deleted", ledger=ledger_id)


def _say(on_progress: OnProgress | None, ledger_id: int, step: str, entries: int, total: int, size: int) -> None:
    if on_progress is not None:
        on_progress(Progress(ledger_id, step, entries, total, size))
