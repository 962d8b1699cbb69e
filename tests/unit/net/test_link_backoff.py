"""The attempts of a link where somebody takes connections and closes them."""

from __future__ import annotations

import queue
import socket

from bk_core.net.link import BookieLink
from bk_core.net.link_state import BACKOFF_FIRST_NS
from bk_core.net.reactor import Reactor
from bk_core.protocol.link import CUTS_MAX
from bk_core.protocol.wire.messages import ReadRequest, Status

PATIENCE_S = 20.0
S = 1_000_000_000


def test_the_pause_grows_while_nothing_is_heard() -> None:
    """Only bytes from the bookie begin it anew; that the other side has closed is no such thing. LINK-7: a read outlives two cuts."""
    reactor, answers = Reactor(), queue.SimpleQueue[Status]()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        address = listener.getsockname()
        made: queue.SimpleQueue[BookieLink] = queue.SimpleQueue()
        reactor.post(lambda: made.put(BookieLink(reactor, "bookie", "v2", lambda bookie, then: then(address, ""), 1 << 20)))
        link = made.get(timeout=PATIENCE_S)
        try:
            reactor.post(lambda: link.request(ReadRequest(0, 1, 0), 30 * S, lambda status, _: answers.put(status)))
            for _ in range(1 + CUTS_MAX):
                with listener.accept()[0] as peer:
                    peer.recv(4096)
            assert answers.get(timeout=PATIENCE_S) is Status.UNAVAILABLE
            assert link._backoff_ns == BACKOFF_FIRST_NS << 1 + CUTS_MAX
        finally:
            reactor.post(link.close)
            reactor.close()


def test_a_bookie_that_registers_anew_is_connected_to_at_once() -> None:
    """LINK-7: the pause that its absence has made is over, however long it was, for what waits and for what comes."""
    reactor, answers = Reactor(), queue.SimpleQueue[Status]()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        address = listener.getsockname()
        made: queue.SimpleQueue[BookieLink] = queue.SimpleQueue()

        def make() -> None:
            link = BookieLink(reactor, "bookie", "v2", lambda bookie, then: then(address, ""), 1 << 20)
            link._blocked_until_ns, link._backoff_ns = reactor.now_ns() + 3600 * S, 3600 * S
            link.request(ReadRequest(0, 1, 0), 7200 * S, lambda status, _: answers.put(status))
            made.put(link)

        reactor.post(make)
        link = made.get(timeout=PATIENCE_S)
        try:
            reactor.post(link.returned)
            with listener.accept()[0] as peer:
                assert peer.recv(4096)
            assert link._backoff_ns < 3600 * S
        finally:
            reactor.post(link.close)
            reactor.close()
