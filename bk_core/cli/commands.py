"""All commands under ``bk``, and what becomes of their errors."""

from __future__ import annotations

import logging
import sys

import click
from click.shell_completion import get_completion_class

import bk_core
from bk_core.cli import statuses
from bk_core.cli.autorecovery import autorecovery
from bk_core.cli.bench import bench
from bk_core.cli.bookies import bookie
from bk_core.cli.checkpoints import checkpoint
from bk_core.cli.clusters import cluster
from bk_core.cli.ledgers import ledger
from bk_core.cli.live_page import live_page
from bk_core.cli.local import local
from bk_core.cli.logs import log
from bk_core.cli.queries import query
from bk_core.cli.replication import check, repair
from bk_core.cli.terminal import safe_streams, telling_of_waits
from bk_core.cli.top import top
from bk_core.cli.traces import trace
from bk_core.cli.transfers import copy_ledger, export_ledger, export_log, import_ledger, import_log
from bk_core.cli.usage import with_its_place
from bk_core.cli.xrays import verify_log, xray
from bk_core.errors import BkError
from bk_core.log_lines import shown

_SENTENCE_MAX = 1000  # characters


def _say_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"bk, version {bk_core.__version__}")
        context.exit()


# Click drops escape sequences where there is no terminal unless colours are asked for, and nobody would see that a name has some:
# ``safe_streams`` spells them out. Nothing here asks Click for a colour.
@click.group(context_settings={"color": True, "help_option_names": ["-h", "--help"], "max_content_width": 110}, epilog=statuses.told())
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_say_version, help="Show the version and exit.")
@click.option("-v", "--verbose", count=True, help="Show what the client logs, on standard error; -vv shows details.")
@click.pass_context
def cli(context: click.Context, verbose: int) -> None:
    """Ledgers, logs and local clusters of Apache BookKeeper.

    Every command that talks to a cluster takes --uri, or reads BOOKKEEPER_METADATA_SERVICE_URI, and --json for scripts.

    Looking never fences a ledger. These end a living writer: `bk ledger recover`, --recover-open of repairs, --take-over of `bk log append`
    and `bk log import`, `bk log rm`, and --even-if-alive of `bk log release` and `bk checkpoint rm|gc|import`. Without those, `bk log
    release` and `gc` of logs and checkpoints close the ledgers of writers that are gone.
    """
    if verbose:
        context.with_resource(shown("INFO" if verbose == 1 else "DEBUG"))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script by which a shell completes commands and options of bk.

    \b
    bash: eval "$(bk completion bash)" in ~/.bashrc
    zsh:  eval "$(bk completion zsh)" in ~/.zshrc, after compinit
    fish: bk completion fish > ~/.config/fish/completions/bk.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "bk", "_BK_COMPLETE").source())


for _one in (check, repair, xray, copy_ledger, export_ledger, import_ledger):
    ledger.add_command(_one)
for _one in (export_log, import_log, verify_log):
    log.add_command(_one)
for _one in (cluster, ledger, bookie, log, query, checkpoint, autorecovery, bench, top, trace, local, live_page, completion):
    cli.add_command(_one)


def _say_whole(command: click.Command) -> None:
    """Have lists of commands say the whole first sentence of each, in as many lines as it takes: Click cuts it off."""
    command.short_help = command.get_short_help_str(_SENTENCE_MAX)
    for one in command.commands.values() if isinstance(command, click.Group) else ():
        _say_whole(one)


_say_whole(cli)


def run(arguments: list[str] | None = None) -> int:
    """Run one command line, by default this process's, and return its status, one of ``statuses.STATUSES``."""
    with safe_streams():
        try:
            return statuses.flushed(_run(arguments))
        except BrokenPipeError:  # of standard error, while an error was printed
            return statuses.unread()


def _run(arguments: list[str] | None) -> int:
    # kazoo's lines about lost connections would stand between those of a table; what matters arrives as an error
    logging.getLogger("kazoo").addHandler(logging.NullHandler())
    streams = sys.stdout, sys.stderr
    try:
        with telling_of_waits():
            status = cli.main(args=arguments, prog_name="bk", standalone_mode=False)
        return status if isinstance(status, int) else statuses.DONE
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):
            error = with_its_place(error, sys.argv[1:] if arguments is None else arguments)
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as error:
        return _stopped(error)
    except BkError as error:
        _tell(f"error: {error}")
        return statuses.FAILED
    except SystemExit as end:  # what Click and Rich make of a pipe that nobody reads; Click puts other streams there before
        if isinstance(end.__context__, BrokenPipeError) or sys.stdout is not streams[0]:
            sys.stdout, sys.stderr = streams
            return statuses.unread()
        raise
    except BrokenPipeError:
        raise
    except OSError as error:
        _tell(f"error: {statuses.problem_of(error)}")
        return statuses.FAILED


def _tell(what: str) -> None:
    """Print a line on standard error, after the end of a command's context."""
    click.echo(what, err=True, color=True)


def _stopped(error: BaseException) -> int:
    """Say how a command was stopped, and return its status: by SIGTERM, by Ctrl-C, or by a question that was not answered with yes."""
    if any(isinstance(one, statuses.TerminatedError) for one in (error, error.__context__)):
        click.echo("terminated", err=True)
        return statuses.TERMINATED
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return statuses.INTERRUPTED
    if isinstance(error.__context__, EOFError):
        click.echo("\nnot confirmed, nothing more was done: the input ended before an answer; give --yes", err=True)
    else:
        click.echo("not confirmed, nothing more was done", err=True)
    return statuses.FAILED
