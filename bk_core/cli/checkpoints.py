"""``bk checkpoint``: Spark's checkpoints in file stores of the cluster."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from bk_core.cli.checkpoint_copies import copy_in, copy_out
from bk_core.cli.checkpoint_words import checkpoints_below, in_words, store_and_path, viewed, whole_store
from bk_core.cli.given import STORE, STORE_PATH
from bk_core.cli.output import cluster_options, connected, password_option, say_json, say_table
from bk_core.cli.progress import with_progress
from bk_core.cli.unread import ended_unread
from bk_core.client.checkpoints.batches import Batch, StoreFolder, last_number, numbers, query_id, read_batch
from bk_core.client.checkpoints.within import bases, everything
from bk_core.client.files.imports import is_of_import, unfinished_imports
from bk_core.display.words import counted, rest_about, when
from bk_core.errors import BkError, LogWriterAliveError, NoSuchFileStoreError, NoSuchPathError
from bk_core.protocol.files.paths import ROOT, join
from bk_core.protocol.log.offset import LogOffset, of_source

if TYPE_CHECKING:
    from bk_core.client import BookKeeper
    from bk_core.client.files.view import FileStoreView
    from bk_core.client.log.live_writers import LiveWriter
    from bk_core.protocol.files.content import FileStatus

_WAIT_S = 60.0
_OFFSET_MAX = 60  # characters of an offset of somebody else's source
EVEN_IF_ALIVE = "Fence the owner although it is open somewhere, or may be."


@click.group()
def checkpoint() -> None:
    """List, show, follow, copy and delete checkpoints of streaming queries of Spark, in file stores."""


checkpoint.add_command(copy_in)
checkpoint.add_command(copy_out)


# --- ls ------------------------------------------------------------------------------------------------------------------


@checkpoint.command("ls")
@click.argument("name", metavar="[NAME[/PATH]]", required=False, type=STORE_PATH)
@click.argument("path", default="")
@password_option
@cluster_options
def show_stores(name: str | None, path: str, password: str, uri: str, protocol: str, as_json: bool) -> None:
    """List all checkpoints with their size and last batch, or the files of one, in its folder PATH. It fences nobody.

    An acknowledged change shows here once bookies report it as confirmed. The last changes of an owner that died may show only after the
    next owner has opened the checkpoint.

    --json: checkpoint, query, files, bytes, plannedBatch, committedBatch, committedAtMs, owner (state, host, pid, sinceMs; null without
    one); for a file: path, directory, bytes, children, modifiedMs.
    """
    from bk_core.client.files.upkeep import file_stores

    with connected(uri, protocol) as client:
        if name is not None:
            store, place = store_and_path(name, path)
            with viewed(client, store, password) as view:
                _say_files([one for one in view.listing(place) if place != ROOT or not is_of_import(one.path)], as_json)
            return
        summaries = []
        for one in with_progress(file_stores(client), "reading file stores"):
            try:
                with viewed(client, one, password) as view:
                    summaries += [_summary(client, view, base) for base in _bases(view)]
            except NoSuchFileStoreError:  # deleted since it was listed
                continue
            except BkError as error:  # one that cannot be read hides no other
                click.echo(f"checkpoint {one} is left out: {error}", err=True)
    if as_json:
        for summary in summaries:
            say_json(summary)
        return
    columns = ["checkpoint", "#files", "#bytes", "#last batch", "committed (UTC)", "owner"]
    say_table(columns, [_summary_row(summary) for summary in summaries])
    click.echo(counted(len(summaries), "checkpoint"))


def _say_files(found: list[FileStatus], as_json: bool) -> None:
    if as_json:
        for one in found:
            kind = {"path": one.path, "directory": one.is_directory, "bytes": one.size, "children": one.children}
            say_json({**kind, "modifiedMs": one.modified_ms})
        return
    rows = [(one.name + "/" * one.is_directory, None if one.is_directory else one.size, when(one.modified_ms)) for one in found]
    say_table(["name", "#bytes", "modified (UTC)"], rows)


def _bases(view: FileStoreView) -> list[str]:
    """Return the checkpoints in a store: the directories that have offsets in them. Without any the whole store is taken for one, unless
    it has nothing but what an unfinished import has there."""
    imports, has_more = unfinished_imports(view)
    return bases(view) or ([ROOT] if has_more or not imports else [])


def _summary(client: BookKeeper, view: FileStoreView, base: str) -> dict[str, Any]:
    """Return the facts of one checkpoint that go into a line."""
    from bk_core.client.files.upkeep import file_store_owner

    owner = file_store_owner(client, view.name)
    files = [status for status, _ in everything(view, base) if not status.is_directory]
    folder = StoreFolder(view, base)
    committed = last_number(folder, "commits")
    return {
        "checkpoint": f"{view.name}{base.rstrip('/')}",
        "query": query_id(folder),
        "files": len(files),
        "bytes": sum(one.size for one in files),
        "plannedBatch": last_number(folder, "offsets"),
        "committedBatch": committed,
        "committedAtMs": None if committed is None else folder.modified_ms(f"commits/{committed}"),
        "owner": None if owner is None else _owner_json(owner),
    }


def _owner_json(owner: LiveWriter) -> dict[str, Any]:
    return {"state": owner.state, "host": owner.host or None, "pid": owner.pid or None, "sinceMs": owner.since_ms or None}


def _owner_told(owner: Mapping[str, Any] | None) -> str | None:
    if owner is None:
        return None
    state = {"alive": "", "gone": " (gone)", "unknown": " (perhaps gone)"}[owner["state"]]
    return f"{owner['host']}:{owner['pid']}{state}" if owner["host"] else "not named"


def _summary_row(summary: Mapping[str, Any]) -> list[object]:
    batch = None if summary["committedBatch"] is None else str(summary["committedBatch"])
    sizes = (summary["files"], summary["bytes"], batch, when(summary["committedAtMs"]))
    return [summary["checkpoint"], *sizes, _owner_told(summary["owner"])]


# --- show ----------------------------------------------------------------------------------------------------------------


@checkpoint.command("show")
@click.argument("name", metavar="NAME[/PATH]", type=STORE_PATH)
@click.option("-n", "--batches", "count", type=click.IntRange(min=1), default=20, show_default=True, help="How many of the last batches.")
@password_option
@cluster_options
def show_checkpoint(name: str, count: int, password: str, uri: str, protocol: str, as_json: bool) -> None:
    """Show one checkpoint with its last batches: when each was planned and committed, and the offset of each source after it.

    An acknowledged change shows here once bookies report it as confirmed. The last changes of an owner that died may show only after the
    next owner has opened the checkpoint.

    The time of a commit is that of its file. In an imported checkpoint that is the time of the import, and nobody knows how long a batch
    took (-).

    --json: the fields of `bk checkpoint ls`, and batches (batch, plannedMs, committed, committedMs, watermarkMs, sources: the offset of
    each).
    """
    store, path = store_and_path(name)
    with connected(uri, protocol) as client, viewed(client, store, password) as view:
        shown = _summary(client, view, path)
        folder = StoreFolder(view, path)
        is_one = path == ROOT or view.exists(join(path, "offsets"))
        below = "" if view.exists(join(path, "offsets")) else checkpoints_below(view, path)
        done = set(numbers(folder, "commits"))
        batches = [read_batch(folder, number, committed=number in done) for number in numbers(folder, "offsets")[-count:]]
    if as_json:
        say_json({**shown, "batches": [_batch_json(batch) for batch in batches]})
        return
    facts = {**shown, "owner": _owner_told(shown["owner"]), "committedAtMs": when(shown["committedAtMs"])}
    labels = {"plannedBatch": "last batch planned", "committedBatch": "last batch committed", "committedAtMs": "committed (UTC)"}
    say_table(["checkpoint", name], [(labels.get(key, key), _fact(value)) for key, value in list(facts.items())[1:]])
    if not batches:
        none = "no batch yet" if is_one else "no folder offsets. Either it is no checkpoint of a query, or that query has not begun"
        click.echo(f"checkpoint {name} has {none}{f'; {below}' if below else ''}")
        return
    click.echo()
    sources = list(dict.fromkeys(source for batch in batches for source in batch.sources))
    columns = ["#batch", "planned (UTC)", "committed (UTC)", "#took (s)", "watermark (UTC)", *(f"source {source}" for source in sources)]
    say_table(columns, [_batch_row(batch, sources) for batch in batches])


def _fact(value: object) -> object:
    return value if isinstance(value, int) else None if value is None else str(value)


def _batch_row(batch: Batch, sources: list[str]) -> list[object]:
    offsets = [offset_told(batch.sources.get(source)) for source in sources]
    took = None if batch.took_ms is None else f"{batch.took_ms / 1000:.1f}"
    committed = when(batch.committed_ms) if batch.committed else "not yet"
    return [str(batch.number), when(batch.planned_ms), committed, took, when(batch.watermark_ms), *offsets]


def _batch_json(batch: Batch) -> dict[str, Any]:
    times = {"plannedMs": batch.planned_ms, "committed": batch.committed, "committedMs": batch.committed_ms}
    return {"batch": batch.number, **times, "watermarkMs": batch.watermark_ms, "sources": dict(batch.sources)}


def offset_told(offset: Any) -> str | None:
    """Return an offset as a cell: of our source the place in each log and the rows before it, of another one its JSON."""
    if offset is None:
        return None
    ours = of_source(offset)
    if ours is not None:
        return ", ".join(f"{log} {_place_told(at)} ({counted(at.rows, 'row')})" for log, at in sorted(ours.items()))
    text = offset if isinstance(offset, str) else json.dumps(offset, separators=(",", ":"))
    return text if len(text) <= _OFFSET_MAX else f"{text[:_OFFSET_MAX]} ..."


def _place_told(offset: LogOffset) -> str:
    place = offset.position
    return f"{place.seq}:{place.entry}+{place.row}"


# --- cat, tail -----------------------------------------------------------------------------------------------------------


@checkpoint.command("cat")
@click.argument("name", metavar="NAME[/PATH]", type=STORE_PATH)
@click.argument("path", default="")
@password_option
@cluster_options
def cat(name: str, path: str, password: str, uri: str, protocol: str, as_json: bool) -> None:
    """Print the bytes of the file PATH, as they are.

    --json: path, bytes, modifiedMs, data (base64).
    """
    store, path = store_and_path(name, path)
    if path == ROOT:
        raise click.UsageError(f"which file of {store}? `bk checkpoint cat {store}/offsets/0`, say; `bk checkpoint ls {store}` lists them")
    with connected(uri, protocol) as client, viewed(client, store, password) as view:
        status = view.status(path)
        if as_json:
            data = view.read(path)
            say_json({"path": status.path, "bytes": len(data), "modifiedMs": status.modified_ms, "data": base64.b64encode(data).decode()})
            return
        for chunk in view.chunks(path):
            sys.stdout.buffer.write(chunk)
        sys.stdout.flush()
        sys.stdout.buffer.flush()


@checkpoint.command("tail")
@click.argument("name", metavar="NAME[/PATH]", type=STORE_PATH)
@click.option("-f/-F", "--follow/--no-follow", default=True, help="Wait for more until Ctrl-C, which is the default; -F does not.")
@click.option("-n", "--batches", "count", type=click.IntRange(min=0), default=10, show_default=True, help="How many of the last batches.")
@password_option
@cluster_options
@ended_unread()
def tail(name: str, follow: bool, count: int, password: str, uri: str, protocol: str, as_json: bool) -> None:
    """Print the last batches of a checkpoint, and each that is planned or committed from now on, as it happens. It fences nobody.

    An acknowledged change shows here once bookies report it as confirmed. The last changes of an owner that died may show only after the
    next owner has opened the checkpoint.

    --json: batch, plannedMs, committed, committedMs, watermarkMs, sources.
    """
    store, path = store_and_path(name)
    with connected(uri, protocol) as client, viewed(client, store, password) as view:
        view.status(path)  # one that is not there would be waited for until Ctrl-C
        said = _Said(view, path, _say_batch_json if as_json else _say_batch)
        said.look(count)
        while follow:
            while not view.wait(_WAIT_S):
                pass
            view.refresh()
            said.look()


class _Said:
    """Prints each batch once when it is planned and once when it is committed. A file that Spark wrote anew has another id."""

    def __init__(self, view: FileStoreView, path: str, say: Callable[[Batch], None]) -> None:
        self._view = view
        self._base = path.rstrip("/")
        self._folder = StoreFolder(view, path)
        self._say = say
        self._known: dict[tuple[str, int], int] = {}

    def look(self, most: int | None = None) -> None:
        """Print what is new, at most the last ``most`` batches of it."""
        files = {
            (log, number): self._view.status(f"{self._base}/{log}/{number}").file_id
            for log in ("offsets", "commits")
            for number in self._numbers(log)
        }
        new = sorted({number for (log, number), file_id in files.items() if self._known.get((log, number)) != file_id})
        self._known = files
        for number in new if most is None else new[max(0, len(new) - most) :]:
            try:
                self._say(read_batch(self._folder, number, committed=("commits", number) in files))
            except NoSuchPathError:  # a commit whose offsets are gone: Spark cleans up
                continue
        sys.stdout.flush()

    def _numbers(self, log: str) -> list[int]:
        return numbers(self._folder, log)


def _say_batch_json(batch: Batch) -> None:
    say_json(_batch_json(batch))


def _say_batch(batch: Batch) -> None:
    took = "" if batch.took_ms is None else f" in {batch.took_ms / 1000:.1f} s"
    what = f"committed{took}" if batch.committed else f"planned {when(batch.planned_ms) or ''}".rstrip()
    offsets = "  ".join(f"{source}: {offset_told(offset) or '-'}" for source, offset in batch.sources.items())
    click.echo(f"batch {batch.number:<8} {what:<30} {offsets}".rstrip())


# --- rm, gc --------------------------------------------------------------------------------------------------------------


@checkpoint.command("rm")
@click.argument("names", nargs=-1, required=True, type=STORE)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--even-if-alive", is_flag=True, help=EVEN_IF_ALIVE)
@password_option
@cluster_options
def remove(names: tuple[str, ...], yes: bool, even_if_alive: bool, password: str, uri: str, protocol: str, as_json: bool) -> int:
    """Delete checkpoints with all their files. A query that is started again without its checkpoint begins anew.

    A checkpoint whose owner is alive is refused. If one cannot be deleted, the others are deleted all the same, and the exit status is 1.

    --json: checkpoint, deleted, dataLedgers.
    """
    from bk_core.client.files.upkeep import delete_file_store

    failed = False
    with connected(uri, protocol) as client:
        for name in dict.fromkeys([whole_store(given, "rm") for given in names]):
            try:
                with in_words(name, password):
                    if not yes:
                        click.confirm(f"delete checkpoint {name} ({_told(client, name, password)})?", abort=True, err=True)
                    report = delete_file_store(client, name, password=password.encode(), even_if_alive=even_if_alive)
            except BkError as error:  # one that cannot be deleted keeps no other
                click.echo(f"error: {error}", err=True)
                failed = True
                continue
            failed = _say_left(name, report) or failed
            if as_json:
                say_json({"checkpoint": name, "deleted": True, "dataLedgers": list(report.deleted)})
            else:
                click.echo(f"checkpoint {name} deleted")
    return 1 if failed else 0


def _told(client: BookKeeper, name: str, password: str) -> str:
    """Return the words for the question. What cannot be read can be deleted all the same."""
    try:
        with viewed(client, name, password) as view:
            files = [status for status, _ in everything(view) if not status.is_directory]
            batches = [_summary(client, view, base)["committedBatch"] for base in _bases(view)]
    except NoSuchFileStoreError:
        raise
    except BkError as error:
        return str(error)
    told = ", ".join("no batch" if batch is None else f"last batch {batch}" for batch in batches)
    return f"{counted(len(files), 'file')}, {counted(sum(one.size for one in files), 'byte')}, {told}"


def _say_left(name: str, report: Any) -> bool:
    """Tell on standard error which data ledgers could not be deleted. Return True if there are any."""
    for ledger_id, why in (*report.failed, *report.foreign):
        what = f"ledger {ledger_id}"
        click.echo(f"checkpoint {name}: data {what} is left: {rest_about(what, why)}", err=True)
    return bool(report.failed)


@checkpoint.command("gc")
@click.argument("names", nargs=-1, type=STORE)
@click.option("--even-if-alive", is_flag=True, help=EVEN_IF_ALIVE)
@password_option
@cluster_options
def collect(names: tuple[str, ...], even_if_alive: bool, password: str, uri: str, protocol: str, as_json: bool) -> int:
    """Delete data ledgers that no file refers to, and what deleted checkpoints and killed imports have left; of all checkpoints, if none
    is named. A checkpoint of which there is nothing but a killed import is deleted.

    Owners do that by themselves: a checkpoint that is open, or may be, is left out, and refused if it was named. One password is tried on
    all: name those that have another one, and give it. The exit status is 1 while one could not be looked at.

    --json: checkpoint, deleted (ledgers), left (ledger, error), imports, isGone, finished.
    """
    from bk_core.client.files.upkeep import file_stores, gc_file_store

    if even_if_alive and not names:
        raise click.UsageError("--even-if-alive needs the names of the checkpoints whose owners are to be fenced")
    failed = False
    with connected(uri, protocol) as client:
        found = [*dict.fromkeys(whole_store(given, "gc") for given in names)] or file_stores(client, remains=True)
        if not found and not as_json:
            click.echo("no checkpoints")
        for name in found:
            try:
                with in_words(name, password):
                    report = gc_file_store(client, name, password=password.encode(), even_if_alive=even_if_alive)
            except BkError as error:
                if names:  # one that was named and cannot be looked at keeps no other
                    click.echo(f"error: {error}", err=True)
                elif not isinstance(error, NoSuchFileStoreError):  # it went meanwhile
                    click.echo(f"checkpoint {name} is left out: {error}", err=True)
                # who is alive looks after its own checkpoint
                failed = failed or bool(names) or not isinstance(error, LogWriterAliveError | NoSuchFileStoreError)
                continue
            failed = _say_left(name, report) or failed
            if as_json:
                left = [{"ledger": ledger_id, "error": why} for ledger_id, why in (*report.failed, *report.foreign)]
                imports = {"imports": len(report.imports), "isGone": report.is_gone, "finished": len(report.finished)}
                say_json({"checkpoint": name, "deleted": list(report.deleted), "left": left, **imports})
            else:
                killed = f", {counted(len(report.imports), 'killed import')} deleted" if report.imports else ""
                done = ", a killed import finished: its files are in place" if report.finished else ""
                gone = ", and the checkpoint, which had nothing else" if report.is_gone else ""
                click.echo(f"checkpoint {name}: {counted(len(report.deleted), 'ledger')} deleted{killed}{done}{gone}")
    return 1 if failed else 0
