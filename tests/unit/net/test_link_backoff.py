"""How often a link tries again where somebody takes connections and closes them."""

from __future__ import annotations

import queue
import socket

from bk_core.net.link import BACKOFF_FIRST_NS, BookieLink
from bk_core.net.reactor import Reactor
from bk_core.protocol.wire.messages import ReadRequest, Status

PATIENCE_S = 20.0
S = 1_000_000_000


def test_the_pause_grows_while_nothing_is_heard() -> None:
    """Only bytes from the bookie begin it anew; that the other side has closed is no such thing."""
    reactor, answers = Reactor(), queue.SimpleQueue[Status]()
    pauses: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        address = listener.getsockname()
        made: queue.SimpleQueue[BookieLink] = queue.SimpleQueue()
        reactor.post(lambda: made.put(BookieLink(reactor, "bookie", "v2", lambda bookie, then: then(address, ""), 1 << 20)))
        link = made.get(timeout=PATIENCE_S)
        try:
            for entry in range(3):
                link._blocked_until_ns = 0  # as if the pause were over
                reactor.post(lambda entry=entry: link.request(ReadRequest(0, 1, entry), 30 * S, lambda status, _: answers.put(status)))
                with listener.accept()[0] as peer:
                    peer.recv(4096)
                assert answers.get(timeout=PATIENCE_S) is Status.UNAVAILABLE
                pauses.append(link._backoff_ns)
        finally:
            reactor.post(link.close)
            reactor.close()
    assert pauses == [2 * BACKOFF_FIRST_NS, 4 * BACKOFF_FIRST_NS, 8 * BACKOFF_FIRST_NS] and link.failed_recently
