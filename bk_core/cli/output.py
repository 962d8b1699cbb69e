"""The parts that all commands share: the options of a cluster, tables for people, JSON lines for scripts."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import islice
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource
from rich import table as rich_table
from rich.console import Console

from bk_core.cli.terminal import inner, safe_json
from bk_core.cli.units import Number
from bk_core.display.table import Table
from bk_core.display.words import cell, safe
from bk_core.errors import InvalidArgumentError
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.secrets import SecretFile, text_of

if TYPE_CHECKING:
    from bk_core.client import BookKeeper

URI_VARIABLE = "BOOKKEEPER_METADATA_SERVICE_URI"
PASSWORD_VARIABLE = "BOOKKEEPER_LEDGER_PASSWORD"
_PIPE_WIDTH = 160  # columns of a table that does not go to a terminal
_BLOCK = 1000  # rows that are laid out together
_MEGA = 1_000_000
_RATE_MAX = 1e9  # MB a second
_Command = TypeVar("_Command", bound=Callable[..., Any])


def cluster_options(command: _Command) -> _Command:
    """Adds --uri, --protocol and --json."""
    command = click.option("--json", "as_json", is_flag=True, help="One JSON object per line instead of a table.")(command)
    command = click.option("--protocol", type=click.Choice(["v2", "v3"]), default="v2", show_default=True, help="Wire protocol.")(command)
    return click.option(
        "--uri", envvar=URI_VARIABLE, required=True, show_envvar=True, help="Metadata service, such as zk://127.0.0.1:2181/ledgers."
    )(command)


def password_option(command: _Command) -> _Command:
    """Adds --password and --password-file; the file and the variable keep it out of the list of processes."""

    @wraps(command)
    def call(*args: Any, password: str, password_file: str | None, **options: Any) -> Any:
        if password_file is not None:
            if click.get_current_context().get_parameter_source("password") is ParameterSource.COMMANDLINE:
                raise click.UsageError("--password and --password-file exclude each other")
            password = text_of("the password", SecretFile(password_file))
        try:
            password.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"the password of --password or {PASSWORD_VARIABLE} is not UTF-8 text") from None
        return command(*args, password=password, **options)

    wrapped = cast(_Command, call)
    wrapped = click.option("--password-file", type=click.Path(dir_okay=False), help="File with that password; goes before the variable.")(
        wrapped
    )
    return click.option("--password", envvar=PASSWORD_VARIABLE, default="", show_envvar=True, help="Password of the ledger.")(wrapped)


def access_options(command: _Command) -> _Command:
    """Adds --password and --digest."""
    text = "Digest type of the ledger. Old ledgers do not store theirs; without this option CRC32 is assumed for them."
    return password_option(click.option("--digest", type=digest_choice(), help=text)(command))


def digest_choice() -> click.Choice[str]:
    """Return the digest types as the values of an option, in large or small letters."""
    return click.Choice(list(DigestType.__members__), case_sensitive=False)


def rate_option(command: _Command) -> _Command:
    """Adds --rate, in MB a second; ``bytes_per_second`` makes bytes of it."""
    return click.option("--rate", type=Number(min=0, min_open=True, max=_RATE_MAX), help="Read at most so many MB a second.")(command)


def bytes_per_second(rate: float | None) -> int | None:
    """Return the bytes a second of --rate; None for no bound."""
    return None if rate is None else max(1, int(rate * _MEGA))


@contextmanager
def connected(uri: str, protocol: str, *, await_store: bool = False) -> Iterator[BookKeeper]:
    """Yield a client of the cluster at ``uri``, which is closed at the end. With ``await_store`` a metadata store that is being started
    gets its time. Raises BadParameter for a URI that cannot be one."""
    from bk_core.client import connect

    try:
        client = connect(uri, protocol="v3" if protocol == "v3" else "v2", await_store=await_store)
    except InvalidArgumentError as error:
        raise click.BadParameter(str(error), param_hint="--uri") from error
    with client:
        yield client


def check_range(first: int, last: int | None) -> None:
    """Raise UsageError where --last lies before --first: nothing would be shown."""
    if last is not None and last < first:
        raise click.UsageError(f"--last {last} lies before --first {first}")


def check_raw(raw: bool, as_json: bool) -> None:
    """Raise UsageError where both --raw and --json are given: an output has one form."""
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other")


def now_ms() -> int:
    """Return this machine's time, for ages that are shown."""
    return time.time_ns() // 1_000_000


def say_json(value: dict[str, Any]) -> None:
    """Print one object of JSON as a line."""
    click.echo(safe_json(value))


def say_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """Print a table. Columns whose name begins with ``#`` hold numbers and are set flush right."""
    console().print(laid_out(columns, rows, title))


def laid_out(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> rich_table.Table:
    """Return a table as Rich prints it; ``columns`` and ``rows`` are as for ``say_table``."""
    table = rich_table.Table(
        title=None if title is None else _plain(title), title_justify="left", box=None, header_style="bold", pad_edge=False
    )
    for column in columns:
        table.add_column(_plain(column.removeprefix("#")), justify="right" if column.startswith("#") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_plain(cell(value)) for value in row))
    return table


def say_rows(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table of any length in bounded memory. Up to 1,000 rows are a table as ``say_table`` prints it. More are printed as they
    come, one line each, in columns that grow where a later value is wider."""
    left = iter(rows)
    block = list(islice(left, _BLOCK))
    beyond = list(islice(left, 1))
    if not beyond:
        say_table(columns, block)
        return
    right = [column.startswith("#") for column in columns]
    widths = [len(column.removeprefix("#")) for column in columns]
    lines: list[Sequence[str]] = [[column.removeprefix("#") for column in columns]]
    block += beyond
    while block:
        lines += [[cell(value) for value in row] for row in block]
        widths = [max(width, *(len(line[index]) for line in lines)) for index, width in enumerate(widths)]
        for line in lines:
            texts = zip(line, widths, right, strict=True)
            click.echo("  ".join(text.rjust(width) if flush else text.ljust(width) for text, width, flush in texts).rstrip())
        lines, block = [], list(islice(left, _BLOCK))


def say_found(table: Table) -> None:
    """Print a table and an empty line after it, or nothing if it has no rows."""
    rows = list(table.rows)
    if rows:
        say_table(table.columns, rows)
        click.echo()


def _plain(text: str) -> str:
    """Return a text for Rich, which writes escape sequences of its own and so passes by what makes all other output safe."""
    from rich.markup import escape

    return escape(safe(text, kept=""))


def console() -> Console:
    """Return Rich's console on standard output. It is as wide as the variable COLUMNS says, else as the terminal, else 160 columns. Texts
    of others go through ``say_table``, or through ``safe``."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH  # None follows a terminal that changes its size
    if "COLUMNS" in os.environ:
        width = get_terminal_size((_PIPE_WIDTH, 0)).columns  # of the variable, unless it is 0 or no number
    return Console(file=inner(sys.stdout), width=width, highlight=False)
