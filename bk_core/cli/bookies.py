"""``bk bookie``: bookies from all sides."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bk_core.cli.given import BOOKIE
from bk_core.cli.output import check_raw, cluster_options, connected, now_ms, say_json, say_table
from bk_core.cli.progress import with_progress
from bk_core.cli.replication import decommission
from bk_core.cli.switching import await_state, tell_read_only
from bk_core.cli.units import Number
from bk_core.display import cluster as display
from bk_core.display import ledgers
from bk_core.display.ledgers import DOWN, READ_ONLY, WRITABLE
from bk_core.display.words import counted
from bk_core.errors import InvalidArgumentError, MetadataFormatError, NodeExistsError, NoNodeError

if TYPE_CHECKING:
    from bk_core.client import BookKeeper

_requests = click.option("--requests", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Reads over each protocol.")
_timeout = click.option(
    "--timeout", type=Number(min=0, min_open=True), default=3.0, show_default=True, help="Seconds for each answer of a bookie."
)


@click.group()
def bookie() -> None:
    """List bookies, look at their health and copies, set them read-only, and take them out of the cluster."""


bookie.add_command(decommission)


@bookie.command("ls")
@cluster_options
def list_bookies(uri: str, protocol: str, as_json: bool) -> None:
    """List all bookies: registered ones with their address, and those that only have a cookie, which are down or gone for good.

    --json: bookie, state (writable, read-only, down), address, cookie (true if it has one).
    """
    with connected(uri, protocol) as client:
        found = _bookies(client)
    if as_json:
        for one in found:
            say_json(one)
        return
    states = {one["bookie"]: one["state"] for one in found}
    say_table(*ledgers.bookies(states, {one["bookie"]: one["address"] for one in found}))
    click.echo(f"{counted(len(found), 'bookie')}: {ledgers.bookie_counts(states.values())}")


def _bookies(client: BookKeeper) -> list[dict[str, Any]]:
    from bk_core.client.doctor.bookies import states_of
    from bk_core.client.doctor.facts import address_of

    states, cookies = states_of(client), set(client.store.cookies())
    return [
        {"bookie": bookie, "state": state, "address": None if state == DOWN else address_of(client, bookie), "cookie": bookie in cookies}
        for bookie, state in states.items()
    ]


@bookie.command("show")
@click.argument("bookie_id", metavar="BOOKIE", type=BOOKIE)
@click.option("--no-ledgers", is_flag=True, help="Do not read the metadata of all ledgers for those that name the bookie.")
@_requests
@_timeout
@cluster_options
def show_bookie(bookie_id: str, no_ledgers: bool, requests: int, timeout: float, uri: str, protocol: str, as_json: bool) -> None:
    """Show one bookie: state, endpoints, cookie, rack, disks, the ledgers that name it, and how fast it answers over v2 and v3.

    --json: bookie, state, probe (answer, problem, address, connectUs, v2 and v3 with p50Us, p99Us and requests, totalBytes, freeBytes,
    batchReads; null for a bookie that is down), endpoints (id, protocol, host, port), properties, registeredMs, cookie (journalDirs,
    ledgerDirs, indexDirs, instanceId), problem (of the cookie), rack, ledgers (ledgers, fragments, open, first; null with --no-ledgers).
    """
    from bk_core.client.doctor.facts import bookie_facts

    with connected(uri, protocol) as client:
        found = bookie_facts(
            client,
            bookie_id,
            requests=requests,
            timeout_s=timeout,
            ledgers=not no_ledgers,
            progress=lambda ids: with_progress(list(ids), "reading metadata"),
        )
    if as_json:
        say_json(display.bookie_facts(found))
    else:
        say_table(*display.bookie(found, now_ms()))


@bookie.command("health")
@click.argument("bookie_ids", metavar="[BOOKIE]...", nargs=-1, type=BOOKIE)
@_requests
@_timeout
@cluster_options
def health(bookie_ids: tuple[str, ...], requests: int, timeout: float, uri: str, protocol: str, as_json: bool) -> int:
    """Ask bookies, all of them by default, and show how fast they answer. Exit status 1 if one does not, or is down.

    Each is asked over a connection of its own, over v2 and v3, for an entry of a ledger that cannot exist: the time is that of a round trip
    without a disk. Nothing is written or fenced. `bk bench` writes.

    --json: bookie, state (writable, read-only, down), answer, problem, address, connectUs, v2, v3 (p50Us, p99Us, requests), totalBytes,
    freeBytes, batchReads.
    """
    from bk_core.client.doctor.bookies import states_of
    from bk_core.client.doctor.facts import check_known
    from bk_core.client.doctor.probe import BookieProbe, probe_bookies

    with connected(uri, protocol) as client:
        for one in bookie_ids:
            check_known(client, one)
        known = states_of(client)
        states = {one: known[one] for one in bookie_ids or known}
        up = [one for one, state in states.items() if state != DOWN]
        probes = probe_bookies(client, up, requests=requests, timeout_s=timeout)
    found = [probes.get(one) or BookieProbe(one, DOWN, "it is not registered") for one in states]
    if as_json:
        for probe in found:
            say_json({"bookie": probe.bookie, "state": states[probe.bookie], **(display.probe_facts(probe) or {})})
    else:
        say_table(*display.probes(found, states))
    return 0 if found and all(probe.answers for probe in found) else 1


@bookie.command("read-only")
@click.argument("bookie_id", metavar="BOOKIE", type=BOOKIE)
@click.argument("switch", type=click.Choice(["on", "off"]))
@click.option(
    "--http", "address", metavar="HOST:PORT", help="The bookie's HTTP server, where its registration names none, or https:// before it."
)
@cluster_options
def read_only(bookie_id: str, switch: str, address: str | None, uri: str, protocol: str, as_json: bool) -> int:
    """Have a bookie take no new ledgers (on), or take them again (off). What it holds can be read all the while.

    Apache's bookies do it only when their HTTP server is asked (httpServerEnabled=true), until they restart, or for good with
    persistBookieStatusEnabled=true. If it speaks TLS, name it: --http https://HOST:PORT. An embedded bookie does it when a file in its
    directory says so: run this on its host. It stays so after a restart, too. Exit status 1 if the bookie is not what it was asked to be
    after 20 seconds.

    --json: bookie, readOnly (as it is registered now), told (by "http" or "directory").
    """
    from bk_core.client.doctor.facts import check_known

    wanted = switch == "on"
    with connected(uri, protocol) as client:
        state = check_known(client, bookie_id)
        told = tell_read_only(client, bookie_id, wanted, address)
        if state != DOWN:
            state = await_state(client, bookie_id, READ_ONLY if wanted else WRITABLE)
    remembered = state == DOWN and told == "directory"  # it looks there when it starts
    if as_json:
        say_json({"bookie": bookie_id, "readOnly": state == READ_ONLY if state != DOWN else None, "told": told})
    elif remembered:
        click.echo(f"bookie {bookie_id} is down; it will start {'read-only' if wanted else 'writable'}")
    elif (state == READ_ONLY) is wanted:
        click.echo(f"bookie {bookie_id} is {state}")
    elif state == DOWN:
        click.echo(f"bookie {bookie_id} was asked, and is down: ask it again when it has started", err=True)
    else:
        why = "its disk may be full, or it is starting" if not wanted else "see its log"
        click.echo(f"bookie {bookie_id} was asked, and is still {state}: {why}", err=True)
    return 0 if remembered or (state != DOWN and (state == READ_ONLY) is wanted) else 1


@bookie.command("collect")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--up-to", type=click.IntRange(min=1), required=True, metavar="LEDGERS", help="The most ledgers that may be dropped.")
def collect(directory: Path, up_to: int) -> int:
    """Let the embedded bookie on DIRECTORY drop many deleted ledgers at once, in its next collection.

    Without it a bookie refuses a round that would drop more than 100 ledgers and more than half of all, and says so in its log: a metadata
    store that has lost its data looks the same.
    """
    from bk_core.bookie.guard import allow_collection

    allow_collection(directory, up_to)
    click.echo(f"the next collection of the bookie on {directory} may drop up to {counted(up_to, 'ledger')}")
    return 0


# --- cookies ------------------------------------------------------------------------------------------------------------


@bookie.group("cookie")
def cookie() -> None:
    """Show and restore the cookies of bookies: the directories and the cluster that belong to a bookie's id."""


