"""The findings of a look at a whole cluster, with stable codes and the command that helps with each. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from bk_core.client.doctor.probe import BookieProbe
from bk_core.display.words import counted
from bk_core.protocol.ledger.metadata import BookieId

Severity: TypeAlias = Literal["error", "warning", "note"]
ERROR: Final = "error"
WARNING: Final = "warning"
NOTE: Final = "note"
SEVERITIES: tuple[Severity, ...] = (ERROR, WARNING, NOTE)
SHOWN_MAX = 20
"""A finding names at most so many ledgers, bookies or logs; ``count`` has all."""

CODES: Mapping[str, tuple[Severity, str]] = MappingProxyType(
    {
        "not-admitted": (ERROR, "bookies do not admit this client, so the copies there are not judged"),
        "layout-missing": (ERROR, "the cluster has no LAYOUT, or one that cannot be understood"),
        "bookies-too-few": (ERROR, "fewer bookies can be written to than a new ledger of a log, or of the default sizes, needs"),
        "bookie-down": (WARNING, "a bookie has a cookie and is not registered: it is stopped, or gone for good"),
        "bookie-unregistered": (NOTE, "a bookie serves and is not registered, as happens in some layouts of etcd"),
        "bookie-unreachable": (ERROR, "a registered bookie refuses connections, gives no answer, or is no bookie"),
        "bookie-read-only": (WARNING, "a bookie takes no new ledgers"),
        "cookie-missing": (WARNING, "a registered bookie has no cookie: Apache's auditor does not see it"),
        "cookie-foreign": (ERROR, "the cookie of a bookie names another cluster, or cannot be understood"),
        "disk-full": (ERROR, "the disks of a bookie are full, or as good as full"),
        "disk-nearly-full": (WARNING, "the disks of a bookie are nearly full"),
        "racks-unreadable": (WARNING, "the mapping of bookies to racks cannot be understood, or the script for it fails"),
        "racks-unknown": (WARNING, "placement is rack-aware here, and neither a script nor a mapping tells the racks of bookies"),
        "versions-mixed": (NOTE, "bookies differ in what they can do, as they do in the middle of an upgrade"),
        "ledger-unreadable": (ERROR, "the metadata of a ledger cannot be understood, which stops Apache's auditor for all ledgers"),
        "no-live-copy": (ERROR, "no bookie that runs has a copy of some entries: they cannot be read now"),
        "last-entry-lost": (ERROR, "no bookie has the last entry of a ledger, although all that should have it answer"),
        "under-replicated": (WARNING, "ledgers have copies on bookies that are down"),
        "open-tail-lost": (WARNING, "ledgers that are not closed are written to bookies that are down"),
        "recovery-stuck": (WARNING, "ledgers have been in recovery for long: who began it has not finished"),
        "writer-gone": (WARNING, "the process that wrote a log is gone, and has left it open"),
        "marked-unattended": (WARNING, "ledgers are marked as under-replicated, and nobody works on them"),
        "marked-stuck": (WARNING, "ledgers are marked as under-replicated, and no running bookie has a copy to make others from"),
        "marked": (NOTE, "ledgers are marked as under-replicated, and auto-recovery works on them"),
        "autorecovery-off": (WARNING, "auto-recovery is switched off, whether one runs or not"),
        "autorecovery-absent": (NOTE, "ledgers lack copies, and no auto-recovery runs"),
        "log-unreadable": (ERROR, "the list of a log, or its history, cannot be read"),
        "log-stray": (WARNING, "a node beside the lists of logs has a name that no log can have"),
        "log-foreign": (WARNING, "a log belongs to another cluster"),
        "log-ledgers-missing": (ERROR, "a log lists ledgers that do not exist"),
        "log-list-large": (WARNING, "the list of a log is close to the most that the metadata store takes"),
        "intents-left": (WARNING, "ledgers were begun for a log by processes that are gone, or long ago, and were never listed"),
        "ledgers-left": (NOTE, "ledgers that a log lists were left open by processes that are gone: what they hold is committed"),
        "orphans": (WARNING, "ledgers carry the name of a log of which nothing is left"),
        "clock-skew": (WARNING, "the clock of a host disagrees with that of the metadata store"),
    }
)
"""The code of every finding, with its severity and its meaning."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    ``code`` is one of ``CODES`` and stays the same from version to version; ``severity`` is "error", "warning" or "note". ``what`` is a
    sentence. ``bookies``, ``ledgers`` and ``logs`` are the first ``SHOWN_MAX`` that it is about, ``count`` is the number of all.
    ``command`` is the command line that helps, "" where none does; ``advice`` says when it is right, or what else to do.
    """

    code: str
    what: str
    advice: str
    command: str = ""
    bookies: tuple[BookieId, ...] = ()
    ledgers: tuple[int, ...] = ()
    logs: tuple[str, ...] = ()
    count: int = 1

    @property
    def severity(self) -> Severity:
        """The severity of its code."""
        return CODES[self.code][0]

    def __repr__(self) -> str:
        return f"<Finding {self.severity} {self.code}: {self.what}>"


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """Ledgers by state. ``fragments`` and ``ledgers`` count what each bookie is named by, by its id."""

    total: int = 0
    open: int = 0
    in_recovery: int = 0
    closed: int = 0
    unreadable: int = 0
    fragments: Mapping[BookieId, int] = field(default_factory=dict)
    ledgers: Mapping[BookieId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of a look at a cluster: what was found, the gravest first, and what was looked at.

    ``unchecked`` are the things that could not be looked at, each with the reason.
    """

    cluster: str
    findings: tuple[Finding, ...]
    bookies: Mapping[BookieId, str]
    probes: Mapping[BookieId, BookieProbe]
    ledgers: LedgerCounts
    logs: int
    took_s: float
    unchecked: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """True if there is no error and no warning. Notes are no trouble."""
        return all(finding.severity == NOTE for finding in self.findings)

    def count(self, severity: Severity) -> int:
        """Return the number of findings of a severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def __repr__(self) -> str:
        counts = ", ".join(counted(self.count(severity), severity) for severity in SEVERITIES)
        sizes = ", ".join((counted(len(self.bookies), "bookie"), counted(self.ledgers.total, "ledger"), counted(self.logs, "log")))
        return f"<Diagnosis of {self.cluster}: {counts}; {sizes}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import cluster, table

        return table.html(*cluster.diagnosis(self))


def sorted_findings(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings with the gravest first, and in the order of ``CODES``."""
    codes = list(CODES)
    return tuple(sorted(found, key=lambda one: (SEVERITIES.index(one.severity), codes.index(one.code))))
