"""Counts what a bookie is asked and what it answers: once for each run of entries, never for each entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bk_core.metrics.bookie import ServerCounts
from bk_core.protocol.bookie import Effect, Persist
from bk_core.protocol.bookie.runs import AddsAnswer, ReadsAnswer, RequestedAdds, bodies_in
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import Status

_LENGTH_BYTES = 4  # before each body of a run
_KINDS: Mapping[type, str] = MappingProxyType(
    {
        m.ReadLacRequest: "read_lac",
        m.WriteLacRequest: "write_lac",
        m.ForceLedgerRequest: "force",
        m.BookieInfoRequest: "info",
        m.EntryListRequest: "list",
        m.AuthRequest: "auth",
        m.StartTlsRequest: "start_tls",
        m.UnservedRequest: "unserved",
    }
)


class Traffic:
    """Counts the requests and answers of one bookie's loop."""

    def __init__(self, counts: ServerCounts) -> None:
        self._counts = counts
        self._answers: Mapping[type, Callable[[Any], None]] = {
            AddsAnswer: lambda answer: self._added(answer.status, answer.count),
            m.AddResponse: lambda answer: self._added(answer.status, 1),
            ReadsAnswer: lambda answer: self._read(answer.count, len(answer.bodies) - answer.count * _LENGTH_BYTES),
            m.ReadResponse: self._single,
            m.BatchReadResponse: self._batch,
        }

    def asked_adds(self, run: RequestedAdds) -> None:
        """Count the bytes of a run of adds."""
        self._counts.add_bytes.value += len(run.bodies) - run.count * _LENGTH_BYTES

    def asked(self, request: m.Request, effects: Sequence[Effect]) -> None:
        """Count one request, of which the machine made ``effects``. A fence that was there before changes nothing."""
        if isinstance(request, m.AddRequest):
            self._counts.add_bytes.value += len(request.body)
        elif isinstance(request, (m.ReadRequest, m.BatchReadRequest)):
            if request.fence and any(isinstance(effect, Persist) for effect in effects):
                self._counts.fences.value += 1
            elif isinstance(request, m.ReadRequest) and request.previous_lac is not None:
                self._counts.request("long_poll")
        else:
            self._counts.request(_KINDS.get(type(request), "other"))

    def listed(self) -> None:
        """Count one list of entries."""
        self._counts.request("list")

    def answered(self, answer: Any) -> None:
        """Count an answer that leaves."""
        count = self._answers.get(type(answer))
        if count is not None:
            count(answer)

    def _added(self, status: Status, count: int) -> None:
        if status is Status.OK:
            self._counts.add_entries.value += count
        else:
            self._counts.add_failed(status.name, count)

    def _read(self, entries: int, size: int) -> None:
        self._counts.read_entries.value += entries
        self._counts.read_bytes.value += size

    def _single(self, answer: m.ReadResponse) -> None:
        if answer.body is not None:
            self._read(1, len(answer.body))
        elif answer.status is not Status.OK:  # the end of a long poll brings no entry and is no failure
            self._counts.read_failed(answer.status.name)

    def _batch(self, answer: m.BatchReadResponse) -> None:
        if answer.status is Status.OK:
            entries = bodies_in(answer.bodies)
            self._read(entries, len(answer.bodies) - entries * _LENGTH_BYTES)
        else:
            self._counts.read_failed(answer.status.name)
