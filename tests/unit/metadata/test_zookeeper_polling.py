"""Waiting for kazoo's connections: what is ready, for how long, and files that are closed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

import pytest

from bk_core.metadata.zookeeper.polling import ready


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_what_can_be_read_and_what_can_be_written(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    assert ready([here, there], [], 0) == ([], [], [])
    assert ready([here], [here], None) == ([], [here], [])
    there.send(b"x")
    assert ready([here, there], [], None) == ([here], [], [])
    assert ready([here], [here, there], 0) == ([here], [here, there], [])


def test_an_end_can_be_read(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    there.close()
    assert ready([here], [], 1) == ([here], [], [])
    assert ready([], [here], 1) == ([], [here], [])  # the write fails, and says so


def test_a_pipe_that_nobody_reads_can_be_written() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert ready([], [writing], 1) == ([], [writing], [])
    finally:
        os.close(writing)


def test_the_time_is_waited(pair: tuple[socket.socket, socket.socket]) -> None:
    began = time.monotonic()
    assert ready([pair[0]], [], 0.0501) == ([], [], [])
    assert time.monotonic() - began >= 0.0501


def test_files_that_are_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    number = os.dup(pair[0].fileno())
    os.close(number)
    with pytest.raises(ValueError, match="closed"):
        ready([number], [], 0)
    pair[0].close()
    with pytest.raises(TypeError, match="closed"):
        ready([], [pair[0]], 0)
