"""Bars on standard error that show how far a command is. They are shown on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from bk_core.cli.terminal import inner
from bk_core.display.words import counted, rounded_size

if TYPE_CHECKING:
    from bk_core.client.repair import report

_Item = TypeVar("_Item")


def progress_bar(*columns: ProgressColumn, disable: bool = False) -> Progress:
    """Return a bar on standard error. What is printed meanwhile does not pass it."""
    to = Console(file=inner(sys.stderr))
    return Progress(*columns, console=to, transient=True, disable=disable, redirect_stdout=False, redirect_stderr=False)


def with_progress(items: Sequence[_Item], text: str) -> Iterator[_Item]:
    """Yield the items, and show a bar on standard error if that is a terminal and there are many."""
    if len(items) < 50 or not sys.stderr.isatty():
        yield from items
        return
    with progress_bar(TextColumn(text), BarColumn(), MofNCompleteColumn(), RateColumn(), TimeRemainingColumn()) as progress:
        yield from progress.track(items)


class RateColumn(ProgressColumn):
    """Shows the number of items a second, of late."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.1f}/s")


@contextmanager
def watched() -> Iterator[report.OnProgress]:
    """Show on standard error what is being read or copied of a ledger, if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"), RateColumn())
    with progress_bar(*columns, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=None, done="")

        def show(progress: report.Progress) -> None:
            done = f"{counted(progress.entries, 'entry', 'entries')}, {rounded_size(progress.bytes)}"
            text = f"ledger {progress.ledger_id}: {progress.step}"
            bar.update(task, description=text, total=progress.entries_total, completed=progress.entries, done=done)

        yield show
