"""``bk log check``, ``repair``, ``release`` and ``marks``: what a log lists and what has become of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bk_core.cli.checkpoint_words import PASSWORD_GIVEN_BY
from bk_core.cli.given import LOG
from bk_core.cli.output import cluster_options, connected, password_option, say_json, say_table
from bk_core.cli.progress import with_progress
from bk_core.cli.units import Duration
from bk_core.display import logs as display
from bk_core.display.ledgers import named_ledgers
from bk_core.display.words import counted, when
from bk_core.errors import LogError, MetadataFormatError, NoSuchLogError, WrongClusterError

if TYPE_CHECKING:
    pass


@click.command("check")
@click.argument("name", required=False, type=LOG)
@click.option("--all", "everything", is_flag=True, help="Every log of the cluster.")
@password_option
@cluster_options
def check(name: str | None, everything: bool, password: str, uri: str, protocol: str, as_json: bool) -> int:
    """Check that everything exists that a log lists, history included. Exit status 1 if not. It only reads, and never fences.

    Each ledger that the log names must exist, carry its name, reach as far as the log says, and give its first and last listed entry.

    With --all, logs with another password than the given one are not looked at, and named on standard error.

    --json: log, segments, ledgers, good, problems (log, problem, ledger, firstSeq, lastSeq, rows, bytes, what).
    """
    from bk_core.client.log.check import check_log
    from bk_core.client.log.lists import list_logs

    if (name is None) is not everything:
        raise click.UsageError("give the name of one log, or --all")
    checks, unreadable, locked = [], 0, 0
    with connected(uri, protocol) as client:
        for one in with_progress(list_logs(client) if name is None else [name], "checking logs"):
            try:
                found = check_log(client, one, password=password.encode())
                if everything and found.is_locked:
                    locked += 1
                    why = "the password given is not its own" if password else f"it has a password ({PASSWORD_GIVEN_BY})"
                    click.echo(f"log {one} is not looked at: {why}", err=True)
                else:
                    checks.append(found)
            except NoSuchLogError:  # deleted since it was listed
                if name is not None:
                    raise
            except (WrongClusterError, MetadataFormatError) as error:  # one bad list among them hides no other
                if name is not None:
                    raise
                unreadable += 1
                click.echo(str(error), err=True)
    bad = [found for found in checks if not found.is_good]
    if as_json:
        for found in checks:
            problems = [display.problem_facts(found.log, problem) for problem in found.problems]
            say_json({"log": found.log, "segments": found.segments, "ledgers": found.ledgers, "good": found.is_good, "problems": problems})
        return 1 if bad or unreadable else 0
    if bad:
        say_table(*display.problems((found.log, problem) for found in bad for problem in found.problems))
    ledgers = sum(found.ledgers for found in checks)
    left = f", {locked:,} not looked at" if locked else ""
    click.echo(f"{counted(len(checks), 'log')} with {counted(ledgers, 'ledger')} checked: {len(bad) + unreadable:,} with problems{left}")
    return 1 if bad or unreadable else 0


@click.command("repair")
@click.argument("name", type=LOG)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--even-if-files", is_flag=True, help="Repair the log of a file store (a checkpoint), too, which shows older files then, or none."
)
@password_option
@cluster_options
def repair(name: str, yes: bool, even_if_files: bool, password: str, uri: str, protocol: str, as_json: bool) -> None:
    """Write off ledgers that a log lists and that do not exist any more, so that it can be written and read again.

    It says what is lost and asks. The segments of these ledgers become empty; everything else stays. A ledger that exists and cannot be
    read now is left alone.

    --json: log, lost (as the problems of `bk log check`).
    """
    from bk_core.client.log.check import check_log, check_repairs_files, repair_log

    with connected(uri, protocol) as client:
        lost = [one for one in check_log(client, name, read=False).problems if one.kind == "missing"]
        if lost:
            check_repairs_files(name, even_if_files)
        if lost and not yes:
            say_table(*display.problems((name, problem) for problem in lost))
            rows, size = sum(problem.rows for problem in lost), sum(problem.bytes for problem in lost)
            what = f"{counted(len(lost), 'ledger')} of log {name} with {counted(rows, 'listed row')}, {counted(size, 'byte')}"
            click.confirm(f"write off {what}, for good?", abort=True, err=True)
        done = repair_log(client, name, password=password.encode(), even_if_files=even_if_files) if lost else ()
    if as_json:
        say_json({"log": name, "lost": [display.problem_facts(name, problem) for problem in done]})
        return
    for problem in done:
        gone = f"{counted(problem.rows, 'row')}, {counted(problem.bytes, 'byte')} lost"
        click.echo(f"segments {problem.first_seq}..{problem.last_seq}: {gone}: {problem.what}")
    click.echo(f"log {name} repaired" if done else f"log {name}: every ledger that it names exists; nothing to repair")


@click.command("release")
@click.argument("name", type=LOG)
@click.option("--even-if-alive", is_flag=True, help="Fence the writer although it is seen running on this host.")
@password_option
@cluster_options
def release(name: str, even_if_alive: bool, password: str, uri: str, protocol: str, as_json: bool) -> None:
    """Recover and close what an exclusive writer that died has left open, so that queries can write the log again.

    --json: log, closed (ledgers).
    """
    from bk_core.client.log.check import release_log

    with connected(uri, protocol) as client:
        closed = release_log(client, name, password=password.encode(), even_if_alive=even_if_alive)
    if as_json:
        say_json({"log": name, "closed": list(closed)})
    elif closed:
        click.echo(f"log {name} released: closed {named_ledgers(closed)}")
    else:
        click.echo(f"log {name} has no live segment")


@click.command("marks")
@click.argument("name", type=LOG)
@click.option("--forget", "ids", multiple=True, metavar="ID", help="Drop the mark of a query or transaction that is gone; may be repeated.")
@click.option("--forget-older-than", "age_ms", type=Duration(), help="Drop marks of what has not committed for so long, such as 30d.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_options
def marks(name: str, ids: tuple[str, ...], age_ms: int | None, yes: bool, uri: str, protocol: str, as_json: bool) -> None:
    """Show the last batch of every query and transaction that committed to a log, or forget some: such a query ends at its next batch.

    --json: query, batch, committedAtMs, rows, bytes; with --forget and --forget-older-than log, forgotten.
    """
    from bk_core.client.log.check import forget_marks
    from bk_core.client.log.list_store import read_ledger_list

    with connected(uri, protocol) as client:
        committed = read_ledger_list(client, name).committed
        if ids or age_ms is not None:
            unknown = sorted(set(ids) - set(committed))
            if unknown:
                raise LogError(f"log {name!r} has no mark of {', '.join(unknown)}", log=name)
            if not yes:
                click.confirm(
                    "a query that is forgotten ends at its next batch, or may write its last one twice; forget?",
                    abort=True,
                    err=True,
                )
            gone = forget_marks(client, name, ids, older_than_ms=age_ms)
            if as_json:
                say_json({"log": name, "forgotten": list(gone)})
            else:
                click.echo(f"log {name}: {counted(len(gone), 'mark')} forgotten, {len(committed) - len(gone):,} left")
            return
    if as_json:
        for query, mark in sorted(committed.items()):
            say_json({"query": query, "batch": mark.batch_id, "committedAtMs": mark.at_ms or None, "rows": mark.rows, "bytes": mark.bytes})
        return
    rows = [
        (query, str(mark.batch_id), when(mark.at_ms) if mark.at_ms else None, mark.rows, mark.bytes)
        for query, mark in sorted(committed.items())
    ]
    say_table(["query", "#last batch", "committed (UTC)", "#rows", "#bytes"], rows)
    click.echo(counted(len(committed), "mark"))
