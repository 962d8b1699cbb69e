"""Every public call is given arguments of every wrong kind: each is an error that names the argument, and nothing has happened."""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.bookie.server import EmbeddedBookie
from bk_core.client.files import upkeep
from bk_core.client.files.store import FileStore
from bk_core.client.files.view import FileStoreView
from bk_core.client.log import check, history, janitor, lists, orphans
from bk_core.client.log.lists import create_log
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogWriter
from bk_core.client.repair.report import RepairOptions
from bk_core.config import ClientConfig
from bk_core.errors import ArgumentTypeError, BkError, InvalidArgumentError
from bk_core.metadata import open_store
from bk_core.metadata.store import Versioned
from bk_core.protocol.files.content import Content
from bk_core.protocol.ledger.read.options import ReadOptions
from bk_core.protocol.limits import Limits
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties

# By what an annotation says: values that are not of that kind. None is one of them unless the annotation allows it.
NO_NUMBERS: list[Any] = ["8", b"8", 1.5, True, [], object(), float("nan")]
NO_TEXTS: list[Any] = [8, b"x", 1.5, True, [], object()]
WRONG: dict[str, list[Any]] = {
    "int": NO_NUMBERS,
    "float": ["8", b"8", True, [], object(), float("nan"), float("inf")],
    "bool": [0, 1, "yes", b"", []],
    "str": NO_TEXTS,
    "BookieId": NO_TEXTS,
    "WireProtocol": NO_TEXTS,
    "Placement": NO_TEXTS,
    "EnsembleChange": NO_TEXTS,
    "bytes": ["x", 8, 1.5, True, [], object()],
    "DigestType | DigestName": [8, b"x", True, "CRC64"],
    "Mapping[str, bytes]": [8, "x", [1], {"a": "b"}, {1: b"b"}],
    "Mapping[str, str]": [8, "x", [1], {"a": 1}],
    "Mapping[str, Any]": [8, "x"],
    "Iterable[str]": [8, "x", b"x", True],
    "Iterable[int]": [8, "x"],
    "frozenset[BookieId]": [8, "x", b"x", True],
    "Sequence[Buffer]": [8, "x", b"x", True, ["x"], [1], [None]],
    "LogClient": ["zk://h/ledgers", 8, object()],
    "MetadataStore": ["zk://h/ledgers", 8, object()],
    "ReadOptions": ["fast", {}, 8],
    "AutoRecoveryOptions": ["fast", {}, 8],
    "ZooKeeperAuth": ["sasl", {}, ("user", "password")],
    "MetadataAuth": ["sasl", {}, ("user", "password")],
    "Metadata": NO_TEXTS,
    "MetadataTls": ["ca.pem", {}, True],
    "BookieTls": ["ca.pem", {}, True],
    "BookieSasl": ["ann", {}, True],
    "Security": ["ca.pem", {}, True],
    "LogProperties": ["raw", {}, 8],
    "Content": ["raw", {}, 8, b"x"],
    "Data": ["x", 8, 1.5, True, object()],
    "Bytes | Iterable[Bytes]": ["x", 8, 1.5, True, object()],
    "Position": [8, "1:2", (1, 2)],
    "Limits": [{}, 8],
    "ReadMode": ["PARALLEL", 1],
    "DigestType": [8],
    "Orphan": [8, "x"],
    "Versioned": ["x", 8, (b"", 0)],
    "threading.Event": [8, "x"],
    "str | os.PathLike[str]": [8, b"x", True],
    "ApacheSettings": [8, {}],
    "KerberosService": ["bookkeeper/h@R", 8, {}],
    "_Progress": [8, "x"],
    "Buffer": ["x", 8, 1.5, True, [], object()],
}
# Numbers of the right kind that can never work, by the end of an argument's name.
NEGATIVE = ("_id", "_size", "_s", "_ms", "_bytes", "_max", "_entries", "_per_second", "attempts", "bookies", "index", "_ns", "_errors")
VARIABLE = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
INNER = {  # not for users: parts of writing a log, of machines, and of the janitor
    "agree", "check_listable", "check_repairs_files", "delete_if_unused", "is_of_gone_import", "own_for_import",
    "gc_quietly", "history_of", "read_batches", "seal_log", "update_ledger_list", "write_chunk",
}  # fmt: skip


