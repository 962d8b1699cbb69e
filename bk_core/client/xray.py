"""X-rays of ledgers: which bookie has which copy of which entry. They neither fence nor write."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bk_core.client.driver import Driver
from bk_core.client.operations import driven, must_not_block, wait_and_tell
from bk_core.client.repair.report import OnProgress, Progress
from bk_core.errors import InvalidArgumentError
from bk_core.protocol.ledger.metadata import BookieId, LedgerAccess, LedgerMetadata
from bk_core.protocol.ledger.plausible import check_plausible
from bk_core.protocol.ledger.xray import BookieXray, EntryState, LedgerXray, ReplicaXray, Stretch, XrayResult
from bk_core.protocol.wire.messages import Status

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper


@dataclass(frozen=True, slots=True)
class XrayProblem:
    """Copies that are not as they should be: the entries of ``stretch`` at one position of a fragment."""

    bookie: BookieId
    position: int
    stretch: Stretch


@dataclass(frozen=True, slots=True, repr=False)
class Xray:
    """Each copy of the entries ``first`` to ``last`` of a ledger, as its bookie has it.

    ``lac`` is the last entry that is known to be acknowledged: the end of a CLOSED ledger, else the highest last add confirmed that a
    bookie gave. What comes after it may never be acknowledged. ``copies`` is the number of those that a bookie told something of: neither
    gone nor silent ones were looked at. ``bookies`` say what each bookie reports of itself, ``replicas`` hold the
    copies, a value for each position of each fragment, as stretches of entries in one state. ``full`` is True if every copy was read. A
    bookie does not say if a ledger is fenced there; ``metadata.state`` says if somebody recovers it, or has closed it.
    """

    ledger_id: int
    metadata: LedgerMetadata
    first: int
    last: int
    lac: int
    full: bool
    bookies: tuple[BookieXray, ...]
    replicas: tuple[ReplicaXray, ...]
    copies: int
    bytes_read: int
    seconds: float

    def __repr__(self) -> str:
        return f"<Xray ledger {self.ledger_id}, entries {self.first} to {self.last}: {'good' if self.is_good else 'in need of repair'}>"

    def _repr_html_(self) -> str:
        """Return the map and the tables that a notebook shows."""
        from bk_core.display import table, xray

        return table.html(*xray.shown(self))

    @property
    def counts(self) -> Mapping[EntryState, int]:
        """The number of copies in each state that occurs."""
        found: dict[EntryState, int] = {}
        for replica in self.replicas:
            for state, count in replica.stretches.counts.items():
                found[state] = found.get(state, 0) + count
        return dict(sorted(found.items()))

    @property
    def problems(self) -> Iterator[XrayProblem]:
        """The copies that are in need of repair: missing, wrong, unreadable, or on a bookie that does not answer or is gone. Copies of
        the fragment that is being written are none only because they are missing: their writer may still send them."""
        for replica in self.replicas:
            for stretch in replica.stretches:
                if replica.is_problem(stretch.state):
                    yield XrayProblem(replica.bookie, replica.position, stretch)

    @property
    def on_their_way(self) -> Iterator[XrayProblem]:
        """The copies that are missing in the fragment that is being written, so that nothing can be said of them."""
        for replica in self.replicas:
            for stretch in replica.stretches if not replica.decided else ():
                if stretch.state is EntryState.MISSING:
                    yield XrayProblem(replica.bookie, replica.position, stretch)

    @property
    def unknown(self) -> int:
        """The number of copies among the problems of which nothing is known, because their bookie does not admit this client (RR-19)."""
        refusing = {seen.bookie for seen in self.bookies if seen.silent is Status.NOT_ADMITTED}
        return sum(one.stretch.count for one in self.problems if one.bookie in refusing and one.stretch.state is EntryState.SILENT)

    @property
    def is_good(self) -> bool:
        """True if there is no problem."""
        return next(self.problems, None) is None

    @property
    def digest_note(self) -> str:
        """The reason why copies may only look wrong, '' if there is no doubt (META-15)."""
        return self.metadata.access_note.removeprefix("; ") if EntryState.CORRUPT in self.counts else ""


def _looked_at(found: XrayResult) -> int:
    unseen = {EntryState.UNASKED, EntryState.SILENT}
    return sum(count for one in found.replicas for state, count in one.stretches.counts.items() if state not in unseen)


def xray_ledger(
    client: BookKeeper,
    ledger_id: int,
    *,
    first: int = 0,
    last: int | None = None,
    full: bool = False,
    access: LedgerAccess | None = None,
    bytes_per_second: int | None = None,
    on_progress: OnProgress | None = None,
) -> Xray:
    """Look at the copies of a ledger's entries. Raises NoSuchLedgerError, and OperationTimeoutError when nothing moves any more."""
    if last is not None and last < first:
        raise InvalidArgumentError(f"last ({last}) lies before first ({first})")
    must_not_block(f"an x-ray of ledger {ledger_id}")
    began = time.monotonic()
    session = client._session
    metadata = client._load(ledger_id)[0].with_access(access or LedgerAccess())
    check_plausible(ledger_id, metadata, first, last)
    session.refresh_bookies()
    view = session.bookies()
    machine = LedgerXray(
        ledger_id,
        metadata,
        None,
        registered=frozenset({*view.writable, *view.readonly}),
        first=first,
        last=last,
        full=full,
        unlisting=session.unlisting.known,
        batch=client.config.protocol == "v2",
        bytes_per_second=bytes_per_second,
        limits=client.config.limits,
    )

    def look() -> Progress:
        return Progress(ledger_id, "x-ray", machine.entries_checked, machine.entries_total, machine.bytes_read)

    with driven(Driver(session, ledger_id), machine, machine.start, metadata) as future:
        found: XrayResult = wait_and_tell(
            future,
            look,
            on_progress or (lambda _: None),
            client.config.operation_timeout_s,
            f"an x-ray of ledger {ledger_id} got no further",
        )
    session.unlisting.learn(machine.unlisting)
    seconds = time.monotonic() - began
    numbers = (_looked_at(found), machine.bytes_read, seconds)
    return Xray(ledger_id, metadata, found.first, found.last, found.lac, full, found.bookies, found.replicas, *numbers)
