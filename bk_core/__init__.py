"""Apache BookKeeper for Python: ledgers, logs, and a cluster for one machine.

>>> with bk_core.local_cluster() as cluster, bk_core.connect(cluster.uri) as bk:
...     with bk.create_ledger() as ledger:
...         ledger.append(b"hello")
...     log = bk.create_log("events")
...     with log.writer() as writer:
...         writer.append(b"hello")
...     rows = [payload for run in log.reader() for payload in run.payloads()]

Every call checks its arguments before it does anything, and raises InvalidArgumentError for a value that cannot be, ArgumentTypeError for
one of a wrong kind.

Names are loaded on first use, so that a process that needs one part (a bookie, a command line) does not pay for the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bk_core import exit_hook as _exit_hook  # noqa: F401 - registers what ends clients before the program registers anything
from bk_core import log_lines as _log_lines

if TYPE_CHECKING:
    __version__: str
    from bk_core import aio as aio
    from bk_core import errors as errors
    from bk_core import kernels as kernels
    from bk_core.bookie.local_cluster import LocalCluster as LocalCluster
    from bk_core.bookie.local_cluster import local_cluster as local_cluster
    from bk_core.client import BookKeeper as BookKeeper
    from bk_core.client import ReadHandle as ReadHandle
    from bk_core.client import WriteHandle as WriteHandle
    from bk_core.client import connect as connect
    from bk_core.client.diff import ReplicaDiff as ReplicaDiff
    from bk_core.client.doctor.findings import Diagnosis as Diagnosis
    from bk_core.client.exploring.ledger import Ledger as Ledger
    from bk_core.client.exploring.ledgers import LedgerCopies as LedgerCopies
    from bk_core.client.exploring.ledgers import Ledgers as Ledgers
    from bk_core.client.exploring.trace import Trace as Trace
    from bk_core.client.files.store import FileStore as FileStore
    from bk_core.client.files.store import Staged as Staged
    from bk_core.client.files.upkeep import FileGcReport as FileGcReport
    from bk_core.client.files.upkeep import delete_file_store as delete_file_store
    from bk_core.client.files.upkeep import file_stores as file_stores
    from bk_core.client.files.upkeep import gc_file_store as gc_file_store
    from bk_core.client.files.upkeep import own_file_store as own_file_store
    from bk_core.client.files.view import FileStoreView as FileStoreView
    from bk_core.client.log.check import LogCheck as LogCheck
    from bk_core.client.log.info import LogInfo as LogInfo
    from bk_core.client.log.info import Segments as Segments
    from bk_core.client.log.janitor import GcReport as GcReport
    from bk_core.client.log.log import Log as Log
    from bk_core.client.log.parts import LogSpan as LogSpan
    from bk_core.client.log.reader import LogEntries as LogEntries
    from bk_core.client.log.reader import LogReader as LogReader
    from bk_core.client.log.tables import WrittenRows as WrittenRows
    from bk_core.client.log.tracing import BatchTrace as BatchTrace
    from bk_core.client.log.tracing import EntryTrace as EntryTrace
    from bk_core.client.log.verify import LogVerification as LogVerification
    from bk_core.client.log.writer import LogWriter as LogWriter
    from bk_core.client.repair.autorecovery import AutoRecovery as AutoRecovery
    from bk_core.client.repair.autorecovery import AutoRecoveryOptions as AutoRecoveryOptions
    from bk_core.client.repair.autorecovery import RecoveryEvent as RecoveryEvent
    from bk_core.client.repair.report import DecommissionReport as DecommissionReport
    from bk_core.client.repair.report import LedgerReport as LedgerReport
    from bk_core.client.repair.report import RepairReport as RepairReport
    from bk_core.client.xray import Xray as Xray
    from bk_core.config import ClientConfig as ClientConfig
    from bk_core.errors import BkError as BkError
    from bk_core.metadata.access import EtcdAuth as EtcdAuth
    from bk_core.metadata.access import MetadataTls as MetadataTls
    from bk_core.metadata.access import ZooKeeperAuth as ZooKeeperAuth
    from bk_core.metadata.store import BookieView as BookieView
    from bk_core.metrics.snapshot import HistogramValue as HistogramValue
    from bk_core.metrics.snapshot import Metrics as Metrics
    from bk_core.protocol.files.content import FileStatus as FileStatus
    from bk_core.protocol.ledger.metadata import DigestType as DigestType
    from bk_core.protocol.ledger.metadata import Fragment as Fragment
    from bk_core.protocol.ledger.metadata import LedgerMetadata as LedgerMetadata
    from bk_core.protocol.ledger.metadata import LedgerState as LedgerState
    from bk_core.protocol.ledger.read.options import ReadMode as ReadMode
    from bk_core.protocol.ledger.read.options import ReadOptions as ReadOptions
    from bk_core.protocol.ledger.run import EntryRun as EntryRun
    from bk_core.protocol.limits import Limits as Limits
    from bk_core.protocol.link.auth_exchange import AuthExchange as AuthExchange
    from bk_core.protocol.log.position import Position as Position
    from bk_core.protocol.log.segments import LogProperties as LogProperties
    from bk_core.protocol.log.segments import Segment as Segment
    from bk_core.secrets import SecretFile as SecretFile
    from bk_core.secrets import SecretVariable as SecretVariable
    from bk_core.security import BookieAuth as BookieAuth
    from bk_core.security import BookieKerberos as BookieKerberos
    from bk_core.security import BookieSasl as BookieSasl
    from bk_core.security import BookieTls as BookieTls
    from bk_core.security import Security as Security

_HOMES = {
    "AuthExchange": "bk_core.protocol.link.auth_exchange",
    "AutoRecovery": "bk_core.client.repair.autorecovery",
    "AutoRecoveryOptions": "bk_core.client.repair.autorecovery",
    "BatchTrace": "bk_core.client.log.tracing",
    "BkError": "bk_core.errors",
    "BookKeeper": "bk_core.client",
    "BookieView": "bk_core.metadata.store",
    "ClientConfig": "bk_core.config",
    "DecommissionReport": "bk_core.client.repair.report",
    "Diagnosis": "bk_core.client.doctor.findings",
    "DigestType": "bk_core.protocol.ledger.metadata",
    "EntryRun": "bk_core.protocol.ledger.run",
    "EntryTrace": "bk_core.client.log.tracing",
    "FileGcReport": "bk_core.client.files.upkeep",
    "FileStatus": "bk_core.protocol.files.content",
    "FileStore": "bk_core.client.files.store",
    "FileStoreView": "bk_core.client.files.view",
    "Fragment": "bk_core.protocol.ledger.metadata",
    "GcReport": "bk_core.client.log.janitor",
    "HistogramValue": "bk_core.metrics.snapshot",
    "Ledger": "bk_core.client.exploring.ledger",
    "LedgerCopies": "bk_core.client.exploring.ledgers",
    "LedgerMetadata": "bk_core.protocol.ledger.metadata",
    "LedgerReport": "bk_core.client.repair.report",
    "LedgerState": "bk_core.protocol.ledger.metadata",
    "Ledgers": "bk_core.client.exploring.ledgers",
    "Limits": "bk_core.protocol.limits",
    "LocalCluster": "bk_core.bookie.local_cluster",
    "Log": "bk_core.client.log.log",
    "LogCheck": "bk_core.client.log.check",
    "LogEntries": "bk_core.client.log.reader",
    "LogInfo": "bk_core.client.log.info",
    "LogProperties": "bk_core.protocol.log.segments",
    "LogReader": "bk_core.client.log.reader",
    "LogSpan": "bk_core.client.log.parts",
    "LogVerification": "bk_core.client.log.verify",
    "LogWriter": "bk_core.client.log.writer",
    "BookieAuth": "bk_core.security",
    "BookieKerberos": "bk_core.security",
    "BookieSasl": "bk_core.security",
    "BookieTls": "bk_core.security",
    "MetadataTls": "bk_core.metadata.access",
    "Security": "bk_core.security",
    "Metrics": "bk_core.metrics.snapshot",
    "Position": "bk_core.protocol.log.position",
    "ReadHandle": "bk_core.client",
    "ReadMode": "bk_core.protocol.ledger.read.options",
    "ReadOptions": "bk_core.protocol.ledger.read.options",
    "RecoveryEvent": "bk_core.client.repair.autorecovery",
    "RepairReport": "bk_core.client.repair.report",
    "ReplicaDiff": "bk_core.client.diff",
    "SecretFile": "bk_core.secrets",
    "SecretVariable": "bk_core.secrets",
    "Segment": "bk_core.protocol.log.segments",
    "Segments": "bk_core.client.log.info",
    "Staged": "bk_core.client.files.store",
    "Trace": "bk_core.client.exploring.trace",
    "WriteHandle": "bk_core.client",
    "WrittenRows": "bk_core.client.log.tables",
    "Xray": "bk_core.client.xray",
    "EtcdAuth": "bk_core.metadata.access",
    "ZooKeeperAuth": "bk_core.metadata.access",
    "connect": "bk_core.client",
    "delete_file_store": "bk_core.client.files.upkeep",
    "file_stores": "bk_core.client.files.upkeep",
    "gc_file_store": "bk_core.client.files.upkeep",
    "local_cluster": "bk_core.bookie.local_cluster",
    "own_file_store": "bk_core.client.files.upkeep",
}
_MODULES = ("aio", "errors", "kernels")
__all__ = ["__version__", *_MODULES, *_HOMES]  # noqa: PLE0604
_log_lines.show_as_told()


if not TYPE_CHECKING:  # a type checker knows the names above, and finds others by itself

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import PackageNotFoundError, version

            try:
                return version("bk-spark")
            except PackageNotFoundError:  # a source tree or a --py-files zip
                return "0+unknown"
        if name in _MODULES:
            return import_module(f"bk_core.{name}")
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, and those that every module has."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
