"""``bk checkpoint export`` and ``import``: whole checkpoints between file stores and folders of this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

from bk_core.cli.checkpoint_words import in_words, store_and_path, viewed, whole_store
from bk_core.cli.given import STORE, STORE_PATH
from bk_core.cli.output import cluster_options, connected, password_option, say_json
from bk_core.cli.progress import progress_bar
from bk_core.cli.statuses import terminated_in_order
from bk_core.client.checkpoints.folders import Copied, check_free, export_files, import_files, is_free_for, of_folder, scan
from bk_core.display.words import counted

_BAR_BYTES = 4 << 20
_BAR_FILES = 50


def _told(done: Copied) -> str:
    return f"{counted(done.files, 'file')}, {counted(done.bytes, 'byte')}"


@contextmanager
def _watched(files: int, size: int) -> Iterator[Callable[[int], object]]:
    """Show a bar on standard error, if that is a terminal and there is much to do."""
    shown = _is_terminal() and (size >= _BAR_BYTES or files >= _BAR_FILES)
    with progress_bar(TextColumn("copying"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), disable=not shown) as progress:
        task = progress.add_task("copying", total=size)
        yield lambda done: progress.update(task, advance=done)


def _is_terminal() -> bool:
    return sys.stderr.isatty()


# --- out -----------------------------------------------------------------------------------------------------------------


@click.command("export")
@click.argument("name", metavar="NAME[/PATH]", type=STORE_PATH)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@password_option
@cluster_options
def copy_out(name: str, directory: Path, password: str, uri: str, protocol: str, as_json: bool) -> None:
    """Copy a checkpoint into DIR, which must not exist or be empty. Every file is read back and compared.

    The copy is of one moment of the checkpoint, also while its query runs. DIR appears when all of it is there.
    An export that is killed by SIGKILL leaves a hidden folder `.DIR.<32 hex digits>.partial` beside it, which you may delete.

    --json: checkpoint, directory, files, bytes.
    """
    directory, (store, path) = directory.absolute(), store_and_path(name)
    with of_folder(directory, "cannot be written, so nothing was copied"):
        check_free(directory)
        with terminated_in_order(), connected(uri, protocol) as client, viewed(client, store, password) as view:
            done = export_files(view, path, directory, _watched)
    if as_json:
        say_json({"checkpoint": name, "directory": str(directory), "files": done.files, "bytes": done.bytes})
    else:
        click.echo(f"checkpoint {name}: {_told(done)} copied to {directory}")


# --- in ------------------------------------------------------------------------------------------------------------------


@click.command("import")
@click.argument("name", type=STORE)
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="A checkpoint of this name may be there: its files go when the new ones are there.")
@click.option("--yes", is_flag=True, help="With --replace: do not ask.")
@click.option("--even-if-alive", is_flag=True, help="Fence the owner although it is open somewhere, or may be.")
@password_option
@cluster_options
def copy_in(
    name: str,
    directory: Path,
    replace: bool,
    yes: bool,
    even_if_alive: bool,
    password: str,
    uri: str,
    protocol: str,
    as_json: bool,
) -> None:
    """Copy the checkpoint in DIR into a new file store. Every file is read back and compared.

    The query of the checkpoint must not run meanwhile. The import leaves out the check sums of Hadoop's local file system (.NAME.crc),
    and `.importing-<32 hex digits>` in DIR, which a killed import had left in a store that DIR was copied from.
    All files come in by one change, when every one is there: if the import fails, is interrupted or killed, the checkpoint has the files
    that it had before. What a killed import has left goes with the next one, with the next start of the query, or with `bk checkpoint
    gc`. All files get the time of the import, which `bk checkpoint show` shows as the time of earlier commits.

    --json: checkpoint, files, bytes, dropped (check sums that were left out), replaced.
    """
    name = whole_store(name, "import")
    unreadable = "cannot be read, so nothing was changed"
    with of_folder(directory, unreadable):
        plan = scan(directory)
    for left in plan.unfinished:
        told = "a killed import had left it there, and it is no part of the checkpoint"
        click.echo(f"checkpoint {name}: {directory / left} is left out: {told}", err=True)
    with terminated_in_order(), connected(uri, protocol) as client, in_words(name, password), of_folder(directory, unreadable):
        existed = is_free_for(client, name, password.encode(), replace=replace, even_if_alive=even_if_alive)
        if existed and replace and not yes:
            click.confirm(f"replace all files of checkpoint {name}?", abort=True, err=True)
        done = import_files(
            client,
            name,
            plan,
            password.encode(),
            existed=existed,
            replace=replace,
            even_if_alive=even_if_alive,
            watched=_watched,
            on_interrupt=partial(click.echo, err=True),
        )
    if as_json:
        say_json({"checkpoint": name, "files": done.files, "bytes": done.bytes, "dropped": done.dropped, "replaced": existed and replace})
    else:
        left_out = f" ({counted(done.dropped, 'check sum')} left out)" if done.dropped else ""
        click.echo(f"checkpoint {name}: {_told(done)} copied from {directory}{left_out}")
