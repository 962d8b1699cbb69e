"""``bk ui``: the live page of a cluster until Ctrl-C."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from bk_core.cli.output import cluster_options, password_option, say_json
from bk_core.threads import SafeFuture, start_aside, wait_done

if TYPE_CHECKING:
    from bk_core.client import BookKeeper

CLOSE_S = 2.0  # for the client to close its session with a cluster, which may not answer
_QUIET = ("bk_core.client", "bk_core.metadata", "bk_core.net")  # the page shows what fails; -v shows their lines all the same
_TURN_S = 0.5  # an interrupt may come just before a sleep begins, and then waits for its end


@click.command("ui")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. There is no TLS: others on the way can read all.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on; by default a free one.")
@click.option("--name", "names", multiple=True, help="A further host name of the page, such as a proxy's. May be repeated.")
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the token in this file, so that the address stays. If there is no such file, it is made, readable for you alone.",
)
@click.option("--no-open", is_flag=True, help="Open no browser.")
@password_option
@cluster_options
def live_page(
    host: str,
    port: int,
    names: tuple[str, ...],
    token_file: Path | None,
    no_open: bool,
    password: str,
    uri: str,
    protocol: str,
    as_json: bool,
) -> None:
    """Serve a live page of the cluster until Ctrl-C: bookies, ledgers, entries, logs, queries with their lag, events.

    It only looks: it never writes, and never fences. The page is for whoever has the address, which has a token in it. Payloads of ledgers
    and checkpoints with a password are shown with --password.

    --json: one object when the page is there: url, host, port.
    """
    from bk_core.client import connect
    from bk_core.ui.guard import Token, is_loopback, token_of_file
    from bk_core.ui.server import PageServer
    from bk_core.ui.site import Site

    for name in _QUIET:
        logging.getLogger(name).addHandler(logging.NullHandler())
    token = Token() if token_file is None else token_of_file(token_file)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    client = connect(uri, protocol="v3" if protocol == "v3" else "v2", metadata_timeout_s=5.0, operation_timeout_s=10.0)
    site = Site(client, password.encode())
    try:
        server = PageServer(host, port, token, site.answer, names=names)
        try:
            site.start()
            server.start()
            if not is_loopback(host):
                click.echo(f"warning: whoever is on the way to {host} can read the page and its token: there is no TLS", err=True)
            if as_json:
                say_json({"url": server.open_url, "host": host, "port": server.port})
            else:
                click.echo(f"the live page: {server.open_url}\nCtrl-C ends it.")
            sys.stdout.flush()
            with _opened(server.open_url, wanted=not no_open and not as_json):
                while True:
                    time.sleep(_TURN_S)
        finally:
            server.close()
    except KeyboardInterrupt:
        click.echo("ended", err=True)
    finally:
        site.close()
        _close(client)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def _opened(url: str, *, wanted: bool) -> Iterator[None]:
    """Show the page in the user's browser, if there is one to see. The address goes there in a file of this user's, because everybody on
    the machine can read the command line of a browser."""
    has_display = sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if not (wanted and has_display and sys.stdout.isatty()):
        yield
        return
    descriptor, name = tempfile.mkstemp(prefix="bk-ui-", suffix=".html")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f'<!doctype html><title>bk</title><meta http-equiv="refresh" content="0;url={escape(url)}">')
        with suppress(webbrowser.Error, OSError):
            webbrowser.open(Path(name).as_uri())
        yield
    finally:
        with suppress(OSError):
            os.unlink(name)


def _close(client: BookKeeper) -> None:
    """End the client. A cluster that does not answer is not waited for."""
    done: SafeFuture[None] = SafeFuture()

    def close() -> None:
        with suppress(Exception):
            client.close()
        done.set_result(None)

    start_aside(close, "bk-ui-close")
    wait_done(done, CLOSE_S)