@cookie.command("get")
@click.argument("bookie_id", metavar="BOOKIE", type=BOOKIE)
@click.option("--raw", is_flag=True, help="The bytes as they are stored, which a bookie keeps in current/VERSION, too.")
@cluster_options
def get_cookie(bookie_id: str, raw: bool, uri: str, protocol: str, as_json: bool) -> None:
    """Show the cookie of a bookie.

    --json: bookie, journalDirs, ledgerDirs, indexDirs, instanceId.
    """
    from bk_core.metadata.cookies import decode_cookie

    check_raw(raw, as_json)
    with connected(uri, protocol) as client:
        try:
            data = client.store.read_cookie(bookie_id).data
        except NoNodeError:
            raise InvalidArgumentError(f"bookie {bookie_id} has no cookie", bookie=bookie_id) from None
    if raw:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    found = decode_cookie(data)
    if as_json:
        say_json({"bookie": found.bookie_id, **display.cookie_facts(found)})
    else:
        say_table(*display.cookie(found))


def _replace_cookie(client: BookKeeper, bookie_id: str, data: bytes, replace: bool) -> None:
    """Write a cookie over one that is of no use. Raises InvalidArgumentError over one of this cluster, and without ``replace``."""
    from bk_core.metadata.cookies import decode_cookie

    there = client.store.read_cookie(bookie_id)
    try:
        what = f"a cookie of cluster {decode_cookie(there.data).instance_id}"
        if decode_cookie(there.data).instance_id == client.store.instance_id():
            raise InvalidArgumentError(f"bookie {bookie_id} has a cookie of this cluster; nothing was changed", bookie=bookie_id)
    except MetadataFormatError:
        what = "a cookie that cannot be understood"
    if not replace:
        raise InvalidArgumentError(f"bookie {bookie_id} has {what}; nothing was changed. --replace writes over it", bookie=bookie_id)
    client.store.write_cookie(bookie_id, data, there.version)


