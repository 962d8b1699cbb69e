"""``bk log append`` and ``bk log tail``: entries in and out of a log, and rows out of it."""

from __future__ import annotations

import base64
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from rich.progress import TextColumn

from bk_core.arguments import brief
from bk_core.cli.given import LOG
from bk_core.cli.log_rows import followed, read_rows, say_rows
from bk_core.cli.output import check_raw, cluster_options, connected, password_option, say_json
from bk_core.cli.progress import RateColumn, progress_bar
from bk_core.cli.unread import ended_unread
from bk_core.display.words import counted, preview, rounded_size
from bk_core.errors import InvalidArgumentError, LogFormatError, NoSuchLogError, NoSuchLogRootError, OperationTimeoutError

if TYPE_CHECKING:
    from bk_core.client import BookKeeper
    from bk_core.client.log.reader import LogEntries, LogReader
    from bk_core.client.log.writer import LogSpan, LogWriter
    from bk_core.protocol.log.position import Position
    from bk_core.protocol.log.view import LogView

_CHUNK_BYTES = 1 << 18
_LINE_BYTES_MAX = 64 << 20
_DIGITS_MAX = 19  # of a segment or an entry
_RUNS_MAX = 64  # on their way at a time
_LAST = 10  # rows or entries that tail shows


# --- append --------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("name", type=LOG)
@click.option("--take-over", is_flag=True, help="Fence whoever writes the log now. One that is certainly gone is fenced without it.")
@click.option("--take-over-queries", is_flag=True, help="Stop the queries of Spark that write the log.")
@password_option
@cluster_options
def append(name: str, take_over: bool, take_over_queries: bool, password: str, uri: str, protocol: str, as_json: bool) -> None:
    """Append each line of standard input to a log as an entry, without its newline. It writes exclusively until the input ends.

    It begins with the first line: an input without lines ends no other writer, and leaves no segment. It prints where the entries are once
    all are acknowledged.

    --json: log, entries, bytes, first, last (seq and entry of each; null without entries).
    """
    from bk_core.client.guards import admit_writer
    from bk_core.client.log.list_store import read_ledger_list
    from bk_core.protocol.log.exclusive import Insisted

    with connected(uri, protocol) as client:
        with _told_for_lines(name):
            log = client.log(name, password=password.encode())
            admit_writer(client, name, read_ledger_list(client, name), Insisted(take_over_queries=take_over_queries))
        lines = _lines(sys.stdin.buffer)
        begun = next(lines, None)
        sent = None
        if begun is not None:
            with _told_for_lines(name):
                opened = log.writer(take_over=take_over, take_over_queries=take_over_queries)
            with opened as writer, _watched() as show:
                sent = _Sent(writer, client.config.operation_timeout_s)
                for some in chain([begun], lines):
                    sent.send(some)
                    show(sent)
                sent.wait_for(0)
    first, last = (None, None) if sent is None else (sent.first, sent.last)
    if as_json:
        ends = (None if first is None else first.first_position, None if last is None else last.last_position)
        entries, size = (0, 0) if sent is None else (sent.entries, sent.bytes)
        say_json({"log": name, "entries": entries, "bytes": size, "first": _place(ends[0]), "last": _place(ends[1])})
    elif sent is not None and first is not None and last is not None:
        where = f"{first.seq}:{first.first_entry_id} .. {last.seq}:{last.last_entry_id}"
        click.echo(f"{counted(sent.entries, 'entry', 'entries')}, {counted(sent.bytes, 'byte')}, at {where}")
    else:
        click.echo("no entries")


@contextmanager
def _told_for_lines(name: str) -> Iterator[None]:
    """Have the error for a log that takes no lines, or is not there, name the command that makes one for lines."""
    try:
        yield
    except LogFormatError:
        message = (
            f"log {name!r} is for Arrow record batches, as Spark writes them (the default of bk log create); lines of text would make it "
            "unreadable. Make a log for them: bk log create NAME --entry-format raw"
        )
        raise LogFormatError(message, log=name) from None
    except NoSuchLogRootError:
        raise
    except NoSuchLogError as error:
        message = f"{error.args[0]}{'' if error.asks else ';'} `bk log create {name} --entry-format raw` makes a log for lines"
        raise NoSuchLogError(message, log=name) from None