class Tree:
    """Everything that public calls are made on, and a look at whether anything has changed."""

    def __init__(self, directory: Path) -> None:
        self.uri = f"memory://{directory.name}"
        self.store = open_store(self.uri)
        self.store.initialize_cluster()
        self.bookies = [EmbeddedBookie(directory / str(i), "127.0.0.1", 0, self.store).start() for i in range(3)]
        self.client = bk_core.connect(self.uri)
        create_log(self.client, "log", LogProperties(entry_format="raw"))
        self.writer = self.client.create_ledger()
        self.writer.append_many([b"a", b"b", b"c"])
        self.numbered = self.client.create_ledger(caller_ids=True)
        self.log_writer = LogWriter.open(self.client, "log")
        self.log_writer.append(b"x")
        self.log_reader = LogReader(self.client, "log")
        self.reader = self.client.open_ledger(self.writer.ledger_id)
        self.files = FileStore.open(self.client, "s")
        self.files.put("/a", b"a")
        self.view = FileStoreView.open(self.client, "s")
        self.orphan = orphans.Orphan(99, "log")

    def look(self) -> object:
        store = self.store
        ledgers = {ledger: store.read_ledger(ledger) for ledger in store.list_ledgers()}
        kept = {path: store.children(path) for path in ("logs", "intents", "deleted", "files")}
        files = [(one.path, self.files.status(one.path).file_id) for one in self.files.listing("/")]
        return ledgers, kept, store.read("logs/log"), self.writer.length, self.log_writer.position, files

    def close(self) -> None:
        self.log_writer.abandon()
        self.view.close()
        self.files.close()
        self.client.close()
        for bookie in self.bookies:
            bookie.close()
        self.store.close()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    made = Tree(tmp_path_factory.mktemp("arguments"))
    yield made
    made.close()


def methods(kind: type, *without: str) -> list[str]:
    found = inspect.getmembers(kind, lambda member: inspect.isfunction(member) or inspect.ismethod(member))
    return [name for name, _ in found if not name.startswith("_") and name not in without]


