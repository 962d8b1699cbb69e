"""The embedded bookie as a process of its own.

    python -m bk_core.bookie.server --uri zk://127.0.0.1:2181/ledgers --directory data/bookie1 --port 0

prints ``READY host:port`` once it is registered. SIGTERM and SIGINT stop it cleanly; a kill at any moment loses nothing it acknowledged.
With --tls-cert, --sasl-users or --kerberos-principal it serves only those who come by TLS, know a password or have a ticket; the options
``bookie_...`` of the URI are how it comes in to others.
The address it got first is kept in the directory and used again, because ledgers name bookies by it.

    DIRECTORY/address             host:port, which is also the bookie id
    DIRECTORY/collect-up-to       there while the next collection may drop more than a few ledgers (bk bookie collect)
    DIRECTORY/lock                held while a bookie runs on the directory
    DIRECTORY/current/VERSION     the cookie, byte for byte as in the metadata store (metadata.md 4.5)
    DIRECTORY/current/*.mdb       entries and ledger records
    DIRECTORY/current/LOST        there while entries that were lost here are being fetched again

A bookie that misses data it once had refuses to start, because it would deny entries that were acknowledged. With --accept-data-loss it
fences every ledger of which it may have lost entries, answers "unknown" for what it does not have (B-10), and fetches what the other
replicas still have. For each ledger this ends as soon as somebody has recovered and closed it.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import logging
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from bk_core.bookie.collector import CollectorOptions
from bk_core.bookie.door import Door
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.bookie.kerberos_service import ANY_BOOKKEEPER, KerberosService
from bk_core.bookie.leaving import left_undone
from bk_core.bookie.telling import MetricsLine, check_page, page_of
from bk_core.errors import BkError
from bk_core.metadata import open_store
from bk_core.protocol.bookie.admission import ConnectionLimits
from bk_core.security import security_of

__all__ = ["BookieOptions", "EmbeddedBookie", "die_with_parent", "main"]

_COLLECTOR = CollectorOptions()
_LIMITS = ConnectionLimits()
_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_BYTES = 32 << 20
_STDOUT, _STDERR = 1, 2


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, if BK_DIE_WITH_PARENT=1 (Linux only; elsewhere nothing happens)."""
    if os.environ.get("BK_DIE_WITH_PARENT") != "1" or not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def keep_freed_memory() -> None:
    """Have glibc keep what a commit freed for the next one instead of faulting it in again (elsewhere nothing happens)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
        mallopt(option, _KEPT_BYTES)


class _ErrorOutput(logging.Handler):
    """Writes lines to standard error, which may be a file on the disk that is full. Lines that cannot be written are counted, and the
    number is told once it can be."""

    _lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record) + "\n"
        if self._lost:
            text = f"({self._lost} lines could not be written here)\n{text}"
        self._lost = 0 if write_output(_STDERR, text) else self._lost + 1


def write_output(descriptor: int, text: str) -> bool:
    """Write to standard output or error without a buffer, which would be written once more at the end. Return True if all was written."""
    data = text.encode(errors="backslashreplace")
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return False
    return True


def allow_descriptors() -> None:
    """Allow as many open files as the process may have, because the limit in force is often far below, and each connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # where "unlimited" is more than the kernel allows
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bk_core.bookie.server", description="An embedded bookie for one machine.")
    parser.add_argument("--uri", required=True, help="metadata service, e.g. zk://127.0.0.1:2181/ledgers")
    parser.add_argument("--directory", required=True, type=Path, help="where the bookie keeps everything")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on and to be known by (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="0: the port the directory had before, or any free one (default)")
    for flag, default, meaning in (
        ("--collect-interval-s", _COLLECTOR.interval_s, "seconds between searches for deleted ledgers"),
        ("--moved-interval-s", _COLLECTOR.moved_interval_s, "seconds between searches for closed ledgers that live elsewhere now"),
        ("--tombstone-keep-s", _COLLECTOR.tombstone_keep_s, "seconds for which a deleted ledger refuses its old writer"),
        ("--refill-interval-s", BookieOptions().refill_interval_s, "seconds between attempts to fetch lost entries"),
    ):
        parser.add_argument(flag, type=float, default=default, help=f"{meaning} (default: %(default)s)")
    for flag, count, meaning in (
        ("--connections", _LIMITS.connections, "connections at most; idle ones make room for new ones"),
        ("--polls-per-connection", _LIMITS.polls_per_connection, "long polls of one connection that may wait; more are answered at once"),
    ):
        parser.add_argument(flag, type=int, default=count, help=f"{meaning} (default: %(default)s)")
    for flag, default, meaning in (
        ("--stalled-s", _LIMITS.stalled_s, "seconds after which half a request, or a peer that takes no answers, ends its connection"),
        ("--idle-s", _LIMITS.idle_s, "seconds after which a connection ends on which nothing is asked"),
    ):
        parser.add_argument(flag, type=float, default=default, help=f"{meaning} (default: %(default)s)")
    parser.add_argument(
        "--few", type=int, default=_COLLECTOR.few, metavar="LEDGERS", help="so many may always go at once (default: %(default)s)"
    )
    parser.add_argument(
        "--few-share", type=float, default=_COLLECTOR.few_share, help="or this part of all ledgers here (default: %(default)s)"
    )
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve metrics for Prometheus on the loopback at this port; 0: any free one, which the log tells (default: no page)",
    )
    parser.add_argument(
        "--metrics-log-s",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="write metrics as a line of JSON to the log so often (default: never)",
    )
    for flag, meaning in (
        ("--tls-cert", "PEM file of the bookie's certificate: it serves by TLS alone"),
        ("--tls-key", "PEM file of its private key (default: the one in --tls-cert)"),
        ("--tls-client-ca", "PEM file of the authorities whose certificates clients must show (default: they need none)"),
        ("--sasl-users", "file of users, NAME:PASSWORD a line: it serves only those who know a password (SASL DIGEST-MD5)"),
    ):
        parser.add_argument(flag, metavar="FILE", help=meaning)
    _add_kerberos(parser)
    roles = "roles that are admitted, separated by commas: one of them stands in a client's certificate, OU=0:ROLE (default: all)"
    parser.add_argument("--tls-roles", metavar="ROLES", default="", help=roles)
    parser.add_argument("--accept-data-loss", action="store_true", help="start although data is gone, with the ledgers concerned in limbo")
    options = parser.parse_args(arguments)
    if options.metrics_port is not None and not 0 <= options.metrics_port < 1 << 16:
        parser.error(f"--metrics-port {options.metrics_port} is not from 0 to 65535")
    if options.metrics_log_s < 0:
        parser.error(f"--metrics-log-s {options.metrics_log_s} is less than nothing")
    if (options.kerberos_principal is None) != (options.kerberos_keytab is None):
        parser.error("--kerberos-principal and --kerberos-keytab need one another")
    if options.kerberos_clients is not None and options.kerberos_principal is None:
        parser.error("--kerberos-clients means nothing without --kerberos-principal")
    return options


