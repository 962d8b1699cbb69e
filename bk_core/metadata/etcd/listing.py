"""The names below a path, out of ordered keys. What lies below a name is skipped, however much it is. Asks nobody by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bk_core.metadata.etcd._proto import etcd_pb2 as pb

_PAGE = 1000
_AFTER_SLASH = b"0"  # the byte that follows b"/"


def below(path: str) -> tuple[bytes, bytes]:
    """Return the range of all keys below a path, which has no slash at its end unless it is the root."""
    start = path.rstrip("/").encode() + b"/"
    return start, start[:-1] + _AFTER_SLASH


def names_below(path: str, page: Callable[[Any], Any]) -> tuple[list[str], Any]:
    """Return the sorted names right below a path, all of one revision, and the first response. ``page`` sends a RangeRequest."""
    start, end = below(path)
    first: Any = None
    names: set[str] = set()
    at = start
    while True:
        revision = 0 if first is None else first.header.revision
        answer = page(pb.RangeRequest(key=at, range_end=end, limit=_PAGE, revision=revision, keys_only=True))
        first = answer if first is None else first
        names.update(_name(pair.key, start) for pair in answer.kvs)
        if not answer.more:
            return sorted(names), first
        at = _next(answer.kvs[-1].key, start)


def _name(key: bytes, start: bytes) -> str:
    return key[len(start) :].partition(b"/")[0].decode("utf-8", "replace")


def _next(key: bytes, start: bytes) -> bytes:
    """Return where to go on after a key: behind all that lies below its name, if it does so itself."""
    name, slash, _ = key[len(start) :].partition(b"/")
    return start + name + _AFTER_SLASH if slash else key + b"\0"


def skipping(start: bytes, end: bytes, page: Callable[[bytes, bytes, int], list[bytes]], wanted: Callable[[str], bool]) -> Iterator[str]:
    """Yield the paths of a range in their order. Names right below ``start`` that are not ``wanted`` are skipped with all below them."""
    at = start
    while at < end:
        found = page(at, end, _PAGE)
        for key in found:
            if not wanted(_name(key, start)):
                at = _next(key, start)
                break
            yield key.decode("utf-8", "replace")
            at = key + b"\0"
        else:
            if len(found) < _PAGE:
                return