def of_modules() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions about logs and file stores that users call."""
    for module in (check, history, janitor, lists, orphans, upkeep):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_") and name not in INNER:
                yield name, function


# What a call needs beside the argument in question.
NEEDED: dict[str, Any] = {
    "ensemble_size": 1,
    "write_quorum_size": 1,
    "ledger_id": 0, "uri": "memory://x", "bookie": "h:1", "other": "h:2", "name": "log", "log": "log", "first": 0, "last": 0, "entry_id": 0,
    "timeout_s": 0.0, "payload": b"x", "payloads": [b"x"], "cluster": "x", "offsets": array("q", (0, 1)),
    "path": "/a", "src": "/a", "dst": "/b", "data": b"x", "content": Content(b"x", ()), "parts": [b"x"],
    "seq": 0, "stored": Versioned(b"", 0), "query_ids": (), "index": 0,
}  # fmt: skip
CALLS: list[tuple[str, Callable[[Tree], Callable[..., Any]]]] = [
    ("connect", lambda tree: bk_core.connect),
    ("local_cluster", lambda tree: bk_core.local_cluster),
    *((f"client.{name}", lambda tree, name=name: getattr(tree.client, name)) for name in methods(bk_core.BookKeeper, "close_with")),
    *((f"reader.{name}", lambda tree, name=name: getattr(tree.reader, name)) for name in methods(bk_core.ReadHandle, "open")),
    *((f"writer.{name}", lambda tree, name=name: getattr(tree.writer, name)) for name in methods(bk_core.WriteHandle)),
    *((name, lambda tree, function=function: function) for name, function in of_modules()),
    ("LogReader", lambda tree: LogReader),
    *((f"log_reader.{name}", lambda tree, name=name: getattr(tree.log_reader, name)) for name in methods(LogReader)),
    ("LogWriter.open", lambda tree: LogWriter.open),
    *((f"log_writer.{name}", lambda tree, name=name: getattr(tree.log_writer, name)) for name in methods(LogWriter, "open")),
    *((f"files.{name}", lambda tree, name=name: getattr(tree.files, name)) for name in methods(FileStore)),
    *((f"view.{name}", lambda tree, name=name: getattr(tree.view, name)) for name in methods(FileStoreView)),
    ("Position", lambda tree: Position),
    ("ClientConfig", lambda tree: ClientConfig),
    ("Limits", lambda tree: Limits),
    ("ReadOptions", lambda tree: ReadOptions),
    ("RepairOptions", lambda tree: RepairOptions),
    ("AutoRecoveryOptions", lambda tree: bk_core.AutoRecoveryOptions),
]  # fmt: skip


def arguments() -> Iterator[tuple[str, Callable[[Tree], Callable[..., Any]], str]]:
    """Every argument of every call, told by its signature alone: a new one is tried without a word here."""

    class Here:  # the signatures of methods need no cluster
        client, reader, writer = bk_core.BookKeeper, bk_core.ReadHandle, bk_core.WriteHandle
        log_reader, log_writer, files, view = LogReader, LogWriter, FileStore, FileStoreView

    for title, find in CALLS:
        function: Any = find(Here)  # type: ignore[arg-type]
        parameters = inspect.signature(function).parameters
        for name, parameter in parameters.items():
            if name not in ("self", "cls") and parameter.kind not in VARIABLE:
                yield title, find, name


def wrong_values(name: str, annotation: str) -> list[Any]:
    base = annotation.removesuffix(" | None")
    function = base.startswith(("Callable", "OnProgress", "OnStep"))
    values = list(WRONG["_Progress" if function else "Buffer" if base == "Any" else base])
    if base == annotation:
        values.append(None)
    if base in ("int", "float") and name.endswith(NEGATIVE) and name not in ("rotation",):
        values.append(-1)
    return values


@pytest.mark.parametrize(("title", "find", "name"), list(arguments()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_argument_is_named_before_anything_is_done(
    tree: Tree, title: str, find: Callable[[Tree], Callable[..., Any]], name: str
) -> None:
    function = find(tree)
    parameters = inspect.signature(function).parameters
    needed = {
        other: tree.client if other == "client" else tree.orphan if other == "orphan" else NEEDED[other]
        for other, parameter in parameters.items()
        if parameter.default is parameter.empty and other != name and parameter.kind not in VARIABLE
    }
    if "offsets" in parameters and name != "payloads":
        needed["payloads"] = b"x"
    if name == "entry_id" and title.startswith("writer.append"):
        function = getattr(tree.numbered, title.partition(".")[2])
    before = tree.look()
    for value in wrong_values(name, str(parameters[name].annotation)):
        with pytest.raises(BkError) as caught:
            function(**{**needed, name: value})
        assert isinstance(caught.value, InvalidArgumentError) and isinstance(caught.value, ValueError), (value, caught.value)
        assert name in str(caught.value), (value, caught.value)
    assert tree.look() == before


def test_a_wrong_kind_is_a_type_error_too(tree: Tree) -> None:
    open_ledger: Any = tree.client.open_ledger
    with pytest.raises(TypeError, match=r"\[BK-ARGUMENT-TYPE\] ledger_id must be a whole number within 0..2\^63-1, not '8'") as caught:
        open_ledger("8")
    assert isinstance(caught.value, ArgumentTypeError)


def test_a_message_is_not_as_long_as_the_value(tree: Tree) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: tree.client.open_ledger(10**5000),
        lambda: tree.client.create_log("x" * 1_000_000),
        lambda: FileStore.open(tree.client, "x" * 1_000_000),
        lambda: tree.client.create_ledger(custom={"\ud800" + "x" * 1_000_000: b""}),
    ]
    before = tree.look()
    for call in calls:
        with pytest.raises(InvalidArgumentError) as caught:
            call()
        assert len(str(caught.value)) < 300
    assert tree.look() == before


def test_a_secret_is_never_shown(tree: Tree) -> None:
    open_ledger: Any = tree.client.open_ledger
    with pytest.raises(ArgumentTypeError, match=r"password must be bytes, not of type str; encode it: b'...'") as caught:
        open_ledger(0, password="hunter2")
    assert "hunter2" not in str(caught.value)


def test_no_payloads_are_told_as_the_caller_gave_them(tree: Tree) -> None:
    for append in (
        tree.writer.append_many,
        tree.writer.append_many_future,
        tree.log_writer.append_many,
        tree.log_writer.append_many_future,
    ):
        with pytest.raises(InvalidArgumentError, match="payloads is empty: give at least one entry"):
            append([])


@pytest.mark.parametrize("one", ["append", "append_future", "append_many", "append_many_future"])
@pytest.mark.parametrize("kind", ["ledger", "log"])
def test_a_run_is_refused_as_a_whole(tree: Tree, kind: str, one: str) -> None:
    append: Any = getattr(tree.writer if kind == "ledger" else tree.log_writer, one)
    before = tree.look()
    wrong: Any = [b"good", "bad"] if "many" in one else "bad"
    with pytest.raises(InvalidArgumentError, match=r"payloads\[1\] must be bytes" if "many" in one else "payload must be bytes"):
        append(wrong)
    assert tree.look() == before


def test_a_writer_of_a_log_is_opened(tree: Tree) -> None:
    with pytest.raises(InvalidArgumentError, match=r"LogWriter.open\(client, name\)"):
        LogWriter(tree.client, "log")


@pytest.mark.parametrize("given", [{"foo": 1}, {"ensemble_chnge": "delayed"}, {"loger": 1}])
def test_an_unknown_setting_is_named(given: dict[str, Any]) -> None:
    name = next(iter(given))
    hint = "did you mean 'ensemble_change'?" if name == "ensemble_chnge" else "there are uri, protocol" if name == "foo" else ""
    with pytest.raises(InvalidArgumentError, match=f"there is no client setting '{name}'; ") as caught:
        bk_core.connect("memory://nobody", **given)
    assert hint in str(caught.value)


def test_an_unknown_option_of_a_repair_is_named(tree: Tree) -> None:
    with pytest.raises(InvalidArgumentError, match="there is no option of a repair 'ful'; did you mean 'full'"):
        tree.client.repair_ledger(0, ful=True)


def test_every_number_of_the_limits_has_a_range() -> None:
    for field in fields(Limits):
        with pytest.raises(InvalidArgumentError, match=f"^.BK-ARGUMENT. {field.name} must be a whole number within"):
            Limits(**{field.name: -1})


@pytest.mark.parametrize("index", ["0", 1.5, True, None, -1, 99])
def test_bookies_of_a_local_cluster_are_named_by_number(index: Any) -> None:
    class Running(LocalCluster):
        def __init__(self) -> None:
            from bk_core.threads import Home

            self._home, self._closed, self._bookies = Home(), False, []

    for name in ("is_running", "pid", "kill", "stop_bookie", "restart", "wipe", "wait_unregistered", "bookie_log"):
        with pytest.raises(InvalidArgumentError, match="index|no bookie"):
            getattr(Running(), name)(index)
