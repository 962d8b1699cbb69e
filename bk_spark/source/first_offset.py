"""Durable first offsets: the first value of ``initialOffset`` stays the same for ever (spark-connectors.md 5.6).

Spark does not store the first offset of a Python source, and asks again until batch 0 is committed. With ``readerName`` it is kept in the
metadata store, in one node for each log of the source, ``readers/<log>/<readerName>``. Each node holds the offset of the whole source, so
that it is found again even if a log of a pattern was deleted. The process that creates the node of the first log decides, and all others
use its value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from bk_core.errors import BkError, InvalidArgumentError, MetadataError, NodeExistsError, NoNodeError, WrongClusterError
from bk_core.protocol.log.offset import LogOffset, to_json
from bk_core.protocol.log.stored_json import loads
from bk_spark.source.offsets import from_json

if TYPE_CHECKING:
    from bk_core.metadata.store import MetadataStore


def reader_path(log: str, reader: str) -> str:
    """Return the path of the node. Raises InvalidArgumentError for a name that cannot be one path element in every store."""
    if not reader.replace("-", "").replace("_", "").replace(".", "").isalnum() or not reader.isascii() or reader[0] == ".":
        raise InvalidArgumentError(f"readerName {reader!r}: use letters, digits, '.', '_', '-', not starting with '.'")
    return f"readers/{log}/{reader}"


def durable(
    store: MetadataStore, reader: str, names: Collection[str], make: Callable[[], Mapping[str, LogOffset]]
) -> tuple[dict[str, LogOffset], bool]:
    """Return the first offset of the reader, and True if it was there already; ``make`` is called only if it was not."""
    paths = [reader_path(name, reader) for name in sorted(names)]
    for path in paths:
        found = _read(store, path)
        if found is not None:
            return found, True
    fresh = dict(make())
    data = _encode(store, fresh)
    decided, known = _create(store, paths[0], data)
    for path in paths[1:]:
        _create(store, path, data if not known else _encode(store, decided))
    return (decided, True) if known else (fresh, False)


def _create(store: MetadataStore, path: str, data: bytes) -> tuple[dict[str, LogOffset], bool]:
    """Return the value that the node holds then, and True if another process wrote it. A lost answer of our own write looks like success
    (META-12)."""
    try:
        store.create(path, data)
    except NodeExistsError:
        found = store.read(path).data
        return _decode(store, path, found), found != data
    return {}, False


def _read(store: MetadataStore, path: str) -> dict[str, LogOffset] | None:
    try:
        return _decode(store, path, store.read(path).data)
    except NoNodeError:
        return None


def _encode(store: MetadataStore, offsets: Mapping[str, LogOffset]) -> bytes:
    return json.dumps({"cluster": store.cluster_id(), "offsets": to_json(offsets)}).encode()


def _decode(store: MetadataStore, path: str, data: bytes) -> dict[str, LogOffset]:
    """Decode a node. One without a cluster is from an earlier program, and the log ids in it tell the cluster. Raises WrongClusterError
    (OWN-3)."""
    try:
        value = loads(data)
        if not isinstance(value.get("cluster"), str):
            return from_json(value)
        if value["cluster"] != (here := store.cluster_id()):
            raise WrongClusterError(
                f"{path} in the metadata store is the first offset of a reader of cluster {value['cluster']}, and this is cluster {here}; "
                "choose another readerName, or delete it",
                cluster=value["cluster"],
            )
        return from_json(value["offsets"])
    except (WrongClusterError, MetadataError):
        raise
    except (ValueError, KeyError, AttributeError, BkError) as error:
        raise InvalidArgumentError(
            f"{path} in the metadata store holds no first offset; delete it, or choose another readerName"
        ) from error
