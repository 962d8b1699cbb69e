"""``bk query``: how far a Spark query is behind the logs it reads, from its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import click

from bk_core.cli.checkpoint_words import checkpoints_below, viewed
from bk_core.cli.output import cluster_options, connected, password_option, say_json, say_table
from bk_core.client.checkpoints.batches import LocalFolder, StoreFolder
from bk_core.client.checkpoints.progress import CLOCKS, Progress, SourceLag, lags, read_progress
from bk_core.client.files.words import stored_at
from bk_core.errors import BkError, InvalidArgumentError

if TYPE_CHECKING:
    from bk_core.client import BookKeeper


@click.group()
def query() -> None:
    """Look at streaming queries of Spark that read logs."""


@query.command("lag")
@click.argument("checkpoint")
@password_option
@cluster_options
def show_lag(checkpoint: str, password: str, uri: str, protocol: str, as_json: bool) -> None:
    """Show how far a query is behind each log that it reads: in rows, bytes and time.

    CHECKPOINT is the checkpoint folder of the query on this machine, as a path or a file: URL, or in a file store of the cluster, as
    bk://NAME. The lag is counted from the last batch that was committed; entries of a live segment of an exclusive writer do not count
    until it is closed. The password is that of the file store.

    The time is the age of the oldest row that was not read: this machine's clock now, less the clock of whoever committed it. If the two
    differ by some seconds, the time is off by as many. It is never below zero.

    --json: source, log, committedBatch, plannedBatch, seq, entry, row, rowsBehind, bytesBehind, secondsBehind, note.
    """
    place = stored_at(checkpoint)
    try:
        here = read_progress(LocalFolder(local_path(checkpoint))) if place is None else None
    except InvalidArgumentError as error:
        raise error.retold(f"{error.args[0]}{_in_ledgers(checkpoint, uri, protocol)}") from None
    with connected(uri, protocol) as client:
        progress = here if place is None else _progress_in_store(client, *place, password)
        assert progress is not None
        rows = [_row(progress, one) for one in lags(client, progress)]
    if as_json:
        for row in rows:
            say_json(row)
        return
    columns = ["log", "#segment", "#entry", "#row", "#rows behind", "#bytes behind", "#time behind", "note"]
    say_table(columns, [_cells(row) for row in rows])
    done = "none" if progress.committed is None else str(progress.committed)
    click.echo(f"batch committed: {done}, planned: {progress.planned}")
    if any(row["secondsBehind"] for row in rows):
        click.echo(f"time behind: {CLOCKS}")


def _cells(row: Mapping[str, Any]) -> list[object]:
    age = None if row["secondsBehind"] is None else _duration(row["secondsBehind"])
    place = [None if row[key] is None else str(row[key]) for key in ("seq", "entry", "row")]
    return [row["log"], *place, row["rowsBehind"], row["bytesBehind"], age, row["note"]]


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _row(progress: Progress, found: SourceLag) -> dict[str, Any]:
    known = {} if found.offset is None else found.offset.json()
    places = {key: known.get(key) for key in ("seq", "entry", "row")}
    batches = {"committedBatch": progress.committed, "plannedBatch": progress.planned}
    return {"source": found.source, "log": found.log, **batches, **places, **found.facts}


def _in_ledgers(checkpoint: str, uri: str, protocol: str) -> str:
    """Return the end of the error, with the name that was meant, if there is a checkpoint in ledgers of that name; else nothing."""
    from bk_core.client.files.upkeep import file_stores

    if "://" in checkpoint:
        return ""
    try:
        with connected(uri, protocol) as client:
            is_there = checkpoint.partition("/")[0] in file_stores(client)
    except (BkError, click.ClickException):  # no cluster is named, or nobody answers there: the first error is the one to tell
        return ""
    return f". There is one in ledgers: `bk query lag bk://{checkpoint}`" if is_there else ""


# --- Spark's checkpoint -------------------------------------------------------------------------------------------------


def _progress_in_store(client: BookKeeper, store: str, path: str, password: str) -> Progress:
    with viewed(client, store, password) as view:
        below = "" if view.exists(f"{path.rstrip('/')}/offsets") else checkpoints_below(view, path)
        return read_progress(StoreFolder(view, path), f"; {below}" if below else "")


def local_path(checkpoint: str) -> Path:
    """Return the folder of a checkpoint on this machine.

    Raises InvalidArgumentError for a folder that is not there, and for a URL of another file system: only files of this machine and of file
    stores can be read here.
    """
    try:
        parts = urlsplit(checkpoint)
    except ValueError as error:  # no URL, and with its slashes no folder either
        raise InvalidArgumentError(f"{checkpoint} is neither a folder nor a URL: {error}") from None
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        message = f"{checkpoint} is neither on this machine nor in a file store (bk://NAME): copy its folders offsets and commits here"
        raise InvalidArgumentError(message)
    path = Path(unquote(parts.path) if parts.scheme else checkpoint)
    if not path.is_dir():
        raise InvalidArgumentError(f"there is no folder {path} on this machine; a checkpoint in ledgers is given as bk://NAME")
    return path
