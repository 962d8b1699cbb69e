"""The options of checks, repairs and decommissions, and their reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict

from bk_core.arguments import POSITIVE, SECONDS, SECRET, check_fields, settings
from bk_core.client.access import digest_type_of
from bk_core.display.words import counted
from bk_core.near import check_names
from bk_core.protocol.ledger.metadata import BookieId, DigestName, DigestType, LedgerAccess, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.replication import FragmentReport, guaranteed


@dataclass(frozen=True, slots=True)
class Progress:
    """One look at a running job. ``step`` is check, copy, wait or recover; ``entries_total`` is None if it is not known."""

    ledger_id: int
    step: str
    entries: int = 0
    entries_total: int | None = None
    bytes: int = 0


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """The findings of a check. ``open_tail_lost`` are bookies of the undecided last fragment that are gone; its entries are not judged."""

    ledger_id: int
    metadata: LedgerMetadata
    full: bool
    fragments: tuple[FragmentReport, ...]
    open_tail_lost: tuple[BookieId, ...] = ()

    def __repr__(self) -> str:
        return f"<LedgerReport ledger {self.ledger_id}: {'in need of repair' if self.status == 'damaged' else self.status}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import repairs, table

        return table.html(*repairs.check(self))

    @property
    def needs_filling(self) -> bool:
        """True if a guaranteed write quorum was promised and the ledger has no seal yet (G-27)."""
        return guaranteed.needs_filling(self.metadata)

    @property
    def digest_note(self) -> str:
        """The reason why copies may only look corrupt, '' if there is no doubt (META-15)."""
        doubtful = any(replica.corrupt for fragment in self.fragments for replica in fragment.replicas)
        return self.metadata.access_note.removeprefix("; ") if doubtful else ""

    @property
    def not_admitting(self) -> tuple[BookieId, ...]:
        """The bookies that do not admit this client, so that nothing is known of the copies there (RR-19)."""
        return tuple(sorted({one.bookie for fragment in self.fragments for one in fragment.replicas if one.is_refused}))

    @property
    def status(self) -> Literal["good", "damaged", "unknown"]:
        """The result in a word: "damaged" if something was found that needs repair, or a bookie gives no answer; "unknown" if nothing
        was found, and bookies that do not admit this client say nothing about their copies."""
        if self.is_good:
            return "good"
        bad = any(not (one.is_good or one.is_refused) for fragment in self.fragments for one in fragment.replicas)
        return "damaged" if bad or self.open_tail_lost or self.needs_filling else "unknown"

    @property
    def is_good(self) -> bool:
        """Return True if the ledger needs no repair, as far as the check looked."""
        return all(fragment.is_good for fragment in self.fragments) and not self.open_tail_lost and not self.needs_filling


@dataclass(frozen=True, slots=True)
class Moved:
    """A replica that has moved: ``entries`` of fragment ``first_entry_id`` were copied from the others to ``new``."""

    first_entry_id: int
    position: int
    old: BookieId
    new: BookieId
    entries: int


@dataclass(frozen=True, slots=True)
class Refilled:
    """Entries that were written again to the bookie that should have had them all along."""

    first_entry_id: int
    position: int
    bookie: BookieId
    entries: int


@dataclass(slots=True)
class RepairReport:
    """The work of a repair. ``problems`` lists what it could not do; the same call may do it later (RR-8). ``not_admitting`` are bookies
    that do not admit this client, so that nothing is known of the copies there (RR-19)."""

    ledger_id: int
    moved: list[Moved] = field(default_factory=list)
    refilled: list[Refilled] = field(default_factory=list)
    recovered: bool = False
    sealed: bool = False
    locked_by: str | None = None
    deleted: bool = False
    open_tail_lost: tuple[BookieId, ...] = ()
    problems: list[str] = field(default_factory=list)
    entries_copied: int = 0
    bytes_copied: int = 0
    not_admitting: set[BookieId] = field(default_factory=set)

    def __repr__(self) -> str:
        done = f"{len(self.moved)} moved, {len(self.refilled)} filled in, {counted(self.entries_copied, 'entry', 'entries')} copied"
        state = "deleted meanwhile" if self.deleted else "complete" if self.is_complete else "not complete"
        return f"<RepairReport ledger {self.ledger_id}: {done}, {state}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import repairs, table

        return table.html(*repairs.repair(self))

    @property
    def is_complete(self) -> bool:
        """Return True if nothing is left to do: no problem, no undecided tail that is lost, and nobody else at work."""
        return not (self.problems or self.open_tail_lost or self.locked_by)

    @property
    def changed(self) -> bool:
        """Return True if the repair changed anything."""
        return bool(self.moved or self.refilled or self.recovered or self.sealed)


@dataclass(frozen=True, slots=True)
class StillNamed:
    """A ledger with a fragment on the bookie. ``written``: it is OPEN and its last fragment names the bookie, so that its writer, if it is
    alive, uses the bookie now. ``log``: the log that it names as its own. ``problem``: its metadata cannot be understood, so nothing is
    known."""

    ledger_id: int
    state: LedgerState | None = None
    written: bool = False
    log: str | None = None
    problem: str | None = None


@dataclass(slots=True)
class DecommissionReport:
    """The result of a decommission. ``still_named`` comes from a look at all ledgers after the last repair. ``changes`` are the repairs
    that changed something, ``in_vain`` is the last repair of each ledger that stayed incomplete. ``writable``: the bookie takes new
    ledgers, or did so during each of the last looks, so there may be more. ``runs_at``: host and port where something still takes
    connections although the bookie is registered no more: its process may be frozen, or cut off from the metadata store, so its cookie was
    not deleted. ``unseen`` is the reason why nobody can tell whether its process has ended, if its cookie was not deleted for that, and ""
    otherwise."""

    bookie: BookieId
    changes: list[RepairReport] = field(default_factory=list)
    in_vain: dict[int, RepairReport] = field(default_factory=dict)
    still_named: list[StillNamed] = field(default_factory=list)
    registered: bool = False
    writable: bool = False
    cookie_deleted: bool = False
    runs_at: tuple[str, int] | None = None
    unseen: str = ""

    def __repr__(self) -> str:
        done = f"{counted(len(self.changes), 'repair')}, still named by {counted(len(self.still_named), 'ledger')}"
        return f"<DecommissionReport bookie {self.bookie}: {done}, {'complete' if self.is_complete else 'not complete'}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import repairs, table

        return table.html(*repairs.decommission(self))

    @property
    def named_by(self) -> list[int]:
        """The ids of the ledgers that still name the bookie."""
        return [found.ledger_id for found in self.still_named]

    @property
    def is_complete(self) -> bool:
        """True if nothing named the bookie at the last look, and nothing can name it since, because it is read-only or gone (RR-14)."""
        return not self.still_named and not self.writable

    def note(self, repair: RepairReport) -> None:
        """Note a repair. Of several incomplete repairs of one ledger the last one counts."""
        self.in_vain.pop(repair.ledger_id, None)
        if repair.changed:
            self.changes.append(repair)
        elif not repair.is_complete:
            self.in_vain[repair.ledger_id] = repair

    @property
    def repairs(self) -> list[RepairReport]:
        """Return the repairs that changed a ledger, then those that could not."""
        return [*self.changes, *self.in_vain.values()]


@settings
@dataclass(frozen=True, slots=True)
class RepairOptions:
    """The options of a repair. ``lost`` bookies count as gone even if they are registered, ``spared`` ones as there even if they are not,
    because they may come back soon: their replicas stay, and the ledger is not complete. ``only_lost``: look at nothing but their
    replicas, and move them out of fragments that store nothing too. ``recover_open`` allows RR-3, which stops a live writer, after
    ``grace_s`` seconds. ``digest_type`` and ``password`` are used where a ledger's metadata stores none (META-15); stored ones are used as
    they are."""

    full: bool = False
    lost: frozenset[BookieId] = frozenset()
    spared: frozenset[BookieId] = frozenset()
    only_lost: bool = False
    recover_open: bool = False
    grace_s: float = 30.0
    lock_wait_s: float = 30.0
    digest_type: DigestType | None = None
    password: bytes | None = field(default=None, repr=False)
    bytes_per_second: int | None = None
    on_progress: OnProgress | None = None

    def __post_init__(self) -> None:
        """Check the options; raise InvalidArgumentError."""
        check_fields(self, {"grace_s": SECONDS, "lock_wait_s": SECONDS, "password": SECRET, "bytes_per_second": POSITIVE}, DigestType)

    @property
    def access(self) -> LedgerAccess:
        return LedgerAccess(self.digest_type, self.password)


class RepairSettings(TypedDict, total=False):
    """The options that ``BookKeeper.repair_ledger`` takes by name: the fields of RepairOptions, for type checkers."""

    full: bool
    lost: Iterable[BookieId]
    spared: Iterable[BookieId]
    only_lost: bool
    recover_open: bool
    grace_s: float
    lock_wait_s: float
    digest_type: DigestType | DigestName | None
    password: bytes | None
    bytes_per_second: int | None
    on_progress: OnProgress | None


def repair_options(options: Mapping[str, Any]) -> RepairOptions:
    """Return the options that a caller gives by name. Raises InvalidArgumentError for an unknown one."""
    check_names(options, RepairOptions, "option of a repair")
    digest_type = options.get("digest_type")
    named = {"digest_type": None if digest_type is None else digest_type_of(digest_type)}
    found = RepairOptions(**{**options, **named})
    return replace(found, lost=frozenset(found.lost), spared=frozenset(found.spared))
