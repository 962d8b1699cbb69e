"""``bk bench``: how fast this cluster adds and reads entries."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click
from rich.progress import BarColumn, TextColumn

from bk_core.cli.given import of_usage
from bk_core.cli.output import cluster_options, connected, digest_choice, say_json, say_table
from bk_core.cli.progress import progress_bar
from bk_core.cli.statuses import terminated_in_order
from bk_core.cli.units import Number, Size
from bk_core.display import cluster as display
from bk_core.display.words import counted
from bk_core.protocol.ledger.metadata import DigestType

if TYPE_CHECKING:
    from bk_core.client.bench import Measured, OnDone

_TOLD = (0.5, 0.99, 0.999)  # what fits into 80 columns


@click.command("bench")
@click.option("--quorums", default="3/3/2", show_default=True, metavar="E/QW/QA", help="Ensemble size, write quorum, ack quorum.")
@click.option("--size", type=Size(), default="1000", show_default=True, help="Payload bytes of an entry.")
@click.option("--seconds", type=Number(min=0, min_open=True, max=86_400), default=5.0, show_default=True, help="Duration of each phase.")
@click.option("--entries", type=click.IntRange(min=1), help="Entries of each phase, in place of its duration.")
@click.option("--in-flight", type=click.IntRange(min=1), default=1000, show_default=True, help="Entries that wait for an acknowledgement.")
@click.option("--run", "run_entries", type=click.IntRange(min=1), help="Entries that are sent together.  [default: 50, or all in flight]")
@click.option("--digest", type=digest_choice(), default="CRC32C", show_default=True)
@cluster_options
def bench(
    quorums: str,
    size: int,
    seconds: float,
    entries: int | None,
    in_flight: int,
    run_entries: int | None,
    digest: str,
    uri: str,
    protocol: str,
    as_json: bool,
) -> None:
    """Measure this cluster: add latency (one entry in flight), add throughput, then both of reads, with percentiles.

    It writes real entries, of random bytes, into two ledgers of its own and deletes them at the end, also after Ctrl-C; bookies free the
    space when they next collect garbage. Other users of the cluster feel it while it runs. If it is killed by SIGKILL, the ledgers stay;
    their custom metadata says `bk bench`. Reads are of what was just written, so they come mostly from the memory of bookies.

    --json: a line for each phase: phase, entries, bytes, seconds, entriesPerSecond, bytesPerSecond, p50Us, p95Us, p99Us, p999Us, maxUs (of
    an entry; of a run in "add throughput"; null for "read throughput"), ensembleSize, writeQuorumSize, ackQuorumSize, entryBytes, inFlight,
    runEntries, protocol.
    """
    from bk_core.client.bench import ADD_THROUGHPUT, BenchPlan
    from bk_core.client.bench import bench as phases_of

    plan = BenchPlan(
        *_sizes(quorums),
        digest_type=DigestType[digest.upper()],
        entry_bytes=size,
        seconds=seconds,
        entries=entries,
        in_flight=in_flight,
        run_entries=run_entries or min(50, in_flight),
    )
    with of_usage():
        plan.check()
    settings = {"ensembleSize": plan.ensemble_size, "writeQuorumSize": plan.write_quorum_size, "ackQuorumSize": plan.ack_quorum_size}
    settings |= {"entryBytes": size, "inFlight": in_flight, "runEntries": plan.run_entries}
    found: list[Measured] = []
    with terminated_in_order(), connected(uri, protocol) as client, _watched() as done, closing(phases_of(client, plan, done)) as phases:
        for phase in phases:
            found.append(phase)
            if as_json:
                say_json({**display.phase_facts(phase), **settings, "protocol": protocol})
    if not as_json:
        say_table(*display.bench(found, _TOLD))
        times = f"times of {ADD_THROUGHPUT} are of runs of {plan.run_entries:,}, with {in_flight:,} in flight"
        click.echo(f"E/Qw/Qa {quorums}, entries of {counted(size, 'byte')}, {protocol}; {times}")


def _sizes(text: str) -> tuple[int, int, int]:
    parts = text.split("/")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise click.BadParameter(f"{text!r} is not of the form 3/3/2", param_hint="--quorums")
    return int(parts[0]), int(parts[1]), int(parts[2])


@contextmanager
def _watched() -> Iterator[OnDone]:
    with progress_bar(TextColumn("{task.description}"), BarColumn(), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda phase, share: bar.update(task, description=phase, completed=share)
