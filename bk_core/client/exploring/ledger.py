"""``client.ledger(7)``: one ledger as an object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from bk_core.arguments import checked
from bk_core.client.exploring.copies import LedgerFragment, fragments_of, told_copies
from bk_core.client.here import StaysHere
from bk_core.client.inspect import FoundLedger, found_ledgers
from bk_core.display.moments import moment
from bk_core.display.words import counted, id_text
from bk_core.errors import NoSuchLedgerError
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata, LedgerState
from bk_core.protocol.log.identity import LOG_KEY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bk_core.client.client import BookKeeper


class Ledger(StaysHere):
    """One ledger, as its metadata was when it was read. No bookie is asked, and nobody is fenced.

    >>> ledger = client.ledger(7)
    >>> ledger.state, ledger.bookies, [fragment.ensemble for fragment in ledger.fragments]
    >>> ledger.plot_fragments()
    """

    __slots__ = ("_client", "_found")

    def __init__(self, client: BookKeeper, found: FoundLedger) -> None:
        """``client.ledger`` and ``client.ledgers`` make it, from ``client`` and what was ``found``."""
        self._client = client
        self._found = found

    @property
    def ledger_id(self) -> int:
        """The id of the ledger."""
        return self._found.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The whole metadata.

        Raises MetadataFormatError if what is stored cannot be understood.
        """
        if self._found.metadata is None:
            assert self._found.problem is not None
            raise self._found.problem
        return self._found.metadata

    @property
    def problem(self) -> str | None:
        """The reason for which the metadata cannot be understood; None if it can."""
        return None if self._found.problem is None else str(self._found.problem)

    @property
    def state(self) -> str:
        """The state: "OPEN", "IN_RECOVERY", "CLOSED", or "UNREADABLE" where the metadata cannot be understood."""
        return self._found.state

    @property
    def created_at(self) -> datetime | None:
        """The time at which it was created, in UTC, on its creator's clock or else the metadata store's; None where neither has it."""
        return moment(self._found.created_ms) if self._found.created_ms else None

    @property
    def log(self) -> str | None:
        """The name of the log that it was created for, as its custom metadata says; None for a ledger of its own. The log may be gone, or
        may no longer list it."""
        told = None if self._found.metadata is None else self._found.metadata.custom.get(LOG_KEY)
        return None if told is None else told.decode(errors="replace")

    @property
    def last_entry_id(self) -> int | None:
        """The last entry, -1 without entries; None until it is CLOSED."""
        return self.metadata.last_entry_id if self.state == LedgerState.CLOSED.name else None

    @property
    def length(self) -> int | None:
        """The bytes of all payloads; None until it is CLOSED."""
        return self.metadata.length if self.state == LedgerState.CLOSED.name else None

    @property
    def stored_bytes(self) -> int | None:
        """The bytes that all copies take on bookies, with headers and checksums; None until it is CLOSED."""
        return self._found.stored_bytes

    @property
    def fragments(self) -> tuple[LedgerFragment, ...]:
        """The fragments in order; none where the metadata cannot be understood."""
        return () if self._found.metadata is None else fragments_of(self._found.metadata)

    @property
    def bookies(self) -> tuple[BookieId, ...]:
        """All bookies that a fragment names, sorted."""
        return tuple(sorted({bookie for fragment in self.fragments for bookie in fragment.ensemble}))

    @property
    def dead_bookies(self) -> tuple[BookieId, ...]:
        """The bookies of the ledger that are not registered now, or whose connection to this client broke and that have not answered since.
        No bookie is asked, so one that died this moment may be missing."""
        view = self._client._session.bookies()
        silent = self._client.unanswering(0.0)
        return tuple(bookie for bookie in self.bookies if bookie in silent or bookie not in (*view.writable, *view.readonly))

    def refresh(self) -> Ledger:
        """Read the metadata again, and return the ledger as it is now.

        Raises NoSuchLedgerError.
        """
        return read_ledger(self._client, self.ledger_id)

    def to_dict(self) -> dict[str, Any]:
        """Return its row in the table ``client.ledgers()``, by the names of the columns."""
        return ledger_row(self)

    @checked()
    def plot_fragments(self, *, ax: Any = None, dead: Iterable[str] | None = None) -> Axes:
        """Draw the fragments over the bookies, and return the axes: a bar where a bookie belongs to an ensemble, hatched if it is dead, and
        beside each fragment how many live copies its entries have. Where the entries are striped, a bar is dark where the bookie has an
        entry, or as high as its share of many, and light elsewhere.

        ``ax`` is the axes to draw in, by default a figure of its own. ``dead`` names the bookies that count as dead, by default
        ``dead_bookies``.

        Raises MissingPackageError without matplotlib, and MetadataFormatError if the metadata cannot be understood.
        """
        from bk_core.plots.fragments import draw_fragments

        dead = self.dead_bookies if dead is None else tuple(dead)
        live = set(self.bookies).difference(dead)
        told = [told_copies(*one.live_copies(live), one.write_quorum_size) for one in self.fragments]
        bars = [(one.first_entry_id, one.last_entry_id, one.ensemble, text) for one, text in zip(self.fragments, told, strict=True)]
        metadata = self.metadata
        quorums = f"E={metadata.ensemble_size} Qw={metadata.write_quorum_size} Qa={metadata.ack_quorum_size}"
        title = f"ledger {self.ledger_id}, {self.state}, {quorums}"
        return draw_fragments(bars, title=title, dead=dead, write_quorum_size=metadata.write_quorum_size, ax=ax)

    def __repr__(self) -> str:
        told = "" if self._found.metadata is None else f", {counted(len(self.fragments), 'fragment')}"
        if self.last_entry_id is not None:
            told += f", last entry {self.last_entry_id}, {counted(self.length or 0, 'byte')}"
        return f"<Ledger {self.ledger_id} {self.state}{told}>"

    def _repr_html_(self) -> str:
        """Return the tables that a notebook shows: its facts, and its fragments with their live copies."""
        from bk_core.display import ledgers, table

        found = self._found
        if found.metadata is None:
            return table.html(repr(self).strip("<>"), str(found.problem))
        live = set(self.bookies).difference(self.dead_bookies)
        rows = [
            (
                id_text(one.first_entry_id),
                id_text(one.last_entry_id),
                told_copies(*one.live_copies(live), one.write_quorum_size),
                "  ".join(one.ensemble),
            )
            for one in self.fragments
        ]
        fragments = table.Table(["#first entry", "#last entry", "live copies", "ensemble"], rows)
        return table.html(ledgers.ledger(found.metadata, self.ledger_id, **ledgers.known(found)), fragments)