def _add_kerberos(parser: argparse.ArgumentParser) -> None:
    principal = "the bookie's name at the KDC, bookkeeper/HOST@REALM: it serves only those who have a ticket (SASL GSSAPI)"
    parser.add_argument("--kerberos-principal", metavar="NAME", help=principal)
    parser.add_argument("--kerberos-keytab", metavar="FILE", help="the keytab with that principal's keys")
    clients = f"regular expression that the whole name of a client must match, with its realm (default: {ANY_BOOKKEEPER})"
    parser.add_argument("--kerberos-clients", metavar="REGEX", help=clients)


def main(arguments: list[str] | None = None) -> int:
    options = parse_options(arguments)
    die_with_parent()
    keep_freed_memory()
    allow_descriptors()
    with suppress(AttributeError, RuntimeError, ValueError, OSError):  # there may be nowhere to write to
        faulthandler.enable()  # a disk that cannot be read ends the process by SIGBUS amid the database, which says nothing by itself
    logging.basicConfig(handlers=[_ErrorOutput()], level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return _run(options)


def bookie_options(options: argparse.Namespace) -> BookieOptions:
    files = (options.tls_cert, options.tls_key, options.tls_client_ca, options.sasl_users)
    roles = tuple(filter(None, options.tls_roles.split(",")))
    kerberos = None
    if options.kerberos_principal is not None:
        clients = ANY_BOOKKEEPER if options.kerberos_clients is None else options.kerberos_clients
        kerberos = KerberosService(options.kerberos_principal, options.kerberos_keytab, clients)
    return BookieOptions(
        door=Door(*files, roles, kerberos) if any(files) or roles or kerberos else None,
        security=security_of(options.uri),
        accept_data_loss=options.accept_data_loss,
        collector=CollectorOptions(
            options.collect_interval_s, options.moved_interval_s, options.tombstone_keep_s, options.few, options.few_share
        ),
        refill_interval_s=options.refill_interval_s,
        limits=ConnectionLimits(
            connections=options.connections,
            stalled_s=options.stalled_s,
            idle_s=options.idle_s,
            polls_per_connection=options.polls_per_connection,
        ),
    )


def _run(options: argparse.Namespace) -> int:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        check_page(options.metrics_port)
        made = bookie_options(options)
        if made.door is not None:
            made.door.check()  # before a metadata store is waited for
        store = open_store(options.uri, patient=True)
        try:
            with (
                EmbeddedBookie(options.directory, options.host, options.port, store, made) as bookie,
                page_of(bookie, options.metrics_port),
            ):
                if not write_output(_STDOUT, f"READY {bookie.bookie_id}\n"):
                    logging.getLogger("bk_core.bookie").warning("%s is ready; standard output takes no line that says so", bookie.bookie_id)
                line = MetricsLine(bookie.metrics, options.metrics_log_s)
                while not stop.is_set() and not bookie.failed.is_set():
                    stop.wait(0.5)
                    line.look()
                return 0 if stop.is_set() else 1
        finally:
            left_undone(store.close)  # the session of a store that is away lapses
    except (BkError, OSError) as error:
        write_output(_STDERR, f"bookie cannot run: {error}\n")
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
