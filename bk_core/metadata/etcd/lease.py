"""The session of a client at etcd: a lease, which its ephemeral keys carry. It is taken when the first of them is made.

A lease ends when nobody has kept it alive for its whole time, and with it go its keys. A new leader of etcd gives every lease its whole
time again. Only the servers say that a lease is gone: this client goes on to keep it alive for as long as it does not hear that.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from threading import RLock

from bk_core.background import WHEN_WOKEN, BackgroundLoop
from bk_core.errors import CLIENT_CLOSED, ClientClosedError, MetadataError
from bk_core.metadata.etcd._proto import etcd_pb2 as pb
from bk_core.metadata.etcd.connection import Failure
from bk_core.metadata.etcd.link import Link
from bk_core.metadata.etcd.words import Meaning, meaning_of

_LOG = logging.getLogger(__name__)
_AGAIN_S = 0.2
_REVOKE_S = 2.0


class Lease:
    """The lease of one store. ``on_lost`` is told when the servers say that it is gone, and another one may be taken."""

    def __init__(self, link: Link, session_timeout_s: float, on_lost: Callable[[], None]) -> None:
        self._link = link
        self._ttl_s = max(1, math.ceil(session_timeout_s))
        self._on_lost = on_lost
        self._loop: BackgroundLoop | None = None
        self._closed = False
        self._lock = RLock()
        self.number = 0  # changed under ``_lock``

    def taken(self, timeout_s: float) -> int:
        """Return the number of the lease, after taking one if there is none. Raises this project's errors, ClientClosedError once it is
        closed. A lease of which the answer is lost, or that comes after the end, ends by itself."""
        if self.number:
            return self.number
        answer = self._link.call("grant", pb.LeaseGrantRequest(TTL=self._ttl_s), timeout_s)
        with self._lock:
            if self._closed:
                raise ClientClosedError(CLIENT_CLOSED)
            if not self.number:  # else another thread was faster, and this one's lease ends by itself
                self._ttl_s, self.number = int(answer.TTL), int(answer.ID)
                self._keep()
            return self.number

    def _keep(self) -> None:
        if self._loop is not None:
            self._loop.wake()
        elif not self._closed:
            self._loop = BackgroundLoop("bk-etcd-lease", self._turn, of_client=True)
            self._loop.start(self._ttl_s / 3)

    def gone(self, number: int) -> None:
        """Note that the servers know no such lease."""
        with self._lock:  # another thread may say so, too, and take the next one at once
            is_news = bool(number) and self.number == number
            if is_news:
                self.number = 0
        if is_news:
            _LOG.warning("the session with etcd has ended; what it held is made again in a new one")
            self._on_lost()

    def _turn(self) -> float | None:
        if self._closed:
            return None
        number, connection = self.number, self._link.connection
        if not number:
            return WHEN_WOKEN
        if connection is None:
            return _AGAIN_S
        try:
            left = connection.keep_alive(number, max(1.0, self._ttl_s / 3))
        except Failure as failure:
            if meaning_of(failure.code, failure.words) is Meaning.NO_LEASE:
                self.gone(number)
                return WHEN_WOKEN
            if not self._closed:
                self._link.lost(connection)
            return _AGAIN_S
        if left <= 0:
            self.gone(number)
            return WHEN_WOKEN
        return left / 3

    def close(self, wait_s: float) -> None:
        """End the lease at the servers, and with it its keys, as far as they can be reached in this time."""
        with self._lock:
            self._closed = True
            number, self.number = self.number, 0
        if self._loop is not None:
            self._loop.stop()
        if number and self._link.connected:
            begun = time.monotonic()
            with suppress(MetadataError, Failure):
                self._link.call("revoke", pb.LeaseRevokeRequest(ID=number), min(wait_s, _REVOKE_S))
            wait_s -= time.monotonic() - begun
        if self._loop is not None:
            self._loop.join(max(wait_s, 0.1))
