"""Watches of keys, all of them in one stream of the connection that there is.

A watch begins at the revision after the one that was read, so nothing is missed in between. It is told of once and then forgotten: who
wants more reads again, and watches from there. A watch whose revision has been compacted away is told of too, because something may have
changed. The watches of a connection end with it; whoever is told of the next connection looks at everything again. A stream in which etcd
refuses a watch is left for another one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import RLock
from typing import Any

from bk_core.background import OwnThread
from bk_core.metadata.etcd._proto import etcd_pb2 as pb
from bk_core.metadata.etcd.connection import Connection, Failure
from bk_core.metadata.etcd.link import Link
from bk_core.metadata.tree.nodes import OnEvent

_LOG = logging.getLogger(__name__)
_REFUSED_S = 0.5  # before another stream; a watch may be refused for another reason than its token, again and again
Span = tuple[bytes, bytes]  # first key, and the end of the range; b"" for that key alone


@dataclass(frozen=True, slots=True)
class Change:
    """A change that a watch is told of: the path, None if it is about every one."""

    path: str | None


@dataclass(slots=True)
class _Armed:
    number: int
    span: Span
    path: str
    functions: list[OnEvent] = field(default_factory=list)


class _Stream:
    """The watches on one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.requests: SimpleQueue[Any] = SimpleQueue()
        self.by_span: dict[Span, _Armed] = {}
        self.by_number: dict[int, _Armed] = {}
        self.last = 0


class Watching:
    """The watches of one store."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = RLock()
        self._stream: _Stream | None = None
        self._closed = False

    def arm(self, span: Span, path: str, revision: int, function: OnEvent) -> None:
        """Call ``function`` once, after the first change of these keys that is later than ``revision``. Without a connection nothing is
        watched: the next one is an occasion to look at everything."""
        connection = self._link.connection
        if connection is None:
            return
        with self._lock:
            if self._closed:
                return
            stream = self._stream
            if stream is None or stream.connection is not connection:
                stream = self._begin(connection)
            armed = stream.by_span.get(span)
            if armed is None:
                stream.last += 1
                armed = _Armed(stream.last, span, path)
                stream.by_span[span] = stream.by_number[armed.number] = armed
                create = pb.WatchCreateRequest(key=span[0], range_end=span[1], start_revision=revision + 1, watch_id=armed.number)
                stream.requests.put(pb.WatchRequest(create_request=create))
            if function not in armed.functions:
                armed.functions.append(function)

    def _begin(self, connection: Connection) -> _Stream:
        if self._stream is not None:
            self._stream.requests.put(None)
        stream = self._stream = _Stream(connection)
        tasks = iter([lambda: self._read(stream)])
        OwnThread("bk-etcd-watch", lambda: next(tasks, None)).start()
        return stream

    def _read(self, stream: _Stream) -> None:
        try:
            with closing(stream.connection.watch(stream.requests)) as responses:
                for response in responses:
                    if _is_refusal(stream, response):
                        _LOG.debug("%s takes a watch no more: %s", stream.connection.address, response.cancel_reason)
                        break
                    self._take(stream, response)
                    del response
                else:
                    raise Failure("UNAVAILABLE", "the stream ended")
        except Failure as failure:
            _LOG.debug("the watches on %s ended: %s", stream.connection.address, failure)
            stream.requests.put(None)
            self._link.lost(stream.connection)
        else:
            stream.requests.put(None)
            self._leave(stream)

    def _leave(self, stream: _Stream) -> None:
        """Give up a stream on a connection that goes on. Whoever watches looks again, which begins another one with the token of then."""
        with self._lock:
            if self._stream is stream:
                self._stream = None
            armed = list(stream.by_number.values())
            stream.by_number.clear()
            stream.by_span.clear()
        time.sleep(_REFUSED_S)
        for one in armed:
            _tell(one.functions, Change(one.path))

    def _take(self, stream: _Stream, response: pb.WatchResponse) -> None:
        if not response.events and not response.compact_revision:
            return
        with self._lock:
            armed = stream.by_number.pop(response.watch_id, None)
            if armed is None:
                return
            stream.by_span.pop(armed.span, None)
        if not response.canceled:
            stream.requests.put(pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=armed.number)))
        _tell(armed.functions, Change(armed.path))

    def close(self) -> None:
        """End the stream."""
        with self._lock:
            self._closed = True
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.requests.put(None)


def _is_refusal(stream: _Stream, response: pb.WatchResponse) -> bool:
    """Return True if etcd does not take a watch, as with a token that has ended: that of a stream is the one with which it began. Newer
    servers do not say which watch."""
    return response.canceled and not response.compact_revision and (response.watch_id < 0 or response.watch_id in stream.by_number)


def _tell(functions: list[Callable[[Any], None]], event: Change) -> None:
    for function in functions:
        try:
            function(event)
        except Exception:
            _LOG.exception("a callback of a metadata watch failed")
