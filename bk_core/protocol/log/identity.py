"""Decides which cluster owns a log and which log owns a ledger (OWN-3 .. OWN-6, OWN-11), because ledger ids mean nothing without the
cluster that issued them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from bk_core.protocol.log.ledger_list import LedgerList

LOOKED_AT_MAX = 256  # the most ledgers to look at for a list that names no cluster: half are its oldest, half its newest
LOG_KEY = "log"
LOG_ID_KEY = "logId"
LOG_ROOT_KEY = "logRoot"


class Standing(Enum):
    """The relation of a ledger of this cluster to a log."""

    NAMED = "carries the log's name"
    ADOPTED = "carries no log's name, and a person has said that it is the log's"
    OTHER = "carries another name or none"
    MISSING = "does not exist"


class Claim(Enum):
    OURS = "a log of this cluster"
    FOREIGN = "a log of another cluster, as far as can be told"
    NOBODYS = "a log that was never written to and does not say whose it is"
    UNKNOWN = "a log that was written to, has no ledgers, and does not say whose it is"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The numbers of a list's ledgers by their relation to the log."""

    named: int = 0
    other: int = 0
    missing: int = 0

    def with_ledger(self, found: Standing) -> Evidence:
        match found:
            case Standing.NAMED | Standing.ADOPTED:
                return replace(self, named=self.named + 1)
            case Standing.OTHER:
                return replace(self, other=self.other + 1)
            case Standing.MISSING:
                return replace(self, missing=self.missing + 1)


def is_unnamed(custom: Mapping[str, bytes]) -> bool:
    """Return True if the ledger names no log as its own."""
    return LOG_KEY not in custom and LOG_ID_KEY not in custom


def standing(custom: Mapping[str, bytes] | None, name: str, log_id: str, *, adopted: bool = False) -> Standing:
    """Return the standing of a ledger with this custom metadata (None: there is no such ledger). One without a log id belongs to the log
    that it names (OWN-6).

    With ``adopted`` the log's list says that a person has adopted it; this counts only for a ledger that names no log at all (OWN-11).
    """
    if custom is None:
        return Standing.MISSING
    if adopted and is_unnamed(custom):
        return Standing.ADOPTED
    known_id = custom.get(LOG_ID_KEY)
    is_named = custom.get(LOG_KEY) == name.encode()
    return Standing.NAMED if is_named and (not log_id or known_id in (None, log_id.encode())) else Standing.OTHER


NO_EVIDENCE = Evidence()


def claim(listed: LedgerList, here: str, evidence: Evidence = NO_EVIDENCE) -> Claim:
    """Judge whose a list is. What the list itself says counts alone (OWN-3). A list that names no cluster is ours if some of
    its ledgers carry its name here and none carries another or none. If it never had any, it belongs to nobody, and then to its
    first writer (OWN-4)."""
    if listed.cluster:
        return Claim.OURS if listed.cluster == here else Claim.FOREIGN
    if evidence.other:
        return Claim.FOREIGN
    if evidence.named:
        return Claim.OURS
    if evidence.missing:
        return Claim.FOREIGN
    return Claim.UNKNOWN if _was_used(listed) else Claim.NOBODYS


def _was_used(listed: LedgerList) -> bool:
    return bool(listed.next_seq or listed.committed or listed.dropped or listed.condemned or listed.released or listed.opened)


@dataclass(frozen=True, slots=True)
class Traces:
    """The traces of a log under its name: the id of the log that is there, tombstones, an intent of the ledger in question. ``unclear`` is
    True if something is there that cannot be read, or lies elsewhere."""

    log_id: str | None = None
    tombstones: Collection[str] = ()
    intended: bool = False
    unclear: bool = False


def is_orphan(custom: Mapping[str, bytes], log_root: str, traces: Traces) -> bool:
    """Return True if no list and no intent is left that could still name or delete the ledger (OWN-9). A ledger of another log root is not
    judged from here."""
    if LOG_KEY not in custom or traces.intended or traces.unclear or custom.get(LOG_ROOT_KEY) not in (None, log_root.encode()):
        return False
    log_id = custom.get(LOG_ID_KEY)
    if log_id is None:
        return traces.log_id is None and not traces.tombstones
    return log_id.decode(errors="replace") not in (traces.log_id, *traces.tombstones)


def ledgers_to_look_at(listed: LedgerList) -> tuple[int, ...]:
    """Return the ledgers to look at to find the cluster of a list that does not name it."""
    refs = (*listed.opened, *listed.dropped, *listed.history)
    every = tuple(dict.fromkeys([*(ref.ledger_id for ref in refs), *(segment.ledger_id for segment in listed.segments)]))
    half = LOOKED_AT_MAX // 2
    return every if len(every) <= LOOKED_AT_MAX else (*every[:half], *every[-half:])
