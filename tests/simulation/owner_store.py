"""A ZooKeeper in memory below the product's own metadata store, and programs that take turns in front of it.

The programs run the product's blocking code (``bk_core.client``), each on a thread of its own, of which one runs at a time: every request
to the store is a point where another one may go on, and chance says which. So a seed replays, as in the rest of the simulator.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo import exceptions as kazoo_errors

from bk_core.errors import BkError, MetadataOutcomeUnknownError
from bk_core.metadata import paths
from bk_core.metadata.zookeeper import link as zookeeper_link
from bk_core.threads import Home

# --- nodes -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Node:
    """Stands for its own stat. ``cluster``: the one that lay at the root when a ledger's node was made."""

    data: bytes
    czxid: int
    ctime: int
    mtime: int
    cluster: str = ""
    version: int = 0
    made: int = 0  # sequential children
    mzxid: int = 0
    ephemeralOwner: int = 0


class Tree:
    """The operations of ZooKeeper that the store uses. ``on_change(path, before, after)`` is told of each change, None: no node."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.nodes: dict[str, Node] = {}
        self.on_change: Callable[[str, Node | None, Node | None], None] = lambda path, before, after: None
        self._zxid = 0

    def _node(self, path: str) -> Node:
        if path not in self.nodes:
            raise kazoo_errors.NoNodeError
        return self.nodes[path]

    def create(self, path: str, data: bytes = b"", *, acl: object = None, ephemeral: bool = False, sequence: bool = False) -> str:
        parent = path.rpartition("/")[0]
        if parent and parent not in self.nodes:
            raise kazoo_errors.NoNodeError
        if sequence:
            above = self._node(parent)
            above.made += 1
            path = f"{path}{above.made - 1:010d}"
        if path in self.nodes:
            raise kazoo_errors.NodeExistsError
        self._zxid += 1
        self.nodes[path] = node = Node(data, self._zxid, self.now_ms(), self.now_ms())
        self.on_change(path, None, node)
        return path

    def get(self, path: str, watch: Any = None) -> tuple[bytes, Node]:
        node = self._node(path)
        return node.data, node

    def set(self, path: str, data: bytes, version: int = -1) -> Node:
        node = self._node(path)
        if version not in (-1, node.version):
            raise kazoo_errors.BadVersionError
        after = Node(data, node.czxid, node.ctime, self.now_ms(), node.cluster, node.version + 1, node.made)
        self.nodes[path] = after
        self.on_change(path, node, after)
        return after

    def delete(self, path: str, version: int = -1) -> None:
        node = self._node(path)
        if version not in (-1, node.version):
            raise kazoo_errors.BadVersionError
        if self.get_children(path):
            raise kazoo_errors.NotEmptyError
        del self.nodes[path]
        self.on_change(path, node, None)

    def exists(self, path: str, watch: Any = None) -> Node | None:
        return self.nodes.get(path)

    def get_children(self, path: str, watch: Any = None) -> list[str]:
        if path not in self.nodes and path != "/":
            raise kazoo_errors.NoNodeError
        head = "/" if path == "/" else f"{path}/"
        return [name[len(head) :] for name in self.nodes if name.startswith(head) and "/" not in name[len(head) :]]

    def sync(self, path: str) -> None:
        pass

    # whole clusters, as somebody with a shell would make and remove them ------------------------------------------------

    def make_cluster(self, root: str, instance_id: str) -> None:
        for path, data in ((root, b""), (f"{root}/available", b""), (f"{root}/available/readonly", b"")):
            self.create(path, data)
        self.create(f"{root}/INSTANCEID", instance_id.encode())
        self.create(f"{root}/LAYOUT", paths.layout_bytes("flat"))

    def take(self, root: str) -> dict[str, Node]:
        """The root and all below it is gone, nobody is told."""
        gone = {path: node for path, node in self.nodes.items() if path == root or path.startswith(f"{root}/")}
        for path in gone:
            del self.nodes[path]
        return gone


# --- turns -------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone: nothing that it would still do is done."""