def read_ledger(client: BookKeeper, ledger_id: int) -> Ledger:
    """Return a ledger as it is stored now. Raises NoSuchLedgerError."""
    found = next(found_ledgers(client, [ledger_id]), None)
    if found is None:
        raise NoSuchLedgerError(f"ledger {ledger_id} does not exist", ledger=ledger_id)
    return Ledger(client, found)


def ledger_summary(ledger: Ledger) -> dict[str, Any]:
    """Return the facts of a ledger for the table of ledgers that people see."""
    from bk_core.display import ledgers

    return ledgers.found_summary(ledger._found)


LEDGER_COLUMNS: Mapping[str, str] = {
    "ledgerId": "BIGINT",
    "state": "STRING",
    "ensembleSize": "INT",
    "writeQuorumSize": "INT",
    "ackQuorumSize": "INT",
    "digestType": "STRING",
    "passwordProtected": "BOOLEAN",
    "guaranteed": "BOOLEAN",
    "lastEntryId": "BIGINT",
    "length": "BIGINT",
    "storedBytes": "BIGINT",
    "fragments": "INT",
    "bookies": "ARRAY<STRING>",
    "createdAt": "TIMESTAMP",
    "log": "STRING",
    "problem": "STRING",
}
"""The columns of a table of ledgers with their types, named as in Spark's table ``ledgers``."""


def ledger_row(ledger: Ledger) -> dict[str, Any]:
    """Return the values of one ledger by the names of ``LEDGER_COLUMNS``; None for what is not known."""
    row: dict[str, Any] = dict.fromkeys(LEDGER_COLUMNS)
    row |= {"ledgerId": ledger.ledger_id, "state": ledger.state, "createdAt": ledger.created_at, "problem": ledger.problem}
    if ledger.problem is not None:
        return row
    metadata = ledger.metadata
    return row | {
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum_size,
        "ackQuorumSize": metadata.ack_quorum_size,
        "digestType": metadata.digest_type.name if metadata.has_digest else None,
        "passwordProtected": metadata.has_password,
        "guaranteed": metadata.guaranteed,
        "lastEntryId": ledger.last_entry_id,
        "length": ledger.length,
        "storedBytes": ledger.stored_bytes,
        "fragments": len(metadata.fragments),
        "bookies": list(ledger.bookies),
        "log": ledger.log,
    }
