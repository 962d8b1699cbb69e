"""Helpers of the tests of the checkpoint gateway."""

from __future__ import annotations

from collections.abc import Iterator

from bk_spark.checkpoint.http_parts import PeerGone

LARGE = bytes(range(256)) * 5000  # beyond what a record takes along


def broken() -> Iterator[bytes]:
    raise PeerGone("it ended")
    yield b""
