"""Questions to a server of etcd by HTTP: an answer that comes byte by byte takes no more time than one that does not come."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest

from bk_core.metadata.etcd import http


def test_an_answer_that_does_not_end_is_given_up_in_time() -> None:
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer, suppress(ConnectionError):
                while not ended.wait(0.003):
                    peer.sendall(b"x")

        server = threading.Thread(target=serve)
        server.start()
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            http.ask(listener.getsockname(), "127.0.0.1", None, "/version", 0.5)
        assert time.monotonic() - begun < 10
        ended.set()
        server.join(20)
