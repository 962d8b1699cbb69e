"""``bk top``: a cluster as it lives, until q."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from bk_core.cli.output import cluster_options, connected, console, laid_out, now_ms, say_json
from bk_core.cli.units import Number
from bk_core.cli.unread import ended_unread
from bk_core.display import cluster as display
from bk_core.display.moments import told_utc
from bk_core.display.words import safe
from bk_core.errors import BkError

if TYPE_CHECKING:
    from bk_core.client.doctor.watch import ClusterWatch, Moment

_INTERVAL_S_MIN = 0.5
_LINES_AROUND = 8  # heads of tables, empty lines, the line at the top


@click.command("top")
@click.option("--interval", type=Number(min=_INTERVAL_S_MIN), default=2.0, show_default=True, help="Seconds between two looks.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many looks.")
@cluster_options
@ended_unread()
def top(interval: float, count: int | None, uri: str, protocol: str, as_json: bool) -> None:
    """Watch a cluster: bookies and how fast they answer, ledgers that come and go, logs and how fast they grow. q leaves.

    Without a terminal, it prints a line for each look. A look asks each bookie once over each protocol, reads the lists of the first 200
    logs, and asks for the confirmed end of live ledgers; it fences nothing and writes nothing. Ledgers are listed in at most a tenth of the
    time. A live log that has a password shows what is committed only. Rows and bytes of logs are all that were ever written.

    --json: a line for each look: atMs, cluster, bookies (bookie, state, and the fields of `probe` of `bk bookie show`), ledgers, created,
    closed, deleted (since the first look), logs (log, rows, bytes, rowsPerSecond, bytesPerSecond, writer, writerState), logsTotal.
    """
    from bk_core.client.doctor.watch import ClusterWatch

    with connected(uri, protocol) as client, closing(ClusterWatch(client)) as watch:
        if as_json or not sys.stdout.isatty():
            for moment in _looks(watch, interval, count, _slept):
                _say(moment, as_json)
            return
        with _keys() as pressed, Live(console=console(), screen=True, auto_refresh=False) as live:
            for moment in _looks(watch, interval, count, pressed):
                live.update(_screen(moment, interval, live.console.height), refresh=True)


def _looks(watch: ClusterWatch, interval: float, count: int | None, waited: Callable[[float], bool]) -> Iterator[Moment | BkError]:
    """Yield one look after the other, or the error of one that failed, but not of the first. ``waited`` returns True to end."""
    number = 0
    while True:
        begun = time.monotonic()
        try:
            yield watch.look()
        except BkError as error:
            if not number:
                raise
            yield error
        number += 1
        if number == count or waited(max(0.0, begun + interval - time.monotonic())):
            return


def _slept(seconds: float) -> bool:
    sys.stdout.flush()
    time.sleep(seconds)
    return False


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits so many seconds, and returns True at once if q is pressed. The terminal is put back at the end."""
    if not sys.stdin.isatty():
        yield _slept
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return False
            typed = os.read(descriptor, 64)
            if not typed or b"q" in typed.lower():
                return True

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _screen(moment: Moment | BkError, interval: float, height: int) -> Group | Text:
    if isinstance(moment, BkError):
        return Text(f"{told_utc(now_ms())} UTC: {safe(str(moment))}", style="bold red")
    rooms = max(4, height - _LINES_AROUND)
    bookies = min(len(moment.states), max(2, rooms // 2))
    logs = min(len(moment.logs), rooms - bookies)
    head = Text(f"{told_utc(moment.at_ms)} UTC, every {interval:g} s, q leaves", style="bold")
    parts: list[RenderableType] = [head, Text(display.moment(moment)), Text(), laid_out(*display.top_bookies(moment, bookies))]
    if moment.logs:
        parts += [Text(), laid_out(*display.top_logs(moment, logs))]
    left = {"bookies": len(moment.states) - bookies, "logs": moment.logs_total - logs}
    more = ", ".join(f"{count:,} more {what}" for what, count in left.items() if count)
    return Group(*parts, Text(more))


def _say(moment: Moment | BkError, as_json: bool) -> None:
    if isinstance(moment, BkError):
        click.echo(f"error: {moment}", err=True)
    elif as_json:
        say_json(display.moment_facts(moment))
    else:
        click.echo(f"{told_utc(moment.at_ms)}  {display.moment(moment)}")
