"""The protocol as pure computation: bytes and values in, bytes and values out. No sockets, clocks, threads or randomness in here."""

from __future__ import annotations

from typing import TypeAlias

BytesLike: TypeAlias = bytes | bytearray | memoryview  # memoryviews are one-dimensional and of bytes
