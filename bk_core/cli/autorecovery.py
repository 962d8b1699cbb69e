"""``bk autorecovery``: an auditor and workers that repair what lost bookies had, until they are told to end."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import click

from bk_core.cli.output import access_options, bytes_per_second, cluster_options, connected, rate_option, say_json
from bk_core.cli.statuses import terminated_in_order
from bk_core.cli.units import Duration, Number
from bk_core.cli.unread import ended_unread
from bk_core.protocol.ledger.metadata import DigestType

if TYPE_CHECKING:
    from bk_core.client.repair.autorecovery import RecoveryEvent

ROLES = ("auditor", "worker")


@click.command("autorecovery")
@click.option("--role", type=click.Choice(ROLES), multiple=True, help="Do only this part. Without it: both.")
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Ledgers that are repaired at a time.")
@click.option(
    "--delay",
    type=Number(min=0),
    help="Seconds that a bookie is away before it is lost; if a second one goes meanwhile, both are lost at once. Without it: what the "
    "cluster has stored.",
)
@click.option(
    "--grace",
    type=Number(min=0),
    default=30.0,
    show_default=True,
    help="Seconds in which the writer of an open ledger may replace a bookie.",
)
@click.option("--check-every", type=Duration(), default="7d", show_default=True, help="Look at all ledgers this often; 0s for never.")
@click.option("--look-every", type=Number(min=0.1), default=5.0, show_default=True, help="Seconds between two looks at bookies and marks.")
@rate_option
@access_options
@cluster_options
@ended_unread()
def autorecovery(
    role: tuple[str, ...],
    workers: int,
    delay: float | None,
    grace: float,
    check_every: int,
    look_every: float,
    rate: float | None,
    password: str,
    digest: str | None,
    uri: str,
    protocol: str,
    as_json: bool,
) -> None:
    """Re-replicate by itself what lost bookies had, until Ctrl-C or SIGTERM. Run it on two or more hosts: one of them is the auditor.

    The auditor marks the ledgers of bookies that have a cookie and are not registered, and looks at all ledgers now and then. Workers copy
    what marked ledgers lack. Marks, locks and the vote for the auditor are Apache's, so it works beside Apache's auto-recovery, or instead
    of it; `bk cluster autorecovery off` stops both. An open ledger whose writer does not replace a lost bookie in --grace seconds is
    recovered, which ends that writer. It does not begin if every bookie that answers refuses this client. --password and --digest are used
    where a ledger's metadata stores none.

    --json: a line for each event: event, text, ledger, bookies, count (ledgers), entries, bytes.
    """
    from bk_core.client.repair.autorecovery import AutoRecoveryOptions

    options = AutoRecoveryOptions(look_s=look_every, delay_s=delay, grace_s=grace, check_s=check_every / 1000, workers=workers)
    parts = role or ROLES

    def say(event: RecoveryEvent) -> None:
        if as_json:
            facts = {"ledger": event.ledger_id, "bookies": list(event.bookies), "count": event.count}
            say_json({"event": event.kind, "text": event.text, **facts, "entries": event.entries, "bytes": event.bytes})
        else:
            click.echo(event.text)
        sys.stdout.flush()

    with (
        terminated_in_order(),
        connected(uri, protocol, await_store=True) as client,
        client.auto_recovery(
            options,
            audits="auditor" in parts,
            repairs="worker" in parts,
            on_event=say,
            bytes_per_second=bytes_per_second(rate),
            password=password.encode() or None,
            digest_type=None if digest is None else DigestType[digest],
        ),
    ):
        click.echo(f"auto-recovery runs ({' and '.join(parts)}); Ctrl-C ends it", err=True)
        threading.Event().wait()
