"""The cost of TLS to a client: ``python -m tests.benchmarks.tls_cost [--megabytes 512] [--rounds 3] [--entry-bytes 4096] [--only ours]``.

Two clusters of embedded bookies stand side by side, one in clear and one with TLS and client certificates. Our client and Apache's, each a
process of its own, write the same entries to both and read them back, all by turns, so that a busy machine weighs on each. Apache's client
takes OpenSSL (``tlsProvider=OpenSSL``, netty's BoringSSL), which is the fastest it has. Seconds of CPU are those of the client's process,
per GB of payload; the bookies' are not among them. Ratios are taken within a round. The medians are printed and never asserted on.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from tests.benchmarks.measure import CpuMeter
from tests.benchmarks.workers import Worker, java_client, our_client, warm_up

CLIENTS = ("ours", "ours v3", "Java")
WIRES = ("clear", "TLS")
OPERATIONS = ("write", "read")
QUORUMS = (1, 1, 1)
IN_FLIGHT_BYTES = 32 << 20
BATCH_BYTES = 4 << 20
WARM_UP_S = 10.0

Figures = dict[tuple[str, str, str], list[tuple[float, float]]]


def settings_of_java(cluster: LocalCluster, place: Path) -> Path:
    """The file that tells Apache's client where the certificates of a local cluster lie."""
    security = cluster.directory / "security"
    lines = {
        "tlsProvider": "OpenSSL",
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsClientAuthentication": "true",
        "clientKeyStoreType": "PEM",
        "clientKeyStore": security / "client.key",
        "tlsCertificatePath": security / "client.pem",
        "clientTrustStoreType": "PEM",
        "clientTrustStore": security / "ca.pem",
    }
    place.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return place


def measured(worker: Worker, operation: str, *numbers: int) -> tuple[float, float, tuple[int, ...]]:
    """Seconds of CPU of the worker, seconds, and its answer."""
    with CpuMeter({"client": [worker.pid]}) as meter:
        answer = worker.ask(operation, *numbers)
    return meter.cpu["client"], answer[0] / 1e9, answer


def play(
    clients: Sequence[Worker], clusters: Sequence[tuple[str, LocalCluster]], java_settings: Path, options: argparse.Namespace
) -> Figures:
    """The figures of each client, operation and wire, a pair of seconds a round."""
    figures: Figures = {}
    entries = (options.megabytes << 20) // options.entry_bytes
    in_flight = max(2, IN_FLIGHT_BYTES // options.entry_bytes)
    for number in range(options.rounds):
        for wire, cluster in clusters:
            for worker in clients:
                java = worker.name == "Java"
                uri = cluster.uri.partition("?")[0] if java else cluster.uri
                worker.connect(uri, java_settings if java and wire == "TLS" else None)
                if number == 0:
                    warm_up(worker, uri, WARM_UP_S if java else 1.0, quorums=QUORUMS)
                cpu, wall, (_, ledger_id) = measured(worker, "write", entries, options.entry_bytes, in_flight, *QUORUMS)
                figures.setdefault((worker.name, "write", wire), []).append((cpu, wall))
                cpu, wall, _ = measured(worker, "read", ledger_id, entries, BATCH_BYTES, 1)
                figures.setdefault((worker.name, "read", wire), []).append((cpu, wall))
    return figures


def told(figures: Figures, total: int) -> str:
    """A line for each figure, then the ratios within a round."""
    lines = []
    for (name, operation, wire), rounds in sorted(figures.items(), key=lambda item: (item[0][1], item[0][2], item[0][0])):
        cpu, wall = (statistics.median(column) * 1e9 / total for column in zip(*rounds, strict=True))
        lines.append(f"{operation:6} {wire:6} {name:8} {cpu:6.2f} s of CPU per GB  {1e3 / wall:7.1f} MB/s")

    def ratio(what: str, over: tuple[str, str, str], under: tuple[str, str, str]) -> None:
        if over in figures and under in figures:
            found = sorted(a[0] / b[0] for a, b in zip(figures[over], figures[under], strict=True))
            lines.append(f"{what:34} {found[0]:.2f} / {statistics.median(found):.2f} / {found[-1]:.2f}")

    lines.append("ratios of CPU within a round: smallest / median / largest")
    for operation in OPERATIONS:
        for name in CLIENTS:
            ratio(f"{operation}: {name}, TLS over clear", (name, operation, "TLS"), (name, operation, "clear"))
        for wire in WIRES:
            for name in CLIENTS[:2]:
                ratio(f"{operation}: Java over {name}, {wire}", ("Java", operation, wire), (name, operation, wire))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.tls_cost")
    parser.add_argument("--megabytes", type=int, default=512, help="of payload, in each round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--entry-bytes", type=int, default=4096)
    parser.add_argument("--only", choices=["ours"], help="leave Apache's client out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all rounds, in seconds")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        clusters = [(wire, stack.enter_context(local_cluster(1, tls=wire == "TLS"))) for wire in WIRES]
        java_settings = settings_of_java(clusters[1][1], Path(stack.enter_context(TemporaryDirectory())) / "java.properties")
        clients = [stack.enter_context(our_client(name, protocol)) for name, protocol in (("ours", "v2"), ("ours v3", "v3"))]
        if options.only is None:
            clients.append(stack.enter_context(java_client("Java")))
        figures = play(clients, clusters, java_settings, options)
        for worker in clients:
            worker.disconnect()
    print(told(figures, (options.megabytes << 20)))
    if options.json is not None:
        options.json.write_text(json.dumps({" ".join(key): rounds for key, rounds in figures.items()}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
