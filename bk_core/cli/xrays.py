"""``bk ledger xray`` and ``bk log verify``: which bookie has which copy of which entry."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from bk_core.arguments import check_reached
from bk_core.cli.given import LEDGER, LOG
from bk_core.cli.output import (
    access_options,
    bytes_per_second,
    check_range,
    cluster_options,
    connected,
    console,
    password_option,
    rate_option,
    say_found,
    say_json,
    say_table,
)
from bk_core.cli.progress import watched
from bk_core.cli.terminal import inner
from bk_core.display import logs
from bk_core.display import xray as display
from bk_core.display.words import safe

if TYPE_CHECKING:
    from bk_core.client.xray import Xray

_WIDTH_MIN, _WIDTH_MAX = 16, 200


@click.command("xray")
@click.argument("ledger_id", type=LEDGER)
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="First entry id.")
@click.option("--last", type=click.IntRange(min=0), help="Last entry id; without it, up to the end.")
@click.option("--full", is_flag=True, help="Read every copy and check its digest, also where a bookie lists what it has.")
@click.option("--width", type=click.IntRange(min=1, max=_WIDTH_MAX), help="Columns of the map; by default those of the terminal.")
@rate_option
@access_options
@cluster_options
def xray(
    ledger_id: int,
    first: int,
    last: int | None,
    full: bool,
    width: int | None,
    rate: float | None,
    password: str,
    digest: str | None,
    uri: str,
    protocol: str,
    as_json: bool,
) -> int:
    """Draw a map of the copies of a ledger's entries: there, missing or wrong, on each bookie. Exit status 1 if one is in need of repair.

    It only reads and never fences: a writer is not disturbed. A bookie that lists its entries is asked for the list, and the first and last
    copy of it is read; of other bookies, and with --full of all, every copy is read. What is missing in the fragment that is being written
    is shown and is no problem: its writer may still send it. --password and --digest are used where the metadata stores none.

    --json: ledger, good, state, first, last, lac, full, copies, bytesRead, seconds, counts, digestNote, bookies, replicas; the page Looking
    inside says what is in them.
    """
    check_range(first, last)
    access: dict[str, Any] = {"password": password.encode() or None, "digest_type": digest}
    with connected(uri, protocol) as client, watched() as show:
        found = client.xray(
            ledger_id, first=first, last=last, full=full, bytes_per_second=bytes_per_second(rate), on_progress=show, **access
        )
    check_reached(ledger_id, first, found.last)
    if as_json:
        say_json(display.facts(found))
    else:
        _say(found, width)
    return 0 if found.is_good else 1


@click.command("verify")
@click.argument("name", type=LOG)
@rate_option
@password_option
@cluster_options
def verify_log(name: str, rate: float | None, password: str, uri: str, protocol: str, as_json: bool) -> int:
    """Read every copy of every entry that a log lists, and check its digest. Exit status 1 if one is in need of repair,
    or unknown because bookies do not admit this client.

    First the list is checked, as by `bk log check`. Then each ledger that it names, history included, is x-rayed: entries that no segment
    has are left out. It only reads, and never fences. `bk ledger repair` mends what is found.

    --json: log, good, ledgers, copies, bytesRead, damaged, unknown, listProblems, damages; the page Looking inside says what is in them.
    """
    from bk_core.client.log.verify import verify_log as verify

    with connected(uri, protocol) as client, watched() as show:
        found = verify(client, name, password=password.encode(), bytes_per_second=bytes_per_second(rate), on_progress=show)
    if as_json:
        say_json(display.verified_facts(found))
    else:
        if found.check.problems:
            say_found(logs.problems((name, problem) for problem in found.check.problems))
        say_found(display.damages(found.damages))
        click.echo(display.verified(found))
    return 0 if found.is_good else 1


def _say(found: Xray, width: int | None) -> None:
    say_map(found, width)
    say_table(*display.bookies(found))
    click.echo()
    say_found(display.problems(found))
    for note in display.notes(found):
        click.echo(note)
    click.echo(display.verdict(found))


def say_map(found: Xray, width: int | None) -> None:
    """Print the map of an x-ray with its scale and legend. It says the same without colours, and has ASCII where there is no Unicode."""
    to = console()
    names = max((len(safe(bookie.bookie, kept="")) for bookie in found.bookies), default=0)
    columns = width or max(_WIDTH_MIN, min(_WIDTH_MAX, to.width - names - 2))
    rows = display.map_rows(found, columns)
    if not rows:
        click.echo(display.per_column(found, columns))
        click.echo()
        return
    plain = not _has_unicode()
    click.echo(f"{'':{names}}  {display.scale(found, columns)}")
    for row in rows:
        line = Text(f"{safe(row.bookie, kept=''):{names}}  ", no_wrap=True, overflow="crop")  # Rich takes controls as they are
        for mark in row.marks:
            line.append(mark.plain if plain else mark.mark, style=mark.style)
        to.print(line, soft_wrap=True)
    _say_legend(display.legend(rows), plain, to)
    click.echo(display.per_column(found, columns))
    click.echo()


def _say_legend(marks: Sequence[display.Mark], plain: bool, to: Console) -> None:
    """Print the marks with their words, as many as fit into a line."""
    key = Text()
    for mark in marks:
        if key and len(key) + len(mark.words) + 5 > to.width:
            to.print(key)
            key = Text()
        key.append("   " if key else "")
        key.append(mark.plain if plain else mark.mark, style=mark.style)
        key.append(f" {mark.words}")
    to.print(key)


def _has_unicode() -> bool:
    encoding = getattr(inner(sys.stdout), "encoding", None) or "ascii"
    return encoding.lower() in ("utf-8", "utf8")
