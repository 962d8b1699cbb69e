"""The servers of etcd, each asked by itself: what one of them forgot by an error of its own is known to the others (BKE-10)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bk_core.errors import BkError, MetadataContradictionError, MetadataUnavailableError
from bk_core.metadata.etcd._proto import etcd_pb2 as pb
from bk_core.metadata.etcd.connection import Connection, Failure
from bk_core.metadata.etcd.link import Link
from bk_core.protocol.bookie.suspicion import Absence, judge_absence


class Members:
    """Connections to all servers of the URI, for as long as one question takes. A server that does not answer is asked no more."""

    def __init__(self, link: Link, timeout_s: float) -> None:
        self._link = link
        self._deadline = time.monotonic() + timeout_s
        self._there: list[Connection] = []
        self._failed: dict[str, str] = {}

    def _open(self) -> None:
        for host, port in self._link.servers:
            try:
                self._there.append(self._link.reach(host, port, self._left_s()))
            except Failure as failure:
                self._failed[f"{host}:{port}"] = failure.code.lower().replace("_", " ")
            except BkError as error:
                self._failed[f"{host}:{port}"] = str(error.args[0])

    def close(self) -> None:
        for one in self._there:
            one.close()

    def _left_s(self) -> float:
        return max(self._deadline - time.monotonic(), 0.001)

    def without(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return those keys that no server has. Raises MetadataUnavailableError unless more than half of the servers answer, and
        MetadataContradictionError if one of them has a key that another one lacks."""
        gone = []
        for key in keys:
            has = {one.address: found for one in tuple(self._there) if (found := self._has(one, key)) is not None}
            match judge_absence(has.values(), len(self._link.servers)):
                case Absence.GONE:
                    gone.append(key)
                case Absence.CONTRADICTED:
                    there, others = (", ".join(address for address, found in has.items() if found is sought) for sought in (True, False))
                    raise MetadataContradictionError(f"etcd at {there} has {key.decode()}, and etcd at {others} does not")
                case Absence.UNKNOWN:
                    why = "; ".join(f"{address}: {reason}" for address, reason in self._failed.items())
                    text = f"{len(has)} of {len(self._link.servers)} servers of etcd answer"
                    raise MetadataUnavailableError(f"{text}, and what is gone must be gone from most ({why})")
        return gone

    def _has(self, one: Connection, key: bytes) -> bool | None:
        """None if the server does not answer."""
        try:
            answer = self._link.ask(one, "range", pb.RangeRequest(key=key, count_only=True), self._left_s())
        except Failure as failure:
            self._there.remove(one)
            one.close()
            self._failed[one.address] = failure.code.lower().replace("_", " ")
            return None
        return bool(answer.count)


@contextmanager
def members_of(link: Link, timeout_s: float) -> Iterator[Members]:
    """Yield the servers that can be reached. All that is asked of them takes ``timeout_s`` seconds at most."""
    made = Members(link, timeout_s)
    try:
        made._open()
        yield made
    finally:
        made.close()
