"""``bk cluster init`` and ``bk bookie ls``: a new cluster in a ZooKeeper, and the bookies of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bk_core.cli.output import cluster_options, connected, say_json, say_table
from bk_core.display import ledgers as display
from bk_core.display.words import counted
from bk_core.errors import BookieUnavailableError

if TYPE_CHECKING:
    from bk_core.client import BookKeeper
    from bk_core.protocol.ledger.metadata import BookieId


@click.group()
def cluster() -> None:
    """Clusters in a ZooKeeper."""


@cluster.command("init")
@click.argument("uri")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a line.")
def init(uri: str, as_json: bool) -> None:
    """Make a new, empty cluster at URI, such as zk://127.0.0.1:2181/second/ledgers, as Apache's initnewcluster does.

    Refused where there is anything already, in the ledgers root of another cluster and in its logs. zk+longhierarchical:// and the like
    choose the layout. Bookies, Apache's as well, are then started with this URI.
    """
    from bk_core.metadata import open_store

    store = open_store(uri)
    try:
        made = store.initialize_cluster(new=True)
    finally:
        store.close()
    if as_json:
        say_json({"uri": uri, "cluster": made})
    else:
        click.echo(f"cluster {made} is at {uri}; it has no bookies yet: start some with this metadata service URI")


@click.command("ls")
@cluster_options
def list_bookies(uri: str, protocol: str, as_json: bool) -> None:
    """All bookies: registered ones with their address, and those that only have a cookie, which are down or gone for good."""
    with connected(uri, protocol) as client:
        found = _bookies(client)
    if as_json:
        for one in found:
            say_json(one)
        return
    say_table(*display.bookies({one["bookie"]: one["state"] for one in found}, {one["bookie"]: one["address"] for one in found}))
    counts = [f"{sum(one['state'] == state for one in found):,} {state}" for state in ("writable", "read-only", "down")]
    click.echo(f"{counted(len(found), 'bookie')}: {', '.join(counts)}")


def _bookies(client: BookKeeper) -> list[dict[str, Any]]:
    view, cookies = client.bookies(), set(client.store.cookies())
    return [
        {"bookie": bookie, "state": state, "address": None if state == "down" else _address(client, bookie), "cookie": bookie in cookies}
        for bookie, state in display.bookie_states(view.writable, view.readonly, cookies).items()
    ]


def _address(client: BookKeeper, bookie: BookieId) -> str | None:
    """Return the address, or None if the bookie went meanwhile and its id tells none."""
    try:
        host, port = client.store.resolve(bookie)
    except BookieUnavailableError:
        return None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
