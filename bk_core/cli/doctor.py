"""``bk cluster doctor``: what is wrong with a cluster, and the command that helps with each."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from bk_core.cli.output import cluster_options, connected, console, say_json
from bk_core.cli.progress import RateColumn, progress_bar
from bk_core.cli.units import Duration, Number
from bk_core.display import cluster as display
from bk_core.display.words import safe

if TYPE_CHECKING:
    from bk_core.client.doctor.examine import OnStep
    from bk_core.client.doctor.findings import Diagnosis, Finding

_WIDTH_MAX = 120  # longer lines are hard to read
_INDENT = " " * 9
_LOUD = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}


@click.command("doctor")
@click.option(
    "--stuck-after", "stuck_ms", type=Duration(), default="10m", show_default=True, help="A recovery without progress for so long is stuck."
)
@click.option("--timeout", type=Number(min=0, min_open=True), default=3.0, show_default=True, help="Seconds for each answer of a bookie.")
@click.option("--clock", is_flag=True, help="Also see if this host's clock is ahead, by writing an empty node of the metadata store.")
@click.option(
    "--read-last",
    is_flag=True,
    help="Also read the first and last entry of each replica of all closed ledgers: they may be on no bookie. Minutes for 100,000.",
)
@cluster_options
def doctor(stuck_ms: int, timeout: float, clock: bool, read_last: bool, uri: str, protocol: str, as_json: bool) -> int:
    """Find what is wrong with this cluster, and the command that helps. Exit status 1 for errors and warnings, not for notes.

    It looks at the cluster's nodes, cookies and registrations, asks each bookie, and reads the metadata of all ledgers and the lists of all
    logs. It never fences, and writes nothing but the node of --clock.

    error: entries cannot be read or written now, or are lost. warning: do something, or it becomes an error. note: good to know.

    --json: a line for each finding: code, severity, what, count, bookies, ledgers, logs (the first 20 of each), advice, command. The last
    line has cluster, good, errors, warnings, notes, bookies (total, writable, readOnly, down), ledgers (total, open, inRecovery,
    closed, unreadable), logs, tookMs, unchecked.
    """
    with connected(uri, protocol) as client, _watched() as on_step:
        found = client.doctor(stuck_s=stuck_ms / 1000, timeout_s=timeout, clock=clock, read_last=read_last, on_step=on_step)
    if as_json:
        _say_json(found)
    else:
        out = console()
        for finding in found.findings:
            _say(finding, out)
        for left in found.unchecked:
            click.echo(f"not looked at: {left}")
        click.echo(f"{display.verdict(found)} ({found.took_s:.1f} s)")
    return 0 if found.is_good else 1


def _say(finding: Finding, out: Console) -> None:
    width = min(out.width, _WIDTH_MAX)
    first, *more = _wrapped(f"{finding.code}: {finding.what}", width)
    head = Text(f"{finding.severity.upper():<{len(_INDENT)}}", style=_LOUD[finding.severity])
    out.print(head + first.removeprefix(_INDENT), soft_wrap=True)
    for text in (display.about(finding), finding.advice):
        more += _wrapped(text, width) if text else []
    if finding.command:
        more.append(f"{_INDENT}$ {finding.command}")
    for line in more:
        click.echo(line)
    click.echo()


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(safe(text, kept=""), width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)


def _say_json(found: Diagnosis) -> None:
    for finding in found.findings:
        say_json(display.finding_facts(finding))
    say_json(display.diagnosis_facts(found))


@contextmanager
def _watched() -> Iterator[OnStep]:
    """Show the step that is under way on standard error, if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), RateColumn(), TimeRemainingColumn())
    with progress_bar(*columns, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=None)
        steps: list[str] = [""]

        def show(step: str, done: int, total: int | None) -> None:
            if step != steps[0]:
                steps[0] = step
                bar.reset(task, description=step, total=total)
            bar.update(task, description=step, completed=done, total=total)

        yield show
