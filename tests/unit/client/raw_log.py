"""The content of a log of raw entries, and the ends of its segments."""

from __future__ import annotations

from array import array
from typing import Any

from bk_core.client.log.history import read_log
from bk_core.client.log.reader import LogReader
from bk_core.protocol.limits import Limits
from bk_core.protocol.log.segments import LogProperties

LIMITS = Limits(explicit_lac_ns=5_000_000)
RAW = LogProperties(entry_format="raw")


def contents(client: Any, name: str = "a") -> list[bytes]:
    with LogReader(client, name) as reader:
        return [payload for run in reader.read() for payload in run.payloads()]


def segments(client: Any) -> list[int | None]:
    return [segment.last_entry_id for segment in read_log(client, "a").segments()]


def run_of(*payloads: bytes) -> tuple[bytes, array[int]]:
    offsets = array("q", [0])
    for payload in payloads:
        offsets.append(offsets[-1] + len(payload))
    return b"".join(payloads), offsets
