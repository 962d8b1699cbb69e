"""Makes the list of a ledger's entries in pieces, so that others are served in between (BKE-7; wire-protocol.md 8.10)."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from bk_core.protocol.wire.messages import EntryListRequest

LIST_ROWS = 2000  # the rows of the storage that one piece looks at

_HEADER = struct.Struct(">ii56x")
_GROUP = struct.Struct(">qqii")
_NUMBER_MAX = (1 << 31) - 1
_LONG = 3  # the runs of a group that are kept: the first, the second, the last

EntryIds = tuple[int, int]  # the first of consecutive ids, and their number


class EntryListEncoder:
    """Turns ascending runs of ids into the blob of a list.

    A group is one run, as Apache's encoders write it; or at least three runs of the same size at the same distance, so that the entries
    that a bookie holds of a striped ledger are one group instead of 24 bytes for each run.
    """

    __slots__ = ("_group", "_groups", "_run")

    def __init__(self) -> None:
        self._groups = bytearray()
        self._group: list[EntryIds] = []  # the first, the second and the last run of the group under way
        self._run: EntryIds | None = None  # this run may still grow

    def add(self, runs: Iterable[EntryIds]) -> None:
        for first, count in runs:
            if self._run is not None and self._run[0] + self._run[1] == first and self._run[1] + count <= _NUMBER_MAX:
                self._run = (self._run[0], self._run[1] + count)
            else:
                self._end_run()
                self._run = (first, count)

    @property
    def size(self) -> int:
        """The bytes so far; runs not written yet add a few."""
        return _HEADER.size + len(self._groups)

    def blob(self) -> bytes:
        """Return all of the blob. Nothing may be added afterwards."""
        self._end_run()
        self._end_group()
        return _HEADER.pack(0, len(self._groups) // _GROUP.size) + bytes(self._groups)

    def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        if not self._goes_on(run):
            self._end_group()
        if len(self._group) == _LONG:
            self._group[-1] = run
        else:
            self._group.append(run)

    def _goes_on(self, run: EntryIds) -> bool:
        """Return True if the run has the size of the group's others and, once there is one, their distance."""
        group = self._group
        if not group or run[1] != group[0][1]:
            return not group
        distance = run[0] - group[-1][0]
        return distance <= _NUMBER_MAX and (len(group) < 2 or distance == group[1][0] - group[0][0])

    def _end_group(self) -> None:
        group, self._group = self._group, []
        if len(group) == _LONG:
            (first, count), (second, _), (last, _) = group
            self._groups += _GROUP.pack(first, last, count, second - first)
            return
        for first, count in group:
            self._groups += _GROUP.pack(first, first, count, 0)


class EntryListing:
    """A request that is being answered. Entries from ``next_id`` on were not looked at yet."""

    __slots__ = ("encoder", "next_id", "request")

    def __init__(self, request: EntryListRequest) -> None:
        self.request = request
        self.encoder = EntryListEncoder()
        self.next_id = 0
