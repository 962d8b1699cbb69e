"""Nodes in etcd: a key for each path, as Pulsar keeps them. There are no directories, so no parents are made nor pruned.

A node's version is the key's, counted from 0. A change is one transaction, whose comparison is the compare-and-set.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from threading import RLock
from typing import Any, TypeVar

from bk_core.errors import (
    InvalidArgumentError,
    MetadataError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    VersionConflictError,
)
from bk_core.metadata import paths
from bk_core.metadata.etcd._proto import etcd_pb2 as pb
from bk_core.metadata.etcd.connection import Failure
from bk_core.metadata.etcd.lease import Lease
from bk_core.metadata.etcd.link import Link
from bk_core.metadata.etcd.listing import below, names_below
from bk_core.metadata.etcd.stamps import stamped, versioned
from bk_core.metadata.etcd.watching import Watching
from bk_core.metadata.etcd.words import Meaning, meaning_of
from bk_core.metadata.store import Version, Versioned
from bk_core.metadata.tree.nodes import ANY_VERSION, PAUSE_S, Counting, OnEvent, Stat

T = TypeVar("T")
_BATCH_MAX = 64  # reads in one transaction; etcd takes 128
_KNOWN_MAX = 4096


class Nodes(Counting):
    """The nodes that are reached over one link. ``now_ms`` tells the time of what is written to a path, None where values carry none."""

    def __init__(self, link: Link, lease: Lease, watching: Watching, timeout_s: float, now_ms: Callable[[str], int | None]) -> None:
        self._link, self._lease, self._watching = link, lease, watching
        self._timeout_s = timeout_s
        self._now_ms = now_ms
        self._lock = RLock()
        self._created: OrderedDict[str, int] = OrderedDict()  # times of nodes that were read, which a write keeps

    def session_id(self) -> int | None:
        return self._lease.number or None

    def sync(self, path: str) -> None:
        """Do nothing: every read here asks for what is there now."""

    # reading ----------------------------------------------------------------------------------------------------------

    def get(self, path: str, watch: OnEvent | None = None, timeout_s: float | None = None) -> Versioned:
        answer = self._again("get", path, pb.RangeRequest(key=path.encode(), limit=1), timeout_s)
        self._arm((path.encode(), b""), path, answer, watch)
        if not answer.kvs:
            raise NoNodeError(f"{path} does not exist")
        return self._known(path, answer.kvs[0])

    def get_many(self, paths: Iterable[str]) -> Iterator[tuple[str, Versioned | None]]:
        """Yield the nodes of many paths, None for one that does not exist. They are asked for in batches, one round trip each."""
        left = iter(paths)
        while batch := list(islice(left, _BATCH_MAX)):
            reads = [pb.RangeRequest(key=path.encode(), limit=1) for path in batch]
            for path, answer in zip(batch, self._read_all("get", batch[0], reads), strict=True):
                yield path, self._known(path, answer.kvs[0]) if answer.kvs else None

    def read_together(self, asked: Sequence[tuple[str, str]]) -> list[Any]:
        """Return the answers to the reads (operation, path), all of one moment."""
        reads = [pb.RangeRequest(key=path.encode(), limit=1, keys_only=operation == "exists") for operation, path in asked]
        found: list[Any] = []
        for (operation, path), answer in zip(asked, self._read_all("get", asked[0][1], reads), strict=True):
            if operation == "exists":
                found.append(_stat(answer))
            else:
                found.append(self._known(path, answer.kvs[0]) if answer.kvs else NoNodeError(f"{path} does not exist"))
        return found

    def stat(self, path: str, watch: OnEvent | None = None) -> Stat | None:
        answer = self._again("exists", path, pb.RangeRequest(key=path.encode(), limit=1, keys_only=True))
        self._arm((path.encode(), b""), path, answer, watch)
        return _stat(answer)

    def exists(self, path: str) -> bool:
        start, end = below(path)
        reads = [
            pb.RangeRequest(key=path.encode(), limit=1, keys_only=True),
            pb.RangeRequest(key=start, range_end=end, limit=1, keys_only=True),
        ]
        return any(answer.kvs for answer in self._read_all("exists", path, reads))

    def created(self, path: str) -> int | None:
        found = self.stat(path)
        return None if found is None else found.created

    def children(self, path: str, watch: OnEvent | None = None) -> list[str]:
        def page(request: pb.RangeRequest) -> Any:
            return self._again("get_children", path, request)

        while True:
            try:
                names, first = names_below(path, page)
            except Failure:  # the revision of the first page was compacted away before the last one was read
                continue
            self._arm(below(path), path, first, watch)
            return names

    def keys(self, start: bytes, end: bytes, limit: int) -> list[bytes]:
        """Return the first of a range of keys, in their order."""
        request = pb.RangeRequest(key=start, range_end=end, limit=limit, keys_only=True)
        return [one.key for one in self._again("get_children", start.decode("utf-8", "replace"), request).kvs]

    # writing ----------------------------------------------------------------------------------------------------------

    def set(self, path: str, data: bytes, version: Version) -> Version:
        if version < 0:
            raise InvalidArgumentError(f"version {version} of {path} would overwrite whatever is there")
        put = pb.PutRequest(key=path.encode(), value=self._value(path, paths.check_value(data, path), new=False))
        done, answers = self._txn("set", path, [_has_version(path, version)], [pb.RequestOp(request_put=put)], [_look(path)])
        if not done:
            raise _missed(path, answers[0].response_range)
        return version + 1

    def create(self, path: str, data: bytes, *, ephemeral: bool = False, under: str = "", repeated: bool = False) -> None:
        value = self._value(path, paths.check_value(data, path), new=True)
        compare = [_is_absent(path), *([_is_there(under)] if under else [])]

        def send() -> None:
            lease = self._lease.taken(self._timeout_s) if ephemeral else 0
            put = pb.PutRequest(key=path.encode(), value=value, lease=lease)
            try:
                done, answers = self._txn("create", path, compare, [pb.RequestOp(request_put=put)], [_look(path)])
            except Failure as failure:
                if meaning_of(failure.code, failure.words) is not Meaning.NO_LEASE:
                    raise
                self._lease.gone(lease)
                return send()
            if not done and answers[0].response_range.kvs:
                raise NodeExistsError(f"{path} exists")
            if not done:
                raise NoNodeError(f"{under} does not exist")

        self._until_told(path, send) if repeated else send()

    def create_numbered(self, path: str, data: bytes) -> str:
        """Create an ephemeral node with the number after the highest one (tree/nodes.py). Of two that choose the same, one tries again."""
        folder, _, start = path.rpartition("/")
        while True:
            numbers = [int(digits) for name in self.children(folder) if (digits := name.removeprefix(start)) != name and digits.isdigit()]
            made = f"{path}{max(numbers, default=-1) + 1:010d}"
            try:
                self.create(made, data, ephemeral=True)
            except NodeExistsError:
                continue
            return made

    def create_with_parents(self, path: str, data: bytes, top: str = "") -> Version:
        self.create(path, data)
        return 0

    def make_parents(self, path: str, top: str = "") -> None:
        """Do nothing: no key needs another one."""

    def ensure(self, path: str, *, for_everybody: bool = False) -> None:
        try:
            self.create(path, b"", repeated=True)
        except NodeExistsError:
            pass

    def delete(self, path: str, version: Version = ANY_VERSION, *, repeated: bool = False) -> None:
        start, end = below(path)
        childless = pb.Compare(target=pb.Compare.CREATE, result=pb.Compare.EQUAL, key=start, range_end=end, create_revision=0)
        compare = [_is_there(path) if version < 0 else _has_version(path, version), childless]
        gone = pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=path.encode()))

        def send() -> None:
            done, answers = self._txn("delete", path, compare, [gone], [_look(path)])
            if done:
                return
            found = answers[0].response_range
            if found.kvs and (version < 0 or found.kvs[0].version == version + 1):
                raise MetadataError(f"{path} has children and cannot be deleted")
            raise _missed(path, found)

        self._until_told(path, send) if repeated else send()

    def remove(self, path: str, version: Version) -> None:
        try:
            self.delete(path, version)
        except NoNodeError:
            pass

    def remove_own(self, path: str) -> None:
        """Delete the very key that was found to be this session's. etcd looks at no session, which may end meanwhile, and then the key of
        somebody else stands there."""
        found = self.stat(path)
        if found is None or found.owner != self.session_id():
            return
        same = pb.Compare(target=pb.Compare.CREATE, result=pb.Compare.EQUAL, key=path.encode(), create_revision=found.created)
        self._txn("delete", path, [same], [pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=path.encode()))], [])

    def prune(self, path: str, top: str) -> None:
        """Do nothing: there are no directories."""

    def count_up(self, path: str, root: str) -> int:
        """Return how often a key was written before, after writing it once more; nobody gets the same number. This is repeated like a read,
        because a number that is lost does no harm. Raises NoNodeError if ``root`` does not exist."""
        put = pb.RequestOp(request_put=pb.PutRequest(key=path.encode(), prev_kv=True))

        def send() -> int:
            done, answers = self._txn("create", path, [_is_there(root)], [put], [_look(root)])
            if not done:
                raise NoNodeError(f"{root} does not exist")
            return int(answers[0].response_put.prev_kv.version)

        return self._until_told(path, send)

    def create_all(self, nodes: Sequence[tuple[str, bytes]]) -> None:
        """Create nodes in one transaction. Raises NodeExistsError if the first of them exists."""
        puts = [pb.RequestOp(request_put=pb.PutRequest(key=path.encode(), value=data)) for path, data in nodes]
        done, _ = self._txn("transaction", nodes[0][0], [_is_absent(nodes[0][0])], puts, [])
        if not done:
            raise NodeExistsError(f"{nodes[0][0]} exists")

    # asking -----------------------------------------------------------------------------------------------------------

    def _txn(self, operation: str, path: str, compare: list[Any], then: list[Any], otherwise: list[Any]) -> tuple[bool, Any]:
        """Send a transaction once. A lost answer is MetadataOutcomeUnknownError. Return if it was done, and the responses."""
        request = pb.TxnRequest(compare=compare, success=then, failure=otherwise)
        with self.counted(operation):
            answer = self._link.call("txn", request, self._timeout_s, path)
        return bool(answer.succeeded), answer.responses

    def _read_all(self, operation: str, path: str, reads: list[Any]) -> list[Any]:
        request = pb.TxnRequest(success=[pb.RequestOp(request_range=one) for one in reads])
        return [one.response_range for one in self._again(operation, path, request).responses]

    def _again(self, operation: str, path: str, request: Any, timeout_s: float | None = None) -> Any:
        """Send a read, and repeat it after a lost answer until the deadline."""
        timeout_s = timeout_s or self._timeout_s
        deadline = time.monotonic() + timeout_s
        method = "range" if isinstance(request, pb.RangeRequest) else "txn"

        def send() -> Any:
            with self.counted(operation):
                return self._link.call(method, request, max(deadline - time.monotonic(), 0.001), path, changes=False)

        return self._until_told(path, send, timeout_s)

    def _until_told(self, path: str, send: Callable[[], T], timeout_s: float | None = None) -> T:
        timeout_s = timeout_s or self._timeout_s
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return send()
            except MetadataOutcomeUnknownError as error:
                if time.monotonic() + PAUSE_S >= deadline:
                    raise MetadataUnavailableError(f"etcd did not answer about {path} within {timeout_s:g} s: {error.args[0]}") from error
            time.sleep(PAUSE_S)

    def _arm(self, span: tuple[bytes, bytes], path: str, answer: Any, watch: OnEvent | None) -> None:
        if watch is not None:
            self._watching.arm(span, path, answer.header.revision, watch)

    # values -----------------------------------------------------------------------------------------------------------

    def _known(self, path: str, pair: Any) -> Versioned:
        found = versioned(pair.value, pair.version - 1)
        if found.created_ms is not None:
            with self._lock:
                self._created[path] = found.created_ms
                self._created.move_to_end(path)
                if len(self._created) > _KNOWN_MAX:
                    self._created.popitem(last=False)
        return found

    def _value(self, path: str, data: bytes, *, new: bool) -> bytes:
        """Return what is stored. A write keeps the time of the creation, which is that of the node that was read before."""
        now_ms = self._now_ms(path)
        if now_ms is None:
            return data
        created_ms: int | None = now_ms
        if not new:
            created_ms = self._created.get(path) or self.get(path).created_ms
        return stamped(data, created_ms or 0, now_ms)


def _stat(answer: Any) -> Stat | None:
    if not answer.kvs:
        return None
    pair = answer.kvs[0]
    return Stat(pair.create_revision, pair.mod_revision, pair.version - 1, pair.lease)


def _missed(path: str, found: Any) -> MetadataError:
    """Return the error of a change at a version that the node does not have."""
    return VersionConflictError(f"{path} has another version") if found.kvs else NoNodeError(f"{path} does not exist")


def _look(path: str) -> Any:
    return pb.RequestOp(request_range=pb.RangeRequest(key=path.encode(), limit=1, keys_only=True))


def _is_absent(path: str) -> Any:
    return pb.Compare(target=pb.Compare.CREATE, result=pb.Compare.EQUAL, key=path.encode(), create_revision=0)


def _is_there(path: str) -> Any:
    return pb.Compare(target=pb.Compare.CREATE, result=pb.Compare.GREATER, key=path.encode(), create_revision=0)


def _has_version(path: str, version: Version) -> Any:
    return pb.Compare(target=pb.Compare.VERSION, result=pb.Compare.EQUAL, key=path.encode(), version=version + 1)
