"""The parts of a ledger list: segments, what committing writers bring, references into the history, properties, marks of batches.

Rows and bytes inside a segment: every entry of a segment but its last holds exactly ``rows_per_entry`` rows, the last holds the rest
(1 .. rows_per_entry), so row counts are exact at every position. Bytes are exact at the ends of a segment and shared out evenly over the
rows in between. ``rows_per_entry`` 0 means that it is not known (lists of format 1): then rows are shared out evenly over the entries too,
and positions inside an entry do not arise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from bk_core.arguments import settings
from bk_core.errors import ArgumentTypeError, InvalidArgumentError
from bk_core.protocol.ledger.metadata import DigestName, DigestType
from bk_core.protocol.ledger.quorums import check_sizes
from bk_core.protocol.log.position import Position

EntryFormat: TypeAlias = Literal["arrow", "raw"]
ENTRY_FORMATS: tuple[EntryFormat, ...] = get_args(EntryFormat)
_DIGESTS: Mapping[str, DigestType] = MappingProxyType({**DigestType.__members__, "HMAC": DigestType.MAC})
EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Segment:
    """Entries ``first_entry_id .. last_entry_id`` (inclusive) of one ledger. ``last_entry_id`` is None while the segment is live.

    ``schema_id`` indexes ``LedgerList.schemas``: the schema that its entries were written with.
    """

    seq: int
    ledger_id: int
    first_entry_id: int
    last_entry_id: int | None
    rows: int = 0
    bytes: int = 0
    committed_at_ms: int = 0
    rows_per_entry: int = 1
    schema_id: int = 0

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import logs, table

        return table.html(logs.segments([self]))

    @property
    def live(self) -> bool:
        """Return True while a writer may add entries at the segment's end, which the list does not know yet."""
        return self.last_entry_id is None

    @property
    def entries(self) -> int:
        """The number of entries; 0 while live and for a segment closed without any."""
        return 0 if self.last_entry_id is None else self.last_entry_id - self.first_entry_id + 1

    @property
    def written_off(self) -> bool:
        """Return True for a segment that `bk log repair` has emptied, because its ledger did not exist any more (GRD-5). How many rows each
        of its entries had is not known, and no other segment without entries is like that."""
        return self.last_entry_id is not None and not self.entries and not self.rows_per_entry

    @property
    def after_seq(self) -> int:
        """Return the sequence number of the next segment."""
        return self.seq + 1

    @property
    def after_entry(self) -> int:
        """The entry after the last one; of a segment without entries its first."""
        return self.first_entry_id + self.entries

    def first_position(self) -> Position:
        """Return the position of the segment's first entry."""
        return Position(self.seq, self.first_entry_id)

    def rows_in(self, entry: int) -> int | None:
        """Return the rows of one entry of this segment; None if the number is not known."""
        if self.rows_per_entry == 0:
            return None
        if entry == self.last_entry_id:
            return self.rows - self.rows_per_entry * (self.entries - 1)
        return self.rows_per_entry

    def counts_before(self, entry: int, row: int) -> tuple[int, int]:
        """Return (rows, bytes) of this segment before ``row`` of ``entry``, which lies in it or is the end of it."""
        done = entry - self.first_entry_id
        if self.rows_per_entry:
            return self.counts_of(min(self.rows, done * self.rows_per_entry + row))
        return self.counts_of(done)

    # --- units: rows where rows per entry are known, else entries -----------------------------------------------------

    @property
    def units(self) -> int:
        """Return the number of rows, or of entries where the rows per entry are not known."""
        return self.rows if self.rows_per_entry else self.entries

    def units_before(self, entry: int, row: int) -> int:
        """Return the units before ``row`` of ``entry``, which lies in the segment or is the end of it."""
        done = entry - self.first_entry_id
        return min(self.rows, done * self.rows_per_entry + row) if self.rows_per_entry else done

    def counts_of(self, units: int) -> tuple[int, int]:
        """Return (rows, bytes) of the first ``units`` units."""
        if not self.units:
            return 0, 0
        return self.rows * units // self.units, self.bytes * units // self.units

    def position_after(self, units: int) -> Position:
        """Return the position after the first ``units`` units; the end of the segment is spelled as entry ``last_entry_id`` + 1."""
        if units == self.units:
            return Position(self.seq, self.first_entry_id + self.entries)
        per_entry = self.rows_per_entry or 1
        return Position(self.seq, self.first_entry_id + units // per_entry, units % per_entry)

    def units_within(self, rows: int | None, size: int | None) -> int:
        """Return the greatest number of first units with at most ``rows`` rows and ``size`` bytes."""
        return min(_most(self.rows, self.units, rows), _most(self.bytes, self.units, size))


def _most(total: int, parts: int, limit: int | None) -> int:
    """Return the largest n <= parts with total * n // parts <= limit."""
    if limit is None or total == 0 or limit >= total:
        return parts
    return min(parts, ((limit + 1) * parts - 1) // total) if limit >= 0 else 0


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """The range that a committing writer brings: acknowledged entries of one ledger, both ends inclusive, with ``bytes`` of payload and
    ``rows`` in it.

    Every entry but the last holds ``rows_per_entry`` rows (0: not known, see above).
    """

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    rows: int
    bytes: int
    rows_per_entry: int = 1

    def check(self) -> None:
        """Raise InvalidArgumentError for an impossible range, or rows that do not fit ``rows_per_entry``."""
        if not 0 <= self.first_entry_id <= self.last_entry_id:
            raise InvalidArgumentError(f"bad entry range {self.first_entry_id}..{self.last_entry_id} of ledger {self.ledger_id}")
        entries, k = self.last_entry_id - self.first_entry_id + 1, self.rows_per_entry
        if self.rows < 0 or self.bytes < 0 or k < 0 or (k and not k * (entries - 1) < self.rows <= k * entries):
            raise InvalidArgumentError(
                f"entries {self.first_entry_id}..{self.last_entry_id} of ledger {self.ledger_id} cannot hold {self.rows} rows at {k} rows "
                f"per entry and {self.bytes} bytes; every entry but the last holds rowsPerEntry rows (0: not known)"
            )


@dataclass(frozen=True, slots=True)
class HistoryRef:
    """``count`` consecutive segments from ``first_seq``, kept in entry ``entry_id`` of the closed history ledger ``ledger_id``.

    Level 0 holds segments, level n holds references of level n - 1 and below. ``min_ledger .. max_ledger`` spans every ledger id in it,
    those of the data and those of the history ledgers below, so that one that is looked for is seldom looked for in vain;
    ``first_ms .. last_ms`` spans the commit times.
    """

    level: int
    ledger_id: int
    entry_id: int
    first_seq: int
    count: int
    rows: int
    bytes: int
    min_ledger: int
    max_ledger: int
    first_ms: int
    last_ms: int

    @property
    def after_seq(self) -> int:
        return self.first_seq + self.count


@dataclass(frozen=True, slots=True)
class Mark:
    """The last committed batch of a query, the time of its commit (0: not known), and its rows and payload bytes (None: not known)."""

    batch_id: int
    at_ms: int = 0
    rows: int | None = None
    bytes: int | None = None


def stored_name(name: str) -> str:
    """Return the name of a field of ``LogProperties`` in lists and in options of Spark."""
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


_ALWAYS_TOLD = frozenset({"entry_format", "ensemble_size", "write_quorum_size", "ack_quorum_size", "schema", "extra"})


@settings
@dataclass(frozen=True, slots=True)
class LogProperties:
    """The settings by which entries of a log are made and kept.

    ``entry_format`` is "raw", where each entry is what its writer gave, or "arrow", where entries are Arrow record batches, as Spark writes
    them. ``schema`` is a serialised Arrow schema in base64, or "" until the first write gives it. With ``guaranteed_write_quorum`` every
    entry of a data ledger reaches its whole write quorum before the ledger is sealed.

    ``Log.apply_retention`` and `bk log trim --retention` trim segments that are older than ``retention_ms``, and those after which there
    are ``retention_bytes`` already. A commit forgets marks of queries that have not committed for ``committed_retention_ms``. None keeps
    them for ever.

    Raises what ``check`` does, with the names of Python. What a list holds is checked where it is used (``unchecked_properties``): another
    release may have stored words that this one does not know.
    """

    entry_format: EntryFormat = "raw"
    schema: str = ""
    ensemble_size: int = 3
    write_quorum_size: int = 3
    ack_quorum_size: int = 2
    digest_type: DigestName = "CRC32C"
    retention_ms: int | None = None
    retention_bytes: int | None = None
    guaranteed_write_quorum: bool = False
    committed_retention_ms: int | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: EMPTY)

    def __repr__(self) -> str:
        """Name the entry format, the quorums, and of the rest what is not as by default. A schema is told by its size: serialised it fills
        a page."""
        given = ((one, getattr(self, one.name)) for one in fields(self) if one.name not in _ALWAYS_TOLD)
        told = [f"{self.entry_format} entries", f"quorums {self.ensemble_size}/{self.write_quorum_size}/{self.ack_quorum_size}"]
        told += [f"{one.name}={value!r}" for one, value in given if value != one.default]
        told += [f"schema of {len(self.schema):,} characters"] if self.schema else []
        return f"<LogProperties {', '.join(told)}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import logs, table

        return table.html(logs.properties(self))

    def __post_init__(self) -> None:
        self._spell()
        self.check(str)

    def _spell(self) -> None:
        """Give known names one spelling: case does not matter, and HMAC is another word for MAC. An unknown one stays as it was typed, for
        the error that ``check`` raises."""
        if isinstance(self.entry_format, str) and (entry_format := self.entry_format.lower()) in ENTRY_FORMATS:
            object.__setattr__(self, "entry_format", entry_format)
        if isinstance(self.digest_type, str):
            digest = self.digest_type.upper()
            if digest in _DIGESTS:
                object.__setattr__(self, "digest_type", _DIGESTS[digest].name)

    def check(self, spelled: Callable[[str], str] = stored_name) -> None:
        """Check that ledgers can be written with these properties: E >= Qw >= Qa >= 1, entry format and digest type are known, retentions
        are positive.

        ``spelled`` writes a field's name as the caller gave it; it is ``str`` for Python's names.

        Raises InvalidArgumentError, and ArgumentTypeError for a property of the wrong kind.

        Rule: CR-1.
        """
        self._check_kinds(spelled)
        for name, known in (("digest_type", tuple(DigestType.__members__)), ("entry_format", ENTRY_FORMATS)):
            if getattr(self, name) not in known:
                raise InvalidArgumentError(f"{spelled(name)} must be one of {', '.join(known)}, not {getattr(self, name)!r}")
        check_sizes(self.ensemble_size, self.write_quorum_size, self.ack_quorum_size, spelled)
        for name in ("retention_ms", "retention_bytes", "committed_retention_ms"):
            bound = getattr(self, name)
            if bound is not None and bound <= 0:
                raise InvalidArgumentError(f"{spelled(name)} must be positive, or absent to keep everything, not {bound}")

    def _check_kinds(self, spelled: Callable[[str], str]) -> None:
        for name in ("entry_format", "digest_type", "schema"):
            if not isinstance(getattr(self, name), str):
                raise ArgumentTypeError(f"{spelled(name)} must be text, not {getattr(self, name)!r}")
        numbers = ("ensemble_size", "write_quorum_size", "ack_quorum_size", "retention_ms", "retention_bytes", "committed_retention_ms")
        for name in numbers:
            value = getattr(self, name)
            if not (_is_number(value) or (value is None and name.endswith(("_ms", "_bytes")))):
                raise ArgumentTypeError(f"{spelled(name)} must be a whole number, not {value!r}")
        if not isinstance(self.guaranteed_write_quorum, bool):
            raise ArgumentTypeError(f"{spelled('guaranteed_write_quorum')} must be True or False, not {self.guaranteed_write_quorum!r}")


def unchecked_properties(base: LogProperties | None = None, **given: Any) -> LogProperties:
    """Return properties that nobody has checked yet: those that a list holds, or those whose error is to name them as somebody else spells
    them (``check``). Fields that are not given are those of ``base``, or as by default."""
    base = LogProperties() if base is None else base
    made = object.__new__(LogProperties)
    for one in fields(LogProperties):
        object.__setattr__(made, one.name, given.pop(one.name, getattr(base, one.name)))
    assert not given, given
    made._spell()
    return made


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
