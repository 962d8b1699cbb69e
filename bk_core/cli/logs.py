"""``bk log``: make, list, show, fill, follow, trim and delete logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bk_core.cli.given import LOG, of_usage
from bk_core.cli.log_collecting import collect, trim
from bk_core.cli.log_entries import append, tail
from bk_core.cli.log_upkeep import check, marks, release, repair
from bk_core.cli.output import check_range, cluster_options, connected, digest_choice, password_option, say_json, say_table
from bk_core.cli.progress import with_progress
from bk_core.cli.units import Duration, Size
from bk_core.display import logs as display
from bk_core.display.ledgers import named_ledgers
from bk_core.display.words import counted
from bk_core.errors import MetadataFormatError, NoSuchLogError, WrongClusterError
from bk_core.protocol.log.segments import ENTRY_FORMATS, EntryFormat, unchecked_properties
from bk_core.protocol.log.view import LogView

if TYPE_CHECKING:
    from bk_core.client import BookKeeper

_Command = TypeVar("_Command", bound=Callable[..., Any])
LEDGERS_MAX = 2000  # so many ledgers of a log have their metadata read to show it, which takes about a second


@click.group()
def log() -> None:
    """Make, list, show, fill, follow, check, trim and delete logs, which are ordered lists of segments over ledgers."""


for _command in (append, tail, check, repair, release, marks, trim, collect):
    log.add_command(_command)


# --- looking -------------------------------------------------------------------------------------------------------------


@log.command("ls")
@cluster_options
def show_logs(uri: str, protocol: str, as_json: bool) -> None:
    """List all logs with their size. Entries of a live segment are not counted yet.

    --json: log, logId, entryFormat, firstSeq, segments, live, rows, bytes, condemned (ledgers to be deleted).
    """
    from bk_core.client.log.history import read_log
    from bk_core.client.log.lists import list_logs

    summaries = []
    with connected(uri, protocol) as client:
        for name in with_progress(list_logs(client), "reading ledger lists"):
            try:
                summaries.append(display.summary(name, read_log(client, name)))
            except NoSuchLogError:  # deleted since it was listed
                continue
            except (WrongClusterError, MetadataFormatError) as error:  # one bad list among them hides no other
                click.echo(str(error), err=True)
    if as_json:
        for summary in summaries:
            say_json(summary)
        return
    columns = ["log", "entry format", "#segments", "live", "#rows", "#bytes"]
    rows = [(s["log"], s["entryFormat"], s["segments"], "live" if s["live"] else None, s["rows"], s["bytes"]) for s in summaries]
    say_table(columns, rows)
    click.echo(counted(len(summaries), "log"))


@log.command("show")
@click.argument("name", type=LOG)
@click.option("--sizes", is_flag=True, help=f"Count the copies also of a log of more than {LEDGERS_MAX:,} ledgers.")
@cluster_options
def show_log(name: str, sizes: bool, uri: str, protocol: str, as_json: bool) -> None:
    """Show one log: its properties, what was committed by whom, and its newest segments (`bk log segments` has all).

    Its bytes are those of the payloads; `with copies` is what all copies take on the bookies, with the header and checksum of each entry.

    --json: log, logId, entryFormat, firstSeq, segments, live, rows, bytes, condemned (ledgers), storedBytes, schema, quorums, digestType,
    guaranteed, retentionMs, retentionBytes, committedRetentionMs, columns (name, type), committed (the last batch of each query), writer,
    inHistory (segments), newest (as of `bk log segments`).
    """
    from bk_core.client.log.history import read_log
    from bk_core.client.log.live_writers import writer_told
    from bk_core.client.log.sizes import log_stored_bytes

    with connected(uri, protocol) as client:
        view = read_log(client, name)
        listed = view.listed
        writer = writer_told(client, [segment.ledger_id for segment in view.live_segments]) if view.live_segments else None
        most = None if sizes else LEDGERS_MAX
        stored = log_stored_bytes(client, view, most=most, progress=lambda ids: with_progress(ids, "reading metadata"))
    shown = {
        **display.summary(name, view),
        "storedBytes": stored,
        **_properties(view),
        "committed": {query: mark.batch_id for query, mark in sorted(listed.committed.items())},
        "condemned": list(listed.condemned),
        "writer": writer,
        "inHistory": view.next_seq - len(listed.segments) - listed.trimmed_seq,
        "newest": [display.segment_values(segment) for segment in listed.segments],
    }
    if as_json:
        say_json(shown)
        return
    _say_facts(name, {key: value for key, value in shown.items() if key not in ("newest", "committed")})
    if listed.committed:
        click.echo()
        say_table(["query", "#last batch"], list(shown["committed"].items()))
    click.echo()
    say_table(*display.segments(listed.segments))
    if stored is None:
        click.echo(f"log {name} has more than {LEDGERS_MAX:,} ledgers: --sizes counts their copies", err=True)


def _properties(view: LogView) -> dict[str, Any]:
    """Return the properties of a log for scripts, with the schema also as columns; None for these where there is no pyarrow."""
    from bk_core.client.log.tables import columns_told

    told = columns_told(view.properties.schema)
    columns = None if told is None else [{"name": name, "type": kind} for name, kind in told]
    return {**display.property_values(view.properties), "columns": columns}


def _say_facts(name: str, shown: dict[str, Any]) -> None:
    columns = shown["columns"]
    hidden = ("log", "columns") if columns is None else ("log", "columns", "schema")
    say_table(*display.facts(name, {key: value for key, value in shown.items() if key not in hidden}))
    if columns is None:
        click.echo(display.NO_PYARROW, err=True)
    elif columns:
        click.echo()
        say_table(*display.columns((column["name"], column["type"]) for column in columns))


@log.command("segments")
@click.argument("name", type=LOG)
@click.option("--first", type=click.IntRange(min=0), default=0, help="First segment; by default the first that is left.")
@click.option("--last", type=click.IntRange(min=0), help="Last segment; by default the newest.")
@cluster_options
def show_segments(name: str, first: int, last: int | None, uri: str, protocol: str, as_json: bool) -> None:
    """List all segments of a log, however old, read from its history chunk by chunk.

    --json: seq, ledger, firstEntryId, lastEntryId (null while live), rows, bytes, committedAtMs, writtenOff (by `bk log repair`).
    """
    from bk_core.client.log.history import read_log

    check_range(first, last)
    with connected(uri, protocol) as client:
        segments = read_log(client, name).segments(first, last)
        if not as_json:
            say_table(*display.segments(segments))
            return
        for segment in segments:
            say_json(display.segment_values(segment))


# --- making, changing, deleting ------------------------------------------------------------------------------------------


def _property_options(command: _Command) -> _Command:
    """Adds the options of a log that may also be changed later. Those that are not given are None."""
    for option in reversed(
        [
            click.option("--ensemble-size", type=click.IntRange(min=1), help="Bookies of a ledger."),
            click.option("--write-quorum-size", type=click.IntRange(min=1), help="Bookies that store each entry."),
            click.option("--ack-quorum-size", type=click.IntRange(min=1), help="Bookies that must have stored it."),
            click.option("--digest-type", type=digest_choice(), help="Checksum of entries."),
            click.option(
                "--guaranteed-write-quorum/--no-guaranteed-write-quorum",
                default=None,
                help="Close a ledger only when every bookie of the write quorum has each entry.",
            ),
            click.option(
                "--retention",
                "retention_ms",
                type=Duration(optional=True),
                help="Time for which `bk log trim --retention` keeps segments, such as 7d; none: for ever.",
            ),
            click.option("--retention-bytes", type=Size(optional=True), help="Newest bytes that it keeps, such as 10GiB; none: all."),
            click.option(
                "--committed-retention",
                "committed_retention_ms",
                type=Duration(optional=True),
                help="Forget marks of queries that have not committed for so long; none: never.",
            ),
        ]
    ):
        command = option(command)
    return command


def _given(properties: dict[str, Any]) -> dict[str, Any]:
    """Return only what was given; -1 stands for "none"."""
    return {name: None if value == -1 else value for name, value in properties.items() if value is not None}


def _option(name: str) -> str:
    """Return the option that gives this field of ``LogProperties``."""
    return "--" + {"retention_ms": "retention", "committed_retention_ms": "committed-retention"}.get(name, name).replace("_", "-")


@log.command("create")
@click.argument("name", type=LOG)
@click.option(
    "--entry-format",
    type=click.Choice(ENTRY_FORMATS),
    default="arrow",
    show_default=True,
    help="arrow: rows, as Spark writes them; raw: one value per entry, as by create_log of Python without a schema.",
)
@click.option("--schema", help='Columns, such as "id BIGINT, carrier STRING"; else the first write gives them. Needs pyarrow.')
@click.option("--exist-ok", is_flag=True, help="No error if there is such a log; it stays as it is.")
@_property_options
@cluster_options
def create(
    name: str,
    entry_format: EntryFormat,
    schema: str | None,
    exist_ok: bool,
    uri: str,
    protocol: str,
    as_json: bool,
    **properties: Any,
) -> None:
    """Make an empty log, and show it.

    --json: log, logId, entryFormat, schema, quorums, digestType, guaranteed, retentionMs, retentionBytes, committedRetentionMs, columns
    (name, type).
    """
    from bk_core.client.log.history import read_log
    from bk_core.client.log.lists import create_log
    from bk_core.client.log.settings import schema_text

    if schema is not None and entry_format == "raw":
        raise click.UsageError("a raw log has no columns: --schema is for --entry-format arrow")
    columns = "" if schema is None else schema_text(schema)
    wanted = unchecked_properties(entry_format=entry_format, schema=columns, **_given(properties))
    with of_usage():
        wanted.check(_option)
    with connected(uri, protocol) as client:
        create_log(client, name, wanted, exist_ok=exist_ok)
        view = read_log(client, name)
    _say_log(name, view, as_json)


@log.command("set")
@click.argument("name", type=LOG)
@_property_options
@cluster_options
def change(name: str, uri: str, protocol: str, as_json: bool, **properties: Any) -> None:
    """Change properties of a log, for what is written from now on, and show it.

    Segments go when `bk log trim --retention` runs; marks of queries go at once, and with each commit.

    --json: the fields of `bk log create`.
    """
    from bk_core.client.log.history import read_log
    from bk_core.client.log.lists import set_properties

    given = _given(properties)
    if not given:
        raise click.UsageError("say what to change")
    with connected(uri, protocol) as client:
        unchecked_properties(read_log(client, name).properties, **given).check(_option)
        set_properties(client, name, **given)
        view = read_log(client, name)
    _say_log(name, view, as_json)


def _say_log(name: str, view: LogView, as_json: bool) -> None:
    shown = {"log": name, "logId": view.log_id, "entryFormat": view.properties.entry_format, **_properties(view)}
    if as_json:
        say_json(shown)
    else:
        _say_facts(name, shown)


@log.command("rm")
@click.argument("names", nargs=-1, required=True, type=LOG)
@click.option("--yes", is_flag=True, help="Do not ask.")
@password_option
@cluster_options
def remove(names: tuple[str, ...], yes: bool, password: str, uri: str, protocol: str, as_json: bool) -> None:
    """Delete logs with all their ledgers. Writers are fenced; what readers have not read is lost.

    --json: log, deleted.
    """
    from bk_core.client.log.history import read_log
    from bk_core.client.log.janitor import delete_log

    with connected(uri, protocol) as client:
        # all are read first, so that a mistyped name is an error before anything is deleted
        found = {name: display.summary(name, read_log(client, name)) for name in names}
        for name, summary in found.items():
            if not yes:
                live = ", being written" if summary["live"] else ""
                question = f"delete log {name} ({counted(summary['segments'], 'segment')}, {counted(summary['rows'], 'row')}{live})?"
                click.confirm(question, abort=True, err=True)
            delete_log(client, name, password=password.encode())
            if as_json:
                say_json({"log": name, "deleted": True})
            else:
                click.echo(f"log {name} deleted")


@log.command("adopt")
@click.argument("names", nargs=-1, type=LOG)
@click.option("--all", "everything", is_flag=True, help="Adopt every log whose list names the cluster of --from.")
@click.option("--from", "from_cluster", metavar="CLUSTER", help="The cluster that the list names, if it names one.")
@click.option("--unnamed", is_flag=True, help="Ledgers that are listed and carry no log's name are the log's too: they go when it goes.")
@click.option("--yes", is_flag=True, help="With --unnamed: do not ask.")
@cluster_options
def adopt(
    names: tuple[str, ...],
    everything: bool,
    from_cluster: str | None,
    unnamed: bool,
    yes: bool,
    uri: str,
    protocol: str,
    as_json: bool,
) -> None:
    """Note that logs belong to this cluster: logs of an earlier version that names none, or of a cluster whose identity has changed.

    The identity of a cluster changes when it is restored without its INSTANCEID, or gets one that it did not have.
    Ledgers that carry no log's name can be read, but are not fenced or deleted for the log unless --unnamed says that they are its own;
    those that carry another log's name never are.

    --json: log, logId, cluster, adopted (the number of ledgers), unnamed (ledgers).
    """
    from bk_core.client.log.orphans import adopt_log, unnamed_ledgers

    if bool(names) is everything or (everything and from_cluster is None):
        raise click.UsageError("give names, or --all with --from")
    with connected(uri, protocol) as client:
        for name in names or _logs_of(client, from_cluster or ""):
            listed = adopt_log(client, name, from_cluster=from_cluster)
            nameless = unnamed_ledgers(client, name)
            if nameless and unnamed:
                if not yes:
                    question = f"log {name} lists {named_ledgers(nameless)} without a log's name: are they its own, to be deleted with it?"
                    click.confirm(question, abort=True, err=True)
                listed = adopt_log(client, name, unnamed=True)
            if as_json:
                left = [] if unnamed else list(nameless)
                place = {"log": name, "logId": listed.log_id, "cluster": listed.cluster}
                say_json({**place, "adopted": len(listed.adopted), "unnamed": left})
                continue
            click.echo(f"log {name} is of cluster {listed.cluster} from now on")
            if nameless and not unnamed:
                carry = "carries" if len(nameless) == 1 else "carry"
                told = f"{named_ledgers(nameless)} {carry} no log's name; they are read, and left alone otherwise. --unnamed: its own"
                click.echo(f"log {name}: {told}")


def _logs_of(client: BookKeeper, cluster: str) -> list[str]:
    """Return the logs whose list names that cluster."""
    from bk_core.client.log.list_store import read_unlooked
    from bk_core.client.log.lists import list_logs

    found = []
    for name in list_logs(client):
        try:
            if read_unlooked(client, name)[0].cluster == cluster:
                found.append(name)
        except NoSuchLogError:  # deleted since it was listed
            continue
        except MetadataFormatError as error:
            click.echo(str(error), err=True)
    return found


@log.command("forget")
@click.argument("name", type=LOG)
@click.option("--cluster", required=True, help="The cluster that the list names, which is gone for good.")
@cluster_options
def forget(name: str, cluster: str, uri: str, protocol: str, as_json: bool) -> None:
    """Remove the list of a log whose cluster is gone for good, such as one that was initialised anew. No ledger is touched.

    --json: log, cluster, forgotten.
    """
    from bk_core.client.log.orphans import forget_log

    with connected(uri, protocol) as client:
        forget_log(client, name, cluster=cluster)
    if as_json:
        say_json({"log": name, "cluster": cluster, "forgotten": True})
    else:
        click.echo(f"log {name} of cluster {cluster} is forgotten")
