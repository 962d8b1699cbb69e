"""Ledger metadata as an immutable value and the pure changes it may undergo (META-1..META-11, metadata.md 3)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from bk_core.display.words import counted
from bk_core.errors import InvalidArgumentError, MetadataFormatError

BookieId = str  # stored and compared as text (metadata.md 4.2); an address only after resolution

GWQ_MARK = "gwq"  # custom metadata, b"1" from create on: every entry below the end reaches all Qw bookies (G-0)
GWQ_SEAL = "gwq.sealed"  # custom metadata, b"1" added by the closing compare-and-set of a client that kept the promise (G-13)


class LedgerState(Enum):
    """The state of a ledger: it is written, recovered, or has an end that never changes."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class DigestType(IntEnum):
    """Values are those of the stored metadata (wire-protocol.md 7.2). MAC is BookKeeper's name for HMAC-SHA1."""

    CRC32 = 1
    MAC = 2
    CRC32C = 3
    DUMMY = 4


DigestName: TypeAlias = Literal["CRC32C", "CRC32", "MAC", "HMAC", "DUMMY"]
"""A digest type as callers name it. HMAC is another word for MAC."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """The entries from ``first_entry_id`` up to the next fragment, all on one ensemble. ``unknown_fields`` is as in LedgerMetadata."""

    first_entry_id: int
    ensemble: tuple[BookieId, ...]
    unknown_fields: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class LedgerAccess:
    """The digest type and password that a caller gave; None where the caller gave none."""

    digest_type: DigestType | None = None
    password: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """One version of a ledger's metadata (META-1).

    ``last_entry_id`` and ``length`` have a meaning only when CLOSED, and are -1 and 0 before. ``format_version`` is kept on every rewrite
    (metadata.md 3.2). ``unknown_fields`` holds protobuf fields this code does not know, byte for byte (META-8). ``has_digest`` and
    ``stores_password`` say if a digest type and a password, perhaps an empty one, are stored; if not, ``digest_type`` or ``password`` is
    what a caller gave (META-15). ``has_password`` says if the ledger is protected. ``ctime_ms`` is when its creator made it, on the
    creator's clock, in milliseconds since 1970; None if the creator did not say (metadata.md 3.6).
    """

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    state: LedgerState
    fragments: tuple[Fragment, ...]
    last_entry_id: int = -1
    length: int = 0
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = field(default=b"", repr=False)
    custom: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    ctime_ms: int | None = None
    creator_token: int | None = None
    format_version: int = 3
    unknown_fields: bytes = field(default=b"", repr=False)
    stores_password: bool = field(default=True, repr=False)
    custom_unknown_fields: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)  # per key of ``custom`` (META-8)
    has_digest: bool = True

    def __repr__(self) -> str:
        quorums = f"E={self.ensemble_size} Qw={self.write_quorum_size} Qa={self.ack_quorum_size}"
        end = f", last entry {self.last_entry_id}, {counted(self.length, 'byte')}" if self.state is LedgerState.CLOSED else ""
        return f"<LedgerMetadata {self.state.name} {quorums}, {counted(len(self.fragments), 'fragment')}{end}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import ledgers, table

        return table.html(ledgers.ledger(self), ledgers.fragments(self.fragments))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the contents of the views, because a view of a dict does not pickle."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return _rebuild, ({**values, "custom": dict(self.custom)},)

    def check(self) -> None:
        """Check the form of the metadata: its quorums, and the order and size of its fragments. Duplicate bookies are tolerated when old
        ledgers are read.

        Raises MetadataFormatError.

        Rules: META-2, META-4; scenario 60.
        """
        e, w, a = self.ensemble_size, self.write_quorum_size, self.ack_quorum_size
        if not e >= w >= a >= 1:
            raise MetadataFormatError(f"quorums E={e} Qw={w} Qa={a} break E >= Qw >= Qa >= 1")
        if not self.fragments:
            raise MetadataFormatError("ledger metadata has no fragment")
        previous = -1
        for index, fragment in enumerate(self.fragments):
            if index == 0 and fragment.first_entry_id != 0:
                raise MetadataFormatError(f"first fragment starts at entry {fragment.first_entry_id}, not 0")
            if fragment.first_entry_id <= previous:
                raise MetadataFormatError(f"fragments not in order: {fragment.first_entry_id} after {previous}")
            if len(fragment.ensemble) != e:
                raise MetadataFormatError(f"fragment {fragment.first_entry_id} has {len(fragment.ensemble)} bookies, not {e}")
            previous = fragment.first_entry_id
        if self.state is LedgerState.CLOSED and self.last_entry_id < -1:
            raise MetadataFormatError(f"closed ledger with last entry {self.last_entry_id}")

    @property
    def has_password(self) -> bool | None:
        """True if the ledger was created with a password, False if with the empty one, and None if its metadata stores none, as releases
        before 4.2 left it: nobody can tell then."""
        return self.password != b"" if self.stores_password else None

    @property
    def access(self) -> LedgerAccess:
        """The password and digest type by which entries of this ledger are checked, to be passed on to other versions of the
        same metadata."""
        return LedgerAccess(self.digest_type, self.password)

    def with_access(self, access: LedgerAccess) -> LedgerMetadata:
        """Return the metadata with ``access`` in place of what is not stored. Stored values stay, whatever the caller gave (META-15)."""
        digest = None if self.has_digest else access.digest_type
        password = None if self.stores_password else access.password
        if digest is None and password is None:
            return self
        digest_type = self.digest_type if digest is None else digest
        return replace(self, digest_type=digest_type, password=self.password if password is None else password)

    @property
    def access_note(self) -> str:
        """Return the likely reason for a wrong digest, if the metadata stores no digest type or password, else ''. It is for messages about
        such entries."""
        missing = [name for name, stored in (("digest type", self.has_digest), ("password", self.stores_password)) if not stored]
        if not missing:
            return ""
        used = f"{self.digest_type.name} {'with a password' if self.password else 'without a password'} was used"
        lacks = f"its metadata (format {self.format_version}) stores no {' and no '.join(missing)}"
        return f"; {lacks}, and {used}: name those it was written with"

    @property
    def last_fragment(self) -> Fragment:
        """The fragment of the newest entries."""
        return self.fragments[-1]

    @property
    def guaranteed(self) -> bool:
        """True if writers and recoverers must keep the rules of replication-protocol.md 9 (G-0). With Qw = Qa they hold anyway, and the
        mark has no effect."""
        return self.custom.get(GWQ_MARK) == b"1" and self.write_quorum_size > self.ack_quorum_size

    @property
    def sealed(self) -> bool:
        """True if the ledger was closed by a client that saw every entry on all Qw bookies, or was filled up since (G-13, G-27)."""
        return self.custom.get(GWQ_SEAL) == b"1"

    def fragment_of(self, entry_id: int) -> Fragment:
        """Return the fragment that holds ``entry_id``: the one with the greatest first entry that is not above it.

        Raises InvalidArgumentError for an entry before the first fragment.

        Rule: META-5.
        """
        index = bisect_right(self.fragments, entry_id, key=lambda f: f.first_entry_id) - 1
        if index < 0:
            raise InvalidArgumentError(f"entry {entry_id} lies before the first fragment")
        return self.fragments[index]

    def first_entry_after(self, entry_id: int) -> int | None:
        """Return the first entry of the fragment after that of ``entry_id``, or None if there is none. The fragment is found as
        ``fragment_of`` does.

        Rule: META-5.
        """
        index = bisect_right(self.fragments, entry_id, key=lambda f: f.first_entry_id)
        return self.fragments[index].first_entry_id if index < len(self.fragments) else None

    def with_ensemble(self, first_entry_id: int, ensemble: tuple[BookieId, ...]) -> LedgerMetadata:
        """Return the metadata with ``ensemble`` as the bookies from ``first_entry_id`` on. The ensemble replaces that of the last fragment
        if this starts at the same entry, else a fragment is appended.

        Rules: EC-6, EC-7, META-8.
        """
        last = self.last_fragment
        if first_entry_id < last.first_entry_id:
            raise AssertionError(f"fragment at {first_entry_id} below the last one at {last.first_entry_id} (EC-6)")
        kept = self.fragments[:-1] if first_entry_id == last.first_entry_id else self.fragments
        carried = last.unknown_fields if first_entry_id == last.first_entry_id else b""  # META-8
        return replace(self, fragments=(*kept, Fragment(first_entry_id, ensemble, carried)))

    def in_recovery(self) -> LedgerMetadata:
        """Return the metadata as IN_RECOVERY (RC-1)."""
        return replace(self, state=LedgerState.IN_RECOVERY)

    def closed(self, last_entry_id: int, length: int) -> LedgerMetadata:
        """Return the metadata as CLOSED at this end (CL-3, RC-17)."""
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)

    def with_seal(self) -> LedgerMetadata:
        """Return the metadata with the seal, the one change of custom metadata after create (META-7). The closing compare-and-set makes it
        (G-13)."""
        return replace(self, custom=MappingProxyType({**self.custom, GWQ_SEAL: b"1"}))


def _rebuild(values: dict[str, Any]) -> LedgerMetadata:
    return LedgerMetadata(**{**values, "custom": MappingProxyType(values["custom"])})