def _place(position: Position | None) -> dict[str, int] | None:
    return None if position is None else {"seq": position.seq, "entry": position.entry}


class _Sent:
    """Sends lines to a log, some runs at a time, and counts them. ``first`` and ``last`` are the ends of what was acknowledged.

    Raises OperationTimeoutError when no run is acknowledged for ``timeout_s`` seconds.
    """

    def __init__(self, writer: LogWriter, timeout_s: float) -> None:
        self._writer, self._timeout_s = writer, timeout_s
        self.entries = 0
        self.bytes = 0
        self.first: LogSpan | None = None
        self.last: LogSpan | None = None
        self._futures: deque[Future[tuple[LogSpan, ...]]] = deque()

    def send(self, lines: list[bytes]) -> None:
        offsets = array("q", [0])
        for line in lines:
            offsets.append(offsets[-1] + len(line))
        self._futures.append(self._writer.append_run_future(b"".join(lines), offsets))
        self.entries += len(lines)
        self.bytes += offsets[-1]
        self.wait_for(_RUNS_MAX)

    def wait_for(self, left: int) -> None:
        while len(self._futures) > left:
            spans = self._outcome(self._futures.popleft())
            self.first, self.last = self.first or spans[0], spans[-1]

    def _outcome(self, run: Future[tuple[LogSpan, ...]]) -> tuple[LogSpan, ...]:
        try:
            return run.result(self._timeout_s)
        except TimeoutError:
            if run.done():
                raise
            log, last, problem = self._writer.name, self.last, self._writer.problem
            known = "none was before" if last is None else f"the last acknowledged entry is {last.seq}:{last.last_entry_id}"
            why = f": {problem}" if problem else ""
            message = f"log {log!r}: no line was acknowledged for {self._timeout_s:g} s ({known}; later lines may be in the log){why}"
            raise OperationTimeoutError(message, log=log) from problem


@contextmanager
def _watched() -> Iterator[Callable[[_Sent], None]]:
    """Show how much was sent on standard error, if that is a terminal and the lines are not typed there."""
    columns = (TextColumn("appending"), TextColumn("{task.fields[done]}"), RateColumn())
    with progress_bar(*columns, disable=sys.stdin.isatty() or not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=None, done="")

        def show(sent: _Sent) -> None:
            done = f"{counted(sent.entries, 'entry', 'entries')}, {rounded_size(sent.bytes)}"
            bar.update(task, completed=sent.entries, done=done)

        yield show


def _lines(source: BinaryIO) -> Iterator[list[bytes]]:
    """Yield the lines that are there, as soon as they are: an input that pauses holds back nothing but its last, unfinished line."""
    rest = b""
    while chunk := source.read1(_CHUNK_BYTES):  # type: ignore[attr-defined]
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
        if len(rest) > _LINE_BYTES_MAX:
            break  # the writer says what is wrong with it
    if rest:
        yield [rest]


