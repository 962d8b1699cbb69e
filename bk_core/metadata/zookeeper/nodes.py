"""Operations on the nodes of ZooKeeper by their absolute path, each with a deadline (tree/nodes.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from bk_core.errors import (
    InvalidArgumentError,
    MetadataDeniedError,
    MetadataError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    VersionConflictError,
)
from bk_core.metadata import paths
from bk_core.metadata.store import Version, Versioned
from bk_core.metadata.tree.nodes import ANY_VERSION, PAUSE_S, Counting, Stat
from bk_core.metadata.zookeeper.link import EVERYBODY, Link

BATCH_MAX = 256  # requests that are sent together; the metadata of so many ledgers fits well into what ZooKeeper takes in at once
NO_VERSION = 2**31 - 1  # a version that no node comes to
_RIGHTS = {
    "get": ("READ", False),
    "get_children": ("READ", False),
    "set": ("WRITE", False),
    "create": ("CREATE", True),
    "delete": ("DELETE", True),
}
"""The right that each operation needs, and whether it is one on the parent."""


class Nodes(Counting):
    """The nodes that are reached over one link."""

    def __init__(self, link: Link, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s

    def sync(self, path: str) -> None:
        """Have most servers agree on a write, which none of them makes because no node has that version (metadata.md 2.3).

        ZooKeeper's own ``sync`` is an agreement with the leader alone: one that was paused, and has been replaced meanwhile, answers it by
        its old state until it notices. A session never sees an older state afterwards.
        """

        def agree(timeout_s: float) -> None:
            with self.counted("sync"), suppress(VersionConflictError, NoNodeError, MetadataDeniedError):
                self._link.call(lambda: self._link.client.set_async(path, b"", NO_VERSION), timeout_s, path)

        self._until_answered(path, self._timeout_s, agree)

    def get(self, path: str, watch: Callable[[Any], None] | None = None, timeout_s: float | None = None) -> Versioned:
        return versioned(self.read("get", path, *([] if watch is None else [watch]), timeout_s=timeout_s))

    def get_many(self, paths: Iterable[str]) -> Iterator[tuple[str, Versioned | None]]:
        """Yield the nodes of many paths, None for one that does not exist. They are asked for in batches, one round trip each."""
        left = iter(paths)
        while batch := list(islice(left, BATCH_MAX)):
            for path, answer in zip(batch, self.read_together([("get", path) for path in batch]), strict=True):
                if isinstance(answer, Exception) and not isinstance(answer, NoNodeError):
                    raise answer
                yield path, None if isinstance(answer, Exception) else answer

    def set(self, path: str, data: bytes, version: Version) -> Version:
        if version < 0:
            raise InvalidArgumentError(f"version {version} of {path} would overwrite whatever is there")
        stat = self.write("set", path, paths.check_value(data, path), version)
        return int(stat.version)

    def stat(self, path: str, watch: Callable[[Any], None] | None = None) -> Stat | None:
        return _stat(self.read("exists", path, *([] if watch is None else [watch])))

    def exists(self, path: str) -> bool:
        return self.read("exists", path) is not None

    def created(self, path: str) -> int | None:
        """Return the transaction that made a node; None if there is none."""
        stat = self.read("exists", path)
        return None if stat is None else int(stat.czxid)

    def children(self, path: str, watch: Callable[[Any], None] | None = None) -> list[str]:
        try:
            return sorted(self.read("get_children", path, watch))
        except NoNodeError:
            return []

    def create(self, path: str, data: bytes, *, ephemeral: bool = False, under: str = "", repeated: bool = False) -> None:
        """Create a node (tree/nodes.py). Its parent must be there, so ``under`` says nothing more."""
        data = paths.check_value(data, path)
        if repeated:
            self.read("create", path, data)
        else:
            self.write("create", path, data, *([None, True] if ephemeral else []))

    def create_numbered(self, path: str, data: bytes) -> str:
        """Create an ephemeral sequential node (tree/nodes.py), whose number ZooKeeper chooses."""
        made: str = self.write("create", path, paths.check_value(data, path), None, True, True)
        return made

    def create_with_parents(self, path: str, data: bytes, top: str = "") -> Version:
        """Create the leaf first, and its parents only when they are missing, again and again because another process may prune them
        (metadata.md 2.4)."""
        data = paths.check_value(data, path)
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                self.write("create", path, data)
                return 0
            except NoNodeError:
                if time.monotonic() > deadline:
                    raise MetadataUnavailableError(f"the parents of {path} were pruned again and again") from None
                self.make_parents(path, top)

    def make_parents(self, path: str, top: str = "") -> None:
        parts = path.split("/")[1:-1]
        for count in range(1, len(parts) + 1):
            parent = "/" + "/".join(parts[:count])
            if len(parent) <= len(top):
                continue
            try:
                self.ensure(parent)
            except NoNodeError:
                return  # they were pruned meanwhile, so the caller's loop starts over

    def ensure(self, path: str, *, for_everybody: bool = False) -> None:
        """Make an empty persistent node at ``path``. This is repeated like a read, because making it twice is harmless. ``for_everybody``
        opens it whatever the rights are that this client gives to others."""
        try:
            self.read("create", path, b"", **({"acl": EVERYBODY} if for_everybody else {}))
        except NodeExistsError:
            pass
        except MetadataDeniedError:  # ZooKeeper looks at the rights on the parent first
            if not self.exists(path):
                raise

    def delete(self, path: str, version: Version = ANY_VERSION, *, repeated: bool = False) -> None:
        (self.read if repeated else self.write)("delete", path, version)

    def remove(self, path: str, version: Version) -> None:
        try:
            self.delete(path, version)
        except NoNodeError:
            pass

    def remove_own(self, path: str) -> None:
        stat = self.stat(path)
        if stat is not None and stat.owner == self.session_id():
            self.remove(path, ANY_VERSION)

    def prune(self, path: str, top: str) -> None:
        """Delete empty parents below ``top``; stop silently at the first that is not empty (metadata.md 2.4)."""
        parent = path.rpartition("/")[0]
        while len(parent) > len(top):
            try:
                self.delete(parent)
            except MetadataError:
                return
            parent = parent.rpartition("/")[0]

    def write(self, operation: str, path: str, *arguments: Any) -> Any:
        """Send a write once; a lost answer is MetadataOutcomeUnknownError."""
        return self.send(operation, lambda: getattr(self._link.client, f"{operation}_async")(path, *arguments), self._timeout_s, path)

    def send(self, operation: str, send: Callable[[], Any], timeout_s: float, path: str = "") -> Any:
        """Send a request once, and count it."""
        with self.counted(operation):
            try:
                return self._link.call(send, timeout_s, path)
            except MetadataDeniedError as error:
                raise self._denied(error, operation, path) from error.__cause__

    def _denied(self, error: Exception, operation: str, path: str) -> Exception:
        """Return the error with the right that is missing, and who is missing it."""
        if not isinstance(error, MetadataDeniedError):
            return error
        right, of_parent = _RIGHTS.get(operation, ("CREATE", False))
        node = f"the parent of {path}" if of_parent and path.count("/") > 1 else path if not of_parent else "/"
        text = f"{error.args[0]}. This client ({self._link.identity}) lacks the right {right} on {node}"
        return error.retold(f"{text}{self._link.hint}")

    def read(self, operation: str, path: str, *arguments: Any, timeout_s: float | None = None, **options: Any) -> Any:
        """Send a read, and repeat it after a lost answer until the deadline, then raise MetadataUnavailableError."""
        send = getattr(self._link.client, f"{operation}_async")
        request = partial(send, path, *arguments, **options)
        return self._until_answered(path, timeout_s or self._timeout_s, lambda left_s: self.send(operation, request, left_s, path))

    def _until_answered(self, path: str, timeout_s: float, ask: Callable[[float], Any]) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return ask(max(deadline - time.monotonic(), 0.001))
            except MetadataOutcomeUnknownError:
                if time.monotonic() + PAUSE_S >= deadline:
                    raise MetadataUnavailableError(f"ZooKeeper did not answer about {path} within {timeout_s:g} s") from None
                time.sleep(PAUSE_S)

    def read_together(self, asked: Sequence[tuple[str, str]]) -> list[Any]:
        """Send the reads (operation, path) together. Return the answers in their order, with a MetadataError in place of the answer of one
        that failed. Repeats as ``read`` does."""
        deadline = time.monotonic() + self._timeout_s
        client = self._link.client
        sends = [(partial(getattr(client, f"{operation}_async"), path), path) for operation, path in asked]
        while True:
            remaining_s = max(deadline - time.monotonic(), 0.001)
            with self.counted("get"):  # they go together, in one round trip
                answers = self._link.call_all(sends, remaining_s)
            answers = [self._denied(answer, *one) for answer, one in zip(answers, asked, strict=True)]
            for (operation, _), answer in zip(asked, answers, strict=True):
                if isinstance(answer, Exception):
                    self.count_failure(operation, answer)
            if not any(isinstance(answer, MetadataOutcomeUnknownError) for answer in answers):
                return [_typed(operation, answer) for (operation, _), answer in zip(asked, answers, strict=True)]
            if time.monotonic() + PAUSE_S >= deadline:
                raise MetadataUnavailableError(f"ZooKeeper did not answer about {asked[0][1]} within {self._timeout_s:g} s")
            time.sleep(PAUSE_S)

    def session_id(self) -> int | None:
        identity = self._link.client.client_id
        return None if identity is None else identity[0]


def _typed(operation: str, answer: Any) -> Any:
    if isinstance(answer, Exception):
        return answer
    return versioned(answer) if operation == "get" else _stat(answer)


def _stat(answer: Any) -> Stat | None:
    return None if answer is None else Stat(int(answer.czxid), int(answer.mzxid), int(answer.version), int(answer.ephemeralOwner))


def versioned(answer: Any) -> Versioned:
    data, stat = answer
    return Versioned(data or b"", stat.version, stat.ctime, stat.mtime)