class Program:
    """Work on a thread of its own, which goes on only when it is its turn."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self.home = ""  # the cluster that it has found at its root
        self.doing = ""  # its action and the log that is about, or the person who said so
        self.made: dict[int, None] = {}  # ledgers
        self.looked = False  # its last request was which cluster this is
        self.absent: dict[int, None] = {}  # ledgers of its cluster that were not there when it looked
        self.lists: dict[str, int] = {}  # as it has read them last: which transaction made them
        self.turns = 0
        self.done = False
        self.killed = False
        self.error: BaseException | None = None
        self._work = work
        self._mine, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=f"simulated-{name}", daemon=True)

    def turn(self) -> None:
        """Let it go on to its next request, or to its end."""
        self.turns += 1
        if not self._thread.ident:
            self._thread.start()
        self._mine.release()
        self._back.acquire()

    def wait(self) -> None:
        """Called by the program itself, before each request."""
        if not self.killed:
            self._back.release()
            self._mine.acquire()
        if self.killed:
            raise Killed

    def end(self) -> None:
        if self._thread.ident:
            while not self.done:
                self.killed = True
                self.turn()
            self._thread.join()

    def _run(self) -> None:
        self._mine.acquire()
        try:
            if not self.killed:
                self._work()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.done = True
        self._back.release()


# --- the way from one to the other -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Request:
    operation: str
    path: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def is_change(self) -> bool:
        return self.operation in ("create", "set", "delete")

    @property
    def may_be_lost(self) -> bool:
        """A change of what belongs to logs; the rest is repeated by the store itself, in real time."""
        return self.is_change and ("/logs/" in self.path or "/intents/" in self.path) and self.arguments[:1] != (b"",)


class _Requests:
    """In place of kazoo's client: what is asked, not yet done."""

    client_id = (1, b"")  # the session, which never ends here

    def __getattr__(self, name: str) -> Callable[..., Request]:
        operation = name.removesuffix("_async")
        return lambda path, *arguments, **options: Request(operation, path, arguments, options)


class Link:
    """In place of the store's connection."""

    connected = True

    def __init__(
        self, tree: Tree, program: Program, chance: Callable[[], float], on_read: Callable[[Program, str], None], lost: float
    ) -> None:
        self.home = Home()
        self.client = _Requests()
        self._tree, self._program, self._chance, self._on_read = tree, program, chance, on_read
        self._lost = lost

    def start(self, timeout_s: float, patient: bool) -> None:
        pass

    def close(self, wait_s: float) -> None:
        pass

    def call(self, send: Callable[[], Request], timeout_s: float, path: str = "") -> Any:
        """A change that follows right after the look at the cluster goes with it: rule OWN-10 asks for no more, and no less."""
        request = send()
        program = self._program
        if not (program.looked and request.is_change):
            program.wait()
        program.looked = request.path.endswith("/INSTANCEID")
        self._look_at_version(request)
        fate = self._chance() if request.may_be_lost else 1.0
        if fate < self._lost / 2:
            program.lists.pop(request.path, None)
            raise MetadataOutcomeUnknownError(f"the request about {path} was lost")
        try:
            answer = getattr(self._tree, request.operation)(request.path, *request.arguments, **request.options)
        except kazoo_errors.KazooException as error:
            if request.operation == "get":
                self._on_read(program, request.path)
            raise zookeeper_link.translated(error, path) from error
        if request.operation == "get":
            program.lists[request.path] = self._tree.nodes[request.path].czxid
            self._on_read(program, request.path)
        if fate < self._lost:
            program.lists.pop(request.path, None)
            raise MetadataOutcomeUnknownError(f"the answer about {path} was lost")
        return answer

    def call_all(self, asked: Sequence[tuple[Callable[[], Request], str]], timeout_s: float) -> list[Any]:
        """They go out together, and others may come in between."""
        answers: list[Any] = []
        for send, path in asked:
            try:
                answers.append(self.call(send, timeout_s, path))
            except BkError as error:
                answers.append(error)
        return answers

    def _look_at_version(self, request: Request) -> None:
        """A list that was deleted and made again since it was read may have the very version that it had: no request of ZooKeeper's can ask
        for more than a version, and rule OWN-7 speaks of what is repeated only. So the first try is a conflict here."""
        if request.operation in ("set", "delete") and "/logs/" in request.path and request.path in self._tree.nodes:
            made = self._program.lists.get(request.path)
            if made not in (None, self._tree.nodes[request.path].czxid):
                raise zookeeper_link.translated(kazoo_errors.BadVersionError(), request.path)

    def aside(self, send: Callable[[], Request]) -> None:
        request = send()
        getattr(self._tree, request.operation)(request.path, *request.arguments)


class Pretended:
    """Names of modules that stand for something else while a run goes on."""

    def __init__(self, *patches: tuple[Any, str, Any]) -> None:
        self._patches = patches
        self._before: list[Any] = []

    def __enter__(self) -> None:
        self._before = [getattr(module, name) for module, name, _ in self._patches]
        for module, name, value in self._patches:
            setattr(module, name, value)

    def __exit__(self, *_: object) -> None:
        for (module, name, _), value in zip(self._patches, self._before, strict=True):
            setattr(module, name, value)


class Names:
    """In place of the module uuid."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def uuid4(self) -> Any:
        return type("Name", (), {"hex": f"{self._rng.getrandbits(64):016x}"})
