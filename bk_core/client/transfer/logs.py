"""Exports logs to files, and imports files into logs: entries as they are, or rows as Parquet or Arrow IPC.

An import is one commit: readers see all of it or nothing. What it wrote is read again and compared. Parquet, Arrow IPC and every import
need pyarrow (``tables.py`` of the logs finds it).
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from bk_core.client.log.history import read_log
from bk_core.client.log.lists import create_log
from bk_core.client.log.reader import LogReader
from bk_core.client.log.tables import OnCounts, tables
from bk_core.client.transfer.entry_file import EntryFile, EntryWriter, entries_of
from bk_core.client.transfer.ledgers import Fingerprint
from bk_core.client.transfer.new_file import check_ending, check_free, new_file, old_file
from bk_core.errors import CopyMismatchError, ExportFormatError, NoSuchLogError
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties

if TYPE_CHECKING:
    from bk_core.client import BookKeeper

FileKind: TypeAlias = Literal["entries", "parquet", "arrow"]
KINDS: tuple[FileKind, ...] = get_args(FileKind)
_BY_SUFFIX: dict[str, FileKind] = {".parquet": "parquet", ".arrow": "arrow", ".ipc": "arrow", ".feather": "arrow"}
_FORMATS = (
    "*.parquet is Parquet; *.arrow, *.ipc and *.feather are Arrow IPC; other names hold entries as they are, and so does --format entries"
)


@dataclass(frozen=True, slots=True)
class LogTransfer:
    """The result of an export or an import of a log: how many rows (of a raw log: entries), how many bytes of payload or of the file, and
    where they are in the log."""

    log: str
    kind: FileKind
    rows: int
    bytes: int
    seconds: float
    first: Position
    end: Position
    path: str


def kind_of(path: Path, kind: FileKind | None = None) -> FileKind:
    """Return the kind of file that is meant: ``kind``, or that of the name's ending; entries for any other.

    Raises ExportFormatError for the ending of another format."""
    if kind is None:
        check_ending(path, _FORMATS)
    return kind or _BY_SUFFIX.get(path.suffix.lower(), "entries")


def export_log(
    client: BookKeeper,
    name: str,
    path: Path,
    *,
    kind: FileKind | None = None,
    password: bytes = b"",
    compression: str | None = None,
    on_counts: OnCounts | None = None,
) -> LogTransfer:
    """Write what a log holds now into a new file. ``kind`` is that of the file's name by default. ``compression`` is Parquet's or Arrow's;
    entries have none.

    A raw log becomes entries; a log of Arrow entries becomes Parquet or Arrow IPC. A raw log may be exported as a table as well, with the
    columns of ``Log.to_batches``.

    Raises NoSuchLogError; ExportFileError for a path that exists or cannot be written; ExportFormatError for a log that has no such file;
    MissingPackageError; and what reading the log raises. No file is left then.
    """
    began = time.monotonic()
    chosen = kind_of(path, kind)
    if chosen == "entries" and compression is not None:
        message = f"entries are not compressed: leave compression {compression!r} out, or export rows to a file *.parquet or *.arrow"
        raise ExportFormatError(message, log=name, path=str(path))
    check_free(path)
    view = read_log(client, name)
    if chosen != "entries":
        found = tables().export_rows(client, name, path, chosen, password=password, compression=compression, on_counts=on_counts)
        return LogTransfer(name, chosen, found[0], path.stat().st_size, time.monotonic() - began, found[1], found[2], str(path))
    if view.properties.entry_format != "raw":
        message = f"log {name!r} has Arrow entries: export it to a file that ends with .parquet or .arrow"
        raise ExportFormatError(message, log=name, path=str(path))
    header = {"what": "log", "log": name, "logId": view.log_id, "entryFormat": "raw"}
    first = end = view.first_position
    with LogReader(client, name, start=first, password=password) as reader, new_file(path) as target:
        writer = EntryWriter(target, header)
        for run in reader.read():
            writer.write(entries_of(writer.entries, run.values, run.offsets))
            end = run.end_position
            if on_counts is not None:
                on_counts("export", writer.entries, writer.bytes)
        writer.finish()
    return LogTransfer(name, chosen, writer.entries, writer.bytes, time.monotonic() - began, first, end, str(path))


def import_log(
    client: BookKeeper,
    name: str,
    path: Path,
    *,
    kind: FileKind | None = None,
    create: bool = False,
    take_over: bool = False,
    password: bytes = b"",
    on_counts: OnCounts | None = None,
) -> LogTransfer:
    """Append what a file holds to a log, as one commit, and read it again to see that it is the same.

    ``create`` makes the log if there is none. ``take_over`` is as for ``Log.write``.

    Raises ExportFileError and ExportFormatError for a file that cannot be read, is damaged, cut off, or of another kind than the log;
    MissingPackageError; what ``Log.write`` raises. Nothing of the file is visible then. CopyMismatchError if what was read again differs:
    it names the segments that were added.
    """
    began = time.monotonic()
    made = tables()
    chosen = kind_of(path, kind)
    with old_file(path) as source:
        file = EntryFile(source, str(path)) if chosen == "entries" else None
        if file is not None and file.header.get("what") != "log":
            raise ExportFormatError(f"{path} holds the entries of a ledger: `bk ledger import` takes it", path=str(path))
        rows = made.open_rows(path, chosen) if file is None else None
        _check_log(client, name, path, raw=file is not None or made.is_raw_table(rows), create=create)
        log = client.log(name, password=password)
        sent: Any = Fingerprint() if file is not None else None
        batches = made.value_batches(_noted(file, sent, on_counts)) if file is not None else made.counted(rows, on_counts)
        written = log.write(batches, take_over=take_over)
    if file is not None:
        same = _entries_at(client, name, written.first, written.end, password, on_counts) == sent
    else:
        same = made.same_rows(client, name, path, chosen, password=password, start=written.first, end=written.end, on_counts=on_counts)
    if not same:
        where = f"segments {written.first.seq} to {written.end.seq - 1}"
        raise CopyMismatchError(f"log {name!r} has other rows in {where} than {path} holds; they are visible", log=name, path=str(path))
    seconds = time.monotonic() - began
    return LogTransfer(name, chosen, written.rows, written.bytes, seconds, written.first, written.end, str(path))


def _check_log(client: BookKeeper, name: str, path: Path, *, raw: bool, create: bool) -> None:
    """Raise ExportFormatError if the log is of the other kind, NoSuchLogError if there is none, unless it is to be made."""
    try:
        found = read_log(client, name).properties.entry_format
    except NoSuchLogError as error:
        if not create:
            raise error.retold(f"{error.args[0]}; create=True (--create) makes it") from None
        create_log(client, name, LogProperties(entry_format="raw" if raw else "arrow"), exist_ok=True)
        return
    if found != ("raw" if raw else "arrow"):
        what = "entries" if raw else "rows"
        message = f"log {name!r} is a log of {'raw' if found == 'raw' else 'Arrow'} entries, and {path} holds {what}; name another log"
        raise ExportFormatError(message, log=name, path=str(path))


def _noted(file: EntryFile, sent: Fingerprint, on_counts: OnCounts | None) -> Iterator[tuple[Any, array[int]]]:
    for run in file.runs():
        sent.add(run)
        if on_counts is not None:
            on_counts("import", sent.entries, sent.bytes)
        yield run.values, run.offsets


def _entries_at(client: BookKeeper, name: str, first: Position, end: Position, password: bytes, on_counts: OnCounts | None) -> Fingerprint:
    """Return the fingerprint of the segments from ``first`` to before ``end``."""
    seen = Fingerprint()
    if first.seq == end.seq:
        return seen
    with LogReader(client, name, start=first, password=password) as reader:
        for run in reader.read():
            if run.segment.seq >= end.seq:
                break
            seen.add(entries_of(0, run.values, run.offsets))
            if on_counts is not None:
                on_counts("verify", seen.entries, seen.bytes)
    return seen
