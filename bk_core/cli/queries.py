"""``bk query``: how far a Spark query is behind the logs it reads, from its checkpoint."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import click

from bk_core.cli.output import cluster_options, connected, say_json, say_table
from bk_core.errors import InvalidArgumentError, NoSuchLogError
from bk_core.protocol.log.lag import lag
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.stored_json import loads

if TYPE_CHECKING:
    from bk_core.protocol.log.view import LogView

_OFFSET_KEYS = {"logId", "seq", "entry", "row", "rows", "bytes"}


@dataclass(frozen=True, slots=True)
class Progress:
    """The position of a query: its last committed batch, the last one it planned, and for each source the offset behind the committed
    batch."""

    committed: int | None
    planned: int
    sources: tuple[Mapping[str, Any], ...]


@click.group()
def query() -> None:
    """Streaming queries of Spark that read logs."""


@query.command("lag")
@click.argument("checkpoint")
@cluster_options
def show_lag(checkpoint: str, uri: str, protocol: str, as_json: bool) -> None:
    """Rows, bytes and time that a query has not read yet, for each log.

    CHECKPOINT is the checkpoint folder of the query on this machine, as a path or a file: URL. What counts is the last batch that was
    committed; entries of a live segment of an exclusive writer do not count until it is closed. The time is the age of the oldest row that
    was not read.
    """
    from bk_core.client.logs import read_log

    progress = read_progress(local_path(checkpoint))
    rows = []
    with connected(uri, protocol) as client:
        for source, log, offset in _offsets(progress):
            try:
                view = read_log(client, log)
            except NoSuchLogError:
                view = None
            rows.append({"source": source, "log": log, **_place(progress, offset), **behind(view, offset, int(time.time() * 1000))})
    if as_json:
        for row in rows:
            say_json(row)
        return
    columns = ["log", "#segment", "#entry", "#row", "#rows behind", "#bytes behind", "#time behind", "note"]
    say_table(columns, [_cells(row) for row in rows])
    done = "none" if progress.committed is None else f"{progress.committed:,}"
    click.echo(f"batch committed: {done}, planned: {progress.planned:,}")


def _cells(row: Mapping[str, Any]) -> list[object]:
    age = None if row["secondsBehind"] is None else _duration(row["secondsBehind"])
    place = [None if row[key] is None else str(row[key]) for key in ("seq", "entry", "row")]
    return [row["log"], *place, row["rowsBehind"], row["bytesBehind"], age, row["note"]]


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _offsets(progress: Progress) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    for source, offset in enumerate(progress.sources):
        for log, place in sorted(offset.items()):
            yield source, log, place


def _place(progress: Progress, offset: Mapping[str, Any]) -> dict[str, Any]:
    places = {key: offset.get(key) for key in ("seq", "entry", "row")}
    return {"committedBatch": progress.committed, "plannedBatch": progress.planned, **places}


def behind(view: LogView | None, offset: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """Lag of one log. What cannot be known is None, and ``note`` says why. ``view``: None for a log that does not exist."""
    unknown = {"rowsBehind": None, "bytesBehind": None, "secondsBehind": None}
    if view is None:
        return {**unknown, "note": "the log was deleted"}
    if not offset:
        return {**unknown, "note": "no batch was committed yet"}
    if offset["logId"] != view.log_id:
        return {**unknown, "note": "the log was deleted and created again"}
    end, place = view.end_position, Position(offset["seq"], offset["entry"], offset["row"])
    first = view.first_position
    rows, size = view.counts_before(first)
    lost = max(0, rows - offset["rows"]) if place < first else 0
    found = lag(view, max(place, first), end, now_ms)
    note = "a live segment is not counted" if view.live_segments else ""
    if lost:
        note = f"{lost:,} rows of these were trimmed before they were read"
    size_lost = max(0, size - offset["bytes"]) if lost else 0
    return {"rowsBehind": found.rows + lost, "bytesBehind": found.bytes + size_lost, "secondsBehind": round(found.seconds, 1), "note": note}


# --- Spark's checkpoint -------------------------------------------------------------------------------------------------


def local_path(checkpoint: str) -> Path:
    """InvalidArgumentError for a URL of another file system: only this machine's files can be read here."""
    parts = urlsplit(checkpoint)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        raise InvalidArgumentError(f"{checkpoint} is not on this machine; copy its folders offsets and commits here")
    return Path(unquote(parts.path) if parts.scheme else checkpoint)


def read_progress(checkpoint: Path) -> Progress:
    """InvalidArgumentError if the folder is no checkpoint of a query, or its query reads no log."""
    planned, committed = _last(checkpoint / "offsets"), _last(checkpoint / "commits")
    if planned is None:
        raise InvalidArgumentError(f"{checkpoint} has no file in a folder offsets: it is no checkpoint of a query that has begun")
    known = planned if committed is None else committed
    sources = tuple(source for source in _read_offsets(checkpoint / "offsets" / str(known)) if _is_ours(source))
    if not sources:
        raise InvalidArgumentError(f"the query of checkpoint {checkpoint} reads no log of format bookkeeper")
    if committed is None:
        sources = tuple({log: {} for log in source} for source in sources)
    return Progress(committed, planned, sources)


def _last(folder: Path) -> int | None:
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in names if re.fullmatch(r"[0-9]+", name)), default=None)


def _read_offsets(path: Path) -> list[Any]:
    """One value per source. Format v1 of Spark's offset log: a line of version, one of metadata, one of JSON (or ``-``) for each source."""
    try:
        version, _, *lines = path.read_text().splitlines()
        if version != "v1":
            raise InvalidArgumentError(f"{path} has version {version!r} of Spark's offset log; this program reads v1")
        return [loads(line) for line in lines if line != "-"]
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"{path} cannot be read as an offset log of Spark: {error}") from error


def _is_ours(source: Any) -> bool:
    return isinstance(source, dict) and all(isinstance(place, dict) and place.keys() >= _OFFSET_KEYS for place in source.values())