# --- tail ----------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("name", type=LOG)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option(
    "-n", "--lines", "count", type=click.IntRange(min=0), help="How many of the last rows or entries: 10, and with --from no bound."
)
@click.option("--from", "start", metavar="SEQ[:ENTRY]|first|end", help="Start there instead of at the last rows or entries.")
@click.option("--columns", metavar="NAME,...", help="Show only these columns of the rows, in this order.")
@click.option("--entries", is_flag=True, help="Show entries in place of rows: where each is, its size and its beginning.")
@click.option("--raw", is_flag=True, help="Print payloads of entries only, each followed by a newline.")
@password_option
@cluster_options
@ended_unread()
def tail(
    name: str,
    follow: bool,
    count: int | None,
    start: str | None,
    columns: str | None,
    entries: bool,
    raw: bool,
    password: str,
    uri: str,
    protocol: str,
    as_json: bool,
) -> None:
    """Print the rows or entries of a log, the last ones by default. It never fences: a writer is not disturbed.

    A log of Arrow entries, such as Spark writes, is shown as rows, which needs pyarrow; with --entries, and any raw log, as entries.

    --json: for an entry: seq, entry, ledger, bytes, payload (base64). A row is an object of its columns: times are ISO texts, durations
    seconds, decimals and NaN texts, bytes base64.
    """
    from bk_core.client.log.history import read_log
    from bk_core.client.log.newest import last_entries, last_rows
    from bk_core.client.log.reader import LogReader

    check_raw(raw, as_json)
    if start is not None and count is not None:
        raise click.UsageError("-n counts the last rows or entries, and --from says where to begin: leave one of them out")
    secret = password.encode()
    with connected(uri, protocol) as client:
        view = read_log(client, name)
        rows = view.properties.entry_format == "arrow" and not (entries or raw)
        if columns is not None and not rows:
            raise click.UsageError("--columns is for rows: not with --entries or --raw, and not for a raw log")
        if start is not None:
            where = _position(view, start, client, secret)
        else:
            count = _LAST if count is None else count
            where = last_rows(client, view, count, secret) if rows else last_entries(client, view, count, secret)
        if rows:
            wanted = None if columns is None else columns.split(",")
            if follow:
                say_rows(followed(client, name, secret, wanted, where), as_json)
            else:
                say_rows(read_rows(client, name, secret, wanted, where), as_json, last=count if start is None else None)
            return
        with LogReader(client, name, start=where, password=secret) as reader:
            for run in _runs(reader, follow):
                _say_run(run, raw, as_json)
                sys.stdout.flush()


def _runs(reader: LogReader, follow: bool) -> Iterator[LogEntries]:
    return reader.follow() if follow else reader.read()


def _position(view: LogView, text: str, client: BookKeeper, password: bytes) -> Position:
    from bk_core.client.log.newest import last_entries
    from bk_core.protocol.log.position import Position

    if text == "first":
        return view.first_position
    if text == "end":
        return last_entries(client, view, 0, password)
    seq, colon, entry = text.partition(":")
    if not all(part.isdecimal() and len(part) <= _DIGITS_MAX for part in ((seq, entry) if colon else (seq,))):
        raise click.BadParameter(f"{brief(text)} is neither SEQ, SEQ:ENTRY, first nor end", param_hint="--from")
    wanted, end = Position(int(seq), int(entry or 0)), last_entries(client, view, 0, password)
    if (wanted.seq, wanted.entry) > (end.seq, end.entry):
        raise InvalidArgumentError(f"--from {text} lies beyond the end of the log, which is {end.seq}:{end.entry} now")
    if view.listed.trimmed_seq <= wanted.seq < view.next_seq:
        last = view.segment(wanted.seq).last_entry_id
        if last is not None and wanted.entry > last + 1:
            raise InvalidArgumentError(f"--from {text} lies beyond the end of segment {wanted.seq}, whose last entry is {last}")
    return wanted


def _say_run(run: LogEntries, raw: bool, as_json: bool) -> None:
    for index, payload in enumerate(run.payloads()):
        entry = run.first_entry_id + index
        if raw:
            sys.stdout.buffer.write(payload + b"\n")
        elif as_json:
            say_json(_entry(run, entry, payload))
        else:
            click.echo(f"{f'{run.segment.seq}:{entry}':>14}  {len(payload):>10,} B  {preview(payload)}")


def _entry(run: LogEntries, entry: int, payload: bytes) -> dict[str, Any]:
    return {
        "seq": run.segment.seq,
        "entry": entry,
        "ledger": run.segment.ledger_id,
        "bytes": len(payload),
        "payload": base64.b64encode(payload).decode(),
    }
