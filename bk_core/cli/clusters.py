"""``bk cluster``: a new cluster, the one that there is, and its auto-recovery."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from bk_core.cli.doctor import doctor
from bk_core.cli.output import cluster_options, connected, say_json, say_table
from bk_core.display import cluster as display
from bk_core.display.words import counted, when
from bk_core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from bk_core.metadata.underreplication import Mark, UnderreplicationStore

DELAY_MAX_S = 2**31 - 1  # Apache's auditor reads an int


@click.group()
def cluster() -> None:
    """Make a cluster, show what it is and what is wrong with it, and switch its auto-recovery."""


cluster.add_command(doctor)


@cluster.command("init")
@click.argument("uri")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a line.")
def init(uri: str, as_json: bool) -> None:
    """Make a new, empty cluster at URI, such as zk://127.0.0.1:2181/second/ledgers, as Apache's initnewcluster does.

    It is refused where anything is there already, and in the ledgers root or the logs of another cluster. zk+longhierarchical:// and the
    like choose the layout. Bookies, Apache's as well, are then started with this URI.

    --json: uri, cluster (INSTANCEID).
    """
    from bk_core.metadata import open_store

    try:
        store = open_store(uri)
    except InvalidArgumentError as error:
        raise click.BadParameter(str(error), param_hint="URI") from error
    try:
        made = store.initialize_cluster(new=True)
    finally:
        store.close()
    if as_json:
        say_json({"uri": uri, "cluster": made})
    else:
        click.echo(f"cluster {made} is at {uri}; it has no bookies yet: start some with this metadata service URI")


@cluster.command("info")
@cluster_options
def info(uri: str, protocol: str, as_json: bool) -> None:
    """Show what this cluster is: identity, layout, bookies by state, disks, auto-recovery and its marks, numbers of ledgers and logs.

    Disks that bookies of one host seem to share, because they are of one size and have as much free, count once.

    --json: uri, cluster (INSTANCEID), layout, logRoot, ledgers, logs, bookies (total, writable, readOnly, down, answering), totalBytes,
    freeBytes, sharedDisks (bookies on the disks of another), autorecovery (on, delaySeconds, auditor), markedLedgers,
    marked (the first 20 of them).
    """
    from bk_core.client.doctor.facts import cluster_facts

    with connected(uri, protocol) as client:
        found = cluster_facts(client)
    if as_json:
        say_json(display.info_facts(found, client.config.shown_uri))
    else:
        say_table(*display.info(found, client.config.shown_uri))


@cluster.command("autorecovery")
@click.argument("switch", type=click.Choice(["on", "off", "status"]), default="status")
@click.option("--delay", type=click.IntRange(0, DELAY_MAX_S), help="Store the seconds that a bookie is away before it is lost; 0 for none.")
@click.option("--marks", is_flag=True, help="Also list the ledgers that are marked as under-replicated, with their lost bookies.")
@cluster_options
def autorecovery(switch: str, delay: int | None, marks: bool, uri: str, protocol: str, as_json: bool) -> None:
    """Switch auto-recovery on or off for the whole cluster, Apache's and `bk autorecovery`, or show how it stands.

    Switch it off while bookies restart one after the other: else the auditor copies what comes back. Or store a --delay, which is for the
    whole cluster, too: a bookie that is back within it costs no copies. `bk ledger repair` works either way.

    --json: on, changed, auditor, delaySeconds; with --marks a line for each marked ledger before it: ledger, bookies, markedMs, lockedBy.
    """
    from bk_core.client.repair.autorecovery import check_served

    with connected(uri, protocol) as client:
        check_served(client.store)
        found = client.store.underreplication()
        changed = switch != "status" and found.set_disabled(switch == "off")
        if delay is not None:
            found.set_recovery_delay(delay)
        told, auditor, waits_s = not found.is_disabled(), found.auditor(), found.recovery_delay_s()
        listed = [(mark, found.lock_holder(mark.ledger_id)) for mark in _marks(found)] if marks else []
    if as_json:
        for mark, holder in listed:
            at = {"markedMs": mark.created_ms, "lockedBy": holder}
            say_json({"ledger": mark.ledger_id, "bookies": list(mark.replicas), **at})
        say_json({"on": told, "changed": changed, "auditor": auditor, "delaySeconds": waits_s})
        return
    if marks:
        rows = [(str(mark.ledger_id), "  ".join(mark.replicas), when(mark.created_ms), holder) for mark, holder in listed]
        say_table(["#ledger", "lost bookies", "marked (UTC)", "being copied by"], rows)
        click.echo(counted(len(listed), "marked ledger"))
    runs = "nobody runs it" if auditor is None else f"auditor {auditor}"
    waits = f"; a bookie is lost after {counted(waits_s, 'second')}" if waits_s else ""
    click.echo(f"auto-recovery is {'on' if told else 'off'}{' now' if changed else ''}; {runs}{waits}")


def _marks(found: UnderreplicationStore) -> Iterator[Mark]:
    for ledger_id in found.marked_ledgers():
        mark = found.mark_of(ledger_id)
        if mark is not None:  # else it was repaired since it was listed
            yield mark
