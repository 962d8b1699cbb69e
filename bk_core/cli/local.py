"""``bk local``: a cluster on this machine until Ctrl-C."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click
from rich.markup import escape

from bk_core.bookie.apache import DEFAULT_VERSION
from bk_core.bookie.kerberos_service import ANY_BOOKKEEPER, KerberosService
from bk_core.bookie.ports import USUAL_ETCD_PORT, USUAL_PORT, is_free, usual_port
from bk_core.cli.output import URI_VARIABLE, console, say_json
from bk_core.display.words import counted, safe
from bk_core.errors import BkError

if TYPE_CHECKING:
    from bk_core.bookie.local_cluster import LocalCluster, Metadata

_LOOK_S = 2.0  # between two looks at disk and processes


@click.command()
@click.option("--bookies", type=click.IntRange(1, 64), default=3, show_default=True, help="How many bookies.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False),
    help="Keep data and ports in this directory, and find them there again; without it they are temporary.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help=f"Port of the metadata store, 0 for a free one. Without it: the one that --dir keeps, else the usual one ({USUAL_PORT}, for etcd "
    f"{USUAL_ETCD_PORT}) if it is free, else a free one.",
)
@click.option(
    "--apache",
    is_flag=False,
    flag_value=DEFAULT_VERSION,
    metavar="[VERSION]",
    help=f"Run Apache's own bookies (Java 17, and Maven the first time); {DEFAULT_VERSION} without a version.",
)
@click.option(
    "--zookeeper", metavar="HOST:PORT", help="Use this ZooKeeper instead of starting one; the URI of any other metadata store works, too."
)
@click.option(
    "--metadata", type=click.Choice(["zookeeper", "etcd"]), default="zookeeper", show_default=True, help="Which metadata store to start."
)
@click.option("--metrics", is_flag=True, help="Each embedded bookie serves its metrics for Prometheus on the loopback.")
@click.option("--tls", is_flag=True, help="Embedded bookies serve by TLS alone and ask for client certificates; the URI names the files.")
@click.option("--sasl", is_flag=True, help="Embedded bookies serve only clients that know a password; the URI names its file.")
@click.option("--kerberos-principal", metavar="NAME", help="Embedded bookies serve only clients with a ticket; their name at your KDC.")
@click.option("--kerberos-keytab", type=click.Path(), help="The keytab of --kerberos-principal, which the URI names.")
@click.option("--kerberos-clients", metavar="REGEX", help=f"Which principals are admitted, with their realm; {ANY_BOOKKEEPER} without it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object when ready instead of the banner.")
def local(
    bookies: int,
    directory: str | None,
    port: int | None,
    apache: str | None,
    zookeeper: str | None,
    metadata: Metadata,
    metrics: bool,
    tls: bool,
    sasl: bool,
    kerberos_principal: str | None,
    kerberos_keytab: str | None,
    kerberos_clients: str | None,
    as_json: bool,
) -> None:
    """Run ZooKeeper (or etcd) and some bookies on this machine until Ctrl-C. For trying things out, not for production.

    --json: one object when the cluster is ready: uri, kind, bookies, directory; with --metrics also metrics (addresses).
    """
    from bk_core.bookie.local_cluster import local_cluster
    from bk_core.bookie.watch import ClusterWatch

    if port is not None and zookeeper is not None:
        raise click.UsageError("--port is that of a metadata store to start, and --zookeeper names one that runs: leave one of them out")
    kerberos = _kerberos_of(kerberos_principal, kerberos_keytab, kerberos_clients)
    usual = usual_port(Path(directory) if directory else None, metadata) if port is None and zookeeper is None else None

    # `kill` and a closed terminal end it as Ctrl-C does: in order
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        progress = partial(click.echo, err=True)
        start = partial(
            local_cluster,
            bookies,
            directory,
            apache,
            zookeeper,
            progress=progress,
            metrics=metrics,
            tls=tls,
            sasl=sasl,
            metadata=metadata,
            kerberos=kerberos,
        )
        with start(port=port) if usual is None else started_at_usual(start, usual) as cluster:
            if as_json:
                told = {"uri": cluster.uri, "kind": cluster.kind, "bookies": cluster.bookie_ids, "directory": str(cluster.directory)}
                say_json(told | ({"metrics": cluster.metrics_urls} if metrics else {}))
            else:
                _banner(cluster.uri, cluster.kind, cluster.bookie_ids, str(cluster.directory) if directory else None, cluster.metrics_urls)
            sys.stdout.flush()
            watch = ClusterWatch(cluster)
            while True:
                for line in watch.news():
                    click.echo(line, err=True)
                time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        click.echo("stopped", err=True)


def _kerberos_of(principal: str | None, keytab: str | None, clients: str | None) -> KerberosService | None:
    if principal is None and keytab is None and clients is None:
        return None
    if principal is None or keytab is None:
        raise click.UsageError("Kerberos at embedded bookies needs --kerberos-principal and --kerberos-keytab")
    return KerberosService(principal, keytab, ANY_BOOKKEEPER if clients is None else clients)


def started_at_usual(start: Callable[..., LocalCluster], usual: int) -> LocalCluster:
    """Return the cluster that ``start`` starts at the port ``usual``, or at another one if somebody took that meanwhile, such as another
    `bk local`: it was free when it was chosen."""
    try:
        return start(port=usual)
    except BkError:
        if is_free(usual):
            raise
        return start(port=None)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _banner(uri: str, kind: str, bookie_ids: list[str], directory: str | None, pages: list[str]) -> None:
    say = partial(console().print, soft_wrap=True)  # lines are copied from here, and must have no line break of Rich's
    shown, uri = escape(safe(uri)), safe(uri)  # Rich takes the brackets of an IPv6 address for its own
    say()
    say(f"[bold green]ready[/]  {counted(len(bookie_ids), f'{kind} bookie')}: {escape(safe(' '.join(bookie_ids)))}")
    say(f"       data in {escape(safe(directory))}" if directory else "       data is temporary; keep it with --dir")
    for page in pages:
        say(f"       metrics at {escape(page)}")
    say()
    say(f"  [bold]{shown}[/]")
    say()
    say(f"  export {URI_VARIABLE}='{shown}'")
    say(f"  bk_core.connect({uri!r})", markup=False)
    say(f"  spark.read.format('bookkeeper').option('bookkeeper.metadataServiceUri', {uri!r})", markup=False)
    say()
    say("Ctrl-C stops all of it.")