@cookie.command("put")
@click.argument("bookie_id", metavar="BOOKIE", type=BOOKIE)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="In place of one that is of another cluster, or that nobody understands.")
@cluster_options
def put_cookie(bookie_id: str, file: Path, replace: bool, uri: str, protocol: str, as_json: bool) -> None:
    """Give a bookie its lost cookie again, from FILE: the file current/VERSION in one of its directories, or what `get --raw` gave.

    It is refused if the bookie has one of this cluster, and for a cookie of another bookie or another cluster.

    --json: bookie, created.
    """
    from bk_core.metadata.cookies import decode_cookie

    data = file.read_bytes()
    found = decode_cookie(data)
    with connected(uri, protocol) as client:
        here = client.store.instance_id()
        if found.bookie_id != bookie_id:
            raise InvalidArgumentError(f"{file} is the cookie of bookie {found.bookie_id}, not of {bookie_id}", bookie=bookie_id)
        if found.instance_id != here:
            raise InvalidArgumentError(f"{file} is of cluster {found.instance_id}, and this is {here}", bookie=bookie_id)
        try:
            client.store.write_cookie(bookie_id, data, None)
        except NodeExistsError:
            _replace_cookie(client, bookie_id, data, replace)
    if as_json:
        say_json({"bookie": bookie_id, "created": True})
    else:
        click.echo(f"bookie {bookie_id} has its cookie again")
