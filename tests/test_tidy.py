"""House rules that a machine can check: who imports whom, what may stand in the tree, and that errors travel between processes."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from bk_core import errors
from tests.sources import facts, text_of

ROOT = Path(__file__).resolve().parents[1]
TOP_LEVEL = {
    # the product
    "pyproject.toml", "README.md", "docs", "bk_core", "bk_spark", "native", "tests", "notebooks", "pyspark_bookkeeper.py",
    # habits
    ".ci", ".github", ".clang-format", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile",
    "MANIFEST.in", "requirements.in", "requirements.txt", "requirements-java.in", "requirements-java.txt",
    "requirements-proto.in", "requirements-proto.txt", "requirements-kerberos.in", "requirements-kerberos.txt",
}  # fmt: skip

# None of these reaches a socket, a clock, a thread, a file or chance.
PURE = [
    *("abc", "array", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib", "hmac"),
    *("itertools", "operator", "struct", "types", "typing", "zlib"),
]
KERNEL_STDLIB = frozenset({"struct", "zlib", "array", "os", "logging", "hashlib", "hmac", "operator"})
ANY_STDLIB = frozenset(sys.stdlib_module_names)
ALWAYS = frozenset({"__future__", "typing"})


@dataclass(frozen=True)
class Layer:
    """Modules below ``name`` may import ``own`` (with all below) and, from outside, the packages ``outside``; None is anything."""

    name: str
    own: tuple[str, ...]
    outside: frozenset[str] | None


# The most specific layer that holds a module decides.
LAYERS = [
    Layer("bk_core.errors", (), frozenset()),
    Layer("bk_core.near", ("bk_core.errors",), frozenset({*PURE, "difflib", "os"})),
    Layer("bk_core.arguments", ("bk_core.errors", "bk_core.near"), frozenset(PURE)),
    Layer("bk_core.secrets", ("bk_core.errors",), ANY_STDLIB),
    Layer("bk_core.key_stores", ("bk_core.errors", "bk_core.secrets"), frozenset({*PURE, "cryptography", "os", "ssl", "sys"})),
    Layer("bk_core.tls_files", ("bk_core.errors", "bk_core.key_stores", "bk_core.secrets"), frozenset({*PURE, "ssl"})),
    Layer("bk_core.sasl", ("bk_core.errors", "bk_core.protocol.link"), frozenset({*PURE, "sys", "puresasl"})),
    Layer("bk_core.kerberos", ("bk_core.errors", "bk_core.protocol.link"), frozenset({*PURE, "gssapi", "hashlib", "sys"})),
    Layer("bk_core.security", ("bk_core.arguments", "bk_core.errors", "bk_core.kerberos", "bk_core.near", "bk_core.protocol.link",
                               "bk_core.sasl", "bk_core.secrets", "bk_core.tls_files"), frozenset({*PURE, "ssl", "urllib"})),
    Layer("bk_core.display", ("bk_core.protocol.calendar",), frozenset({*PURE, "datetime", "html", "ipaddress", "re", "unicodedata"})),
    Layer("bk_core.plots", ("bk_core.display", "bk_core.errors"), ANY_STDLIB | {"matplotlib"}),
    Layer("bk_core.exit_hook", (), ANY_STDLIB),
    Layer("bk_core.threads", ("bk_core.errors",), ANY_STDLIB),
    Layer("bk_core.background", ("bk_core.errors", "bk_core.threads"), ANY_STDLIB),
    Layer("bk_core.kernels", ("bk_core.errors",), KERNEL_STDLIB),
    Layer("bk_core.protocol", ("bk_core.arguments", "bk_core.display", "bk_core.errors", "bk_core.kernels"), frozenset({*PURE, "google"})),
    Layer("bk_core.protocol.wire", ("bk_core.errors", "bk_core.kernels", "bk_core.protocol.entry", "bk_core.protocol.limits"),
          frozenset({*PURE, "google"})),
    Layer("bk_core.protocol.entry", ("bk_core.errors", "bk_core.kernels", "bk_core.protocol.ledger.metadata"), frozenset(PURE)),
    Layer("bk_core.protocol.log", ("bk_core.arguments", "bk_core.display", "bk_core.errors", "bk_core.protocol"),
          frozenset({*PURE, "json", "base64"})),
    Layer("bk_core.protocol.files", ("bk_core.display", "bk_core.errors", "bk_core.protocol"), frozenset(PURE)),
    Layer("bk_core.metrics", ("bk_core.errors", "bk_core.display"), frozenset({*PURE, "datetime", "time", "weakref"})),
    Layer("bk_core.metrics.prometheus", ("bk_core.display", "bk_core.metrics"), ANY_STDLIB | {"prometheus_client"}),
    Layer("bk_core.metrics.opentelemetry", ("bk_core.metrics",), ANY_STDLIB | {"opentelemetry"}),
    Layer("bk_core.metadata", ("bk_core.arguments", "bk_core.background", "bk_core.display", "bk_core.errors", "bk_core.threads",
                               "bk_core.kerberos", "bk_core.key_stores", "bk_core.metrics", "bk_core.protocol", "bk_core.sasl",
                               "bk_core.secrets", "bk_core.security", "bk_core.tls_files"), None),
    Layer("bk_core.metadata.access", ("bk_core.arguments", "bk_core.errors", "bk_core.kerberos", "bk_core.secrets", "bk_core.tls_files"),
          frozenset({*PURE, "ssl"})),
    Layer("bk_core.metadata.uri", ("bk_core.display", "bk_core.errors", "bk_core.metadata.access", "bk_core.near", "bk_core.security"),
          frozenset({*PURE, "os", "re", "urllib"})),
    Layer("bk_core.net", ("bk_core.background", "bk_core.display", "bk_core.metrics", "bk_core.errors", "bk_core.threads",
                          "bk_core.kernels", "bk_core.protocol", "bk_core.secrets",
                          "bk_core.security", "bk_core.tls_files"),
          ANY_STDLIB),  # scan_frames on the receive buffer
    Layer("bk_core.bookie", ("bk_core.arguments", "bk_core.background", "bk_core.display", "bk_core.errors", "bk_core.threads",
                             "bk_core.protocol", "bk_core.metrics", "bk_core.net", "bk_core.metadata", "bk_core.kerberos",
                             "bk_core.sasl", "bk_core.security", "bk_core.tls_files"), ANY_STDLIB | {"lmdb"}),
    Layer("bk_core.config", ("bk_core.arguments", "bk_core.errors", "bk_core.metadata.access", "bk_core.metadata.uri", "bk_core.protocol",
                             "bk_core.security"), frozenset(PURE)),
    Layer("bk_core.client", ("bk_core.arguments", "bk_core.background", "bk_core.display", "bk_core.errors", "bk_core.exit_hook",
                             "bk_core.threads", "bk_core.config", "bk_core.plots", "bk_core.protocol", "bk_core.metrics", "bk_core.net",
                             "bk_core.metadata", "bk_core.near", "bk_core.security"), ANY_STDLIB),
    Layer("bk_core.client.files.fs", ("bk_core.arguments", "bk_core.display", "bk_core.errors", "bk_core.exit_hook", "bk_core.threads",
                                      "bk_core.client", "bk_core.near", "bk_core.protocol"), ANY_STDLIB | {"fsspec"}),
    Layer("bk_core.aio", ("bk_core.arguments", "bk_core.background", "bk_core.errors", "bk_core.threads", "bk_core.config",
                          "bk_core.client", "bk_core.protocol", "bk_core.metadata.store"), ANY_STDLIB),
    Layer("bk_core.ui", ("bk_core.arguments", "bk_core.background", "bk_core.display", "bk_core.errors", "bk_core.threads",
                         "bk_core.client", "bk_core.protocol", "bk_core.metadata.store"), ANY_STDLIB),
    Layer("bk_core.cli", ("bk_core",), ANY_STDLIB | {"click", "rich"}),
    Layer("bk_core", ("bk_core",), ANY_STDLIB),
    Layer("bk_spark", ("bk_core",), None),
]  # fmt: skip
FORBIDDEN = {"bk_core": {"pyspark", "pyarrow", "pandas", "py4j", "bk_spark"}, "bk_spark": set()}
ONLY_IN = {
    "kazoo": ("bk_core.metadata.zookeeper.store", "bk_core.metadata.zookeeper.link", "bk_core.metadata.zookeeper.reconnecting"),
    "grpc": ("bk_core.metadata.etcd.connection",),
    "lmdb": ("bk_core.bookie.directory", "bk_core.bookie.storage"),
}
SPARK_FREE = {"bk_spark.source.planning", "bk_spark.source.offsets", "bk_spark.options.table"}  # partitions.py must subclass InputPartition
WITHOUT_SPARK = ("bk_spark.arrow", "bk_spark.entries", "bk_spark.source.stretches")


@cache
def modules() -> tuple[Path, ...]:
    found = [path for package in ("bk_core", "bk_spark") for path in (ROOT / package).rglob("*.py")]
    return tuple(sorted(path for path in found if "_proto" not in path.parts and not path.stem.endswith(("_pb2", "_pb2_grpc"))))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, module) of every import that runs; those for type checkers only are left out."""
    found = facts(path)
    assert not found.relative, f"{path}:{found.relative[0]}: relative import"
    return found.imports


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def layer_of(module: str) -> Layer:
    return max((layer for layer in LAYERS if within(module, layer.name)), key=lambda layer: len(layer.name))


def is_allowed(module: str, name: str) -> bool:
    layer, root = layer_of(module), name.split(".")[0]
    if root in FORBIDDEN[module.split(".")[0]]:
        return False
    if root in ONLY_IN and root not in ("lmdb",):
        return any(within(module, allowed) for allowed in ONLY_IN[root])
    if module in SPARK_FREE and root in ("pyspark", "pyarrow"):
        return False
    if root in ("bk_core", "bk_spark"):
        shared = name == "bk_core.protocol" and within(module, name)  # the package itself, not what lies below it
        return shared or within(name, layer.name) or any(within(name, own) for own in layer.own)
    if root == "google" and not within(name, "google.protobuf"):
        return False
    return root in ALWAYS or layer.outside is None or root in layer.outside


@pytest.mark.parametrize("path", modules(), ids=lambda path: module_name(path))
def test_layer_imports(path: Path) -> None:
    module = module_name(path)
    wrong = [f"{path.relative_to(ROOT)}:{line}: {layer_of(module).name} may not import {name}"
             for line, name in imports(path) if not is_allowed(module, name)]  # fmt: skip
    assert not wrong, "\n".join(wrong)


@cache
def import_graph() -> dict[str, set[str]]:
    """The modules that each module imports, at any time. The names that a package hands on are not followed."""
    graph: dict[str, set[str]] = {module_name(path): set() for path in modules()}
    packages = {module_name(path) for path in modules() if path.name == "__init__.py"}
    for path in modules():
        for _, name in imports(path):
            if name in graph and name not in packages and name != module_name(path):
                graph[module_name(path)].add(name)
    return graph


def circle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """The modules of a circle, in its order; none is []."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        found = next((circle for name in sorted(graph[module]) if (circle := visit(name, [*path, module]))), [])
        done.add(module)
        return found

    return next((circle for module in sorted(graph) if (circle := visit(module, []))), [])


def test_no_modules_import_one_another() -> None:
    """Neither when they are loaded, nor inside a function."""
    circle = circle_in(import_graph())
    assert not circle, " -> ".join(circle)


def test_a_circle_is_found() -> None:
    assert circle_in({"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"b"}}) == ["b", "d", "b"]
    assert circle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def reached(graph: Mapping[str, set[str]], *packages: str) -> set[str]:
    """The modules below ``packages``, and whatever they import, at any number of steps."""
    found: set[str] = set()
    waiting = [module for module in graph if any(within(module, package) for package in packages)]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += graph[module]
    return found


def test_rows_are_packed_and_read_without_pyspark() -> None:
    """Not even by a module that a module imports: what reads a log without Spark needs pyarrow alone."""
    modules_reached = reached(import_graph(), *WITHOUT_SPARK) - {"bk_spark.needs"}  # it looks which pyspark there is, when it is asked
    assert {"bk_spark.entries.packing", "bk_spark.entries.unpacking", "bk_spark.source.stretches"} <= modules_reached
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules()
        if module_name(path) in modules_reached
        for line, name in imports(path)
        if within(name, "pyspark") or within(name, "py4j")
    ]
    assert not wrong, "\n".join(wrong)


def test_logs_know_nothing_of_the_file_stores_that_are_made_of_them() -> None:
    """Not even by a module that a module imports."""
    graph = import_graph()
    known = reached(graph, "bk_core.client.log", "bk_core.protocol.log")
    wrong = [f"{module} imports {name}" for module in sorted(known) for name in graph[module] if within(name, "bk_core.client.files")]
    assert len(known) > 20 and not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "name", "allowed"),
    [
        ("bk_core.protocol.ledger.write.writer", "time", False),
        ("bk_core.protocol.ledger.write.writer", "bk_core.net.reactor", False),
        ("bk_core.protocol.ledger.write.writer", "bk_core.protocol.wire.messages", True),
        ("bk_core.protocol.wire.frames", "bk_core.protocol.ledger.write.writer", False),
        ("bk_core.client.ledger.read_handle", "pyarrow", False),
        ("bk_core.client.ledger.read_handle", "bk_core.bookie.server", False),
        ("bk_core.client.ledger.read_handle", "bk_core.aio.loops", False),
        ("bk_core.aio.ledgers", "bk_core.client.ledger.read_handle", True),
        ("bk_core.aio.ledgers", "bk_core.net.reactor", False),
        ("bk_core.metadata.zookeeper.store", "kazoo.client", True),
        ("bk_core.metadata.memory", "kazoo.client", False),
        ("bk_core.metadata.etcd.connection", "grpc", True),
        ("bk_core.metadata.etcd.link", "grpc", False),
        ("bk_spark.source.offsets", "pyspark.sql", False),
        ("bk_spark.datasource", "pyspark.sql", True),
    ],
)
def test_the_import_table_means_what_it_says(module: str, name: str, allowed: bool) -> None:
    assert is_allowed(module, name) is allowed


FORKING = {"preexec_fn", "fork", "forkpty", "forkserver"}


@pytest.mark.parametrize("path", modules(), ids=lambda path: module_name(path))
def test_nothing_runs_python_in_a_forked_child(path: Path) -> None:
    """A fork drops the other threads; what they kept is finalised in the child, on sockets that are the parent's."""
    names = facts(path).names
    assert not names & FORKING
    assert not {"multiprocessing", "ProcessPoolExecutor"} & names or "spawn" in names


# A bookie's threads belong to a process of its own, and the demo's main thread waits for its children only.
UNINTERRUPTED = ("bk_core.threads", "bk_core.background", "bk_core.bookie", "bk_core.cli", "bk_spark.demo")
WAITS = {"Barrier", "BoundedSemaphore", "Condition", "Event", "Future", "LifoQueue", "PriorityQueue", "Queue", "Semaphore"}


@pytest.mark.parametrize("path", modules(), ids=lambda path: module_name(path))
def test_no_wait_is_of_a_class_that_an_interrupt_leaves_locked(path: Path) -> None:
    """``bk_core.threads`` says why, and has what waits in their place."""
    if any(within(module_name(path), exempt) for exempt in UNINTERRUPTED):
        return
    made = {called.removeprefix("threading.").removeprefix("queue.") for called in facts(path).called}
    assert not made & WAITS


@cache
def tracked_files() -> tuple[Path, ...]:
    """Return the files that git tracks or would track. Without git (an unpacked archive): nothing to check."""
    try:
        done = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ()
    return tuple(path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file())


def test_top_level_is_small() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in tracked_files()} <= TOP_LEVEL


# Spelled in pieces, so that this file passes too.
UNWANTED = {
    "a path of one machine": re.compile(r"(?<![\w.])/(?:ho" r"me|ro" r"ot|Us" r"ers|wo" r"rk)/\w"),
    "a host of a package registry": re.compile(
        r"py" r"pi\.org|files\.python" r"hosted|repo1?\.maven|central\.sonatype|proxy\.golang", re.I
    ),
    "unfinished work": re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b|NotImplemented" r"Error"),
}
TEXT = {
    ".py",
    ".pyi",
    ".c",
    ".h",
    ".md",
    ".toml",
    ".txt",
    ".in",
    ".yaml",
    ".yml",
    ".java",
    ".properties",
    ".proto",
    ".ipynb",
    ".sh",
    ".json",
    "",
}


@pytest.mark.parametrize("what", UNWANTED)
def test_tracked_files_are_clean_of(what: str) -> None:
    found = []
    for path in tracked_files():
        if path.suffix not in TEXT or not UNWANTED[what].search(text_of(path)):
            continue
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if UNWANTED[what].search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found, f"{what}:\n" + "\n".join(found)


def test_lock_names_no_hosts_and_hashes_everything() -> None:
    for name in ("requirements.txt", "requirements-java.txt"):
        text = (ROOT / name).read_text()
        assert "://" not in text
        for requirement in re.split(r"\n(?=\w)", re.sub(r"^#.*\n?", "", text, flags=re.M).strip()):
            assert "==" in requirement and "--hash=sha256:" in requirement, requirement[:80]


def error_classes() -> list[type[errors.BkError]]:
    importlib.import_module("bk_core.bookie.zookeeper_process")  # it has one of its own
    found = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, errors.BkError)]
    return [*found, *(cls for cls in _subclasses(errors.BkError) if cls not in found and cls.__module__.startswith("bk_"))]


def _subclasses(cls: type[errors.BkError]) -> Iterator[type[errors.BkError]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__name__)
def test_every_error_pickles(cls: type[errors.BkError]) -> None:
    error = cls("no entry 7", ledger_id=3, entry_id=7)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert copy.args == error.args
    assert copy.context == {"ledger_id": 3, "entry_id": 7}
    assert str(copy) == f"[{cls.code}] no entry 7"


def test_every_error_that_users_meet_is_in_the_tree() -> None:
    """Its class is one of bk_core.errors, or of the module that alone raises it and below BkError. Others never leave the package: whoever
    reads entries turns the first two into LogEntryError, and the demo's and the signal's end their own command."""
    inner = {"BadEntryError", "EntryTooBigError", "DemoError", "TerminatedError"}
    found = {
        name
        for package in ("bk_core", "bk_spark")
        for path in (ROOT / package).rglob("*.py")
        for name in facts(path).classes
        if name.endswith("Error") and not name.startswith("_")
    }
    assert found - {cls.__name__ for cls in error_classes()} == inner


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [cls.code for cls in error_classes()]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__name__)
def test_every_error_says_what_it_is_and_what_to_do(cls: type[errors.BkError]) -> None:
    """In a docstring and an ``advice`` of its own, of which the reference of the documentation site is made."""
    own = vars(cls)
    assert (own.get("__doc__") or "").strip().endswith((".", ")")), "say in the docstring what has happened"
    assert own.get("advice", "").endswith("."), "say in `advice` what a user does about it"
    assert not re.search(r"``|\(" + _ID, own["advice"]), "a user does not know rules"


def test_the_discovery_module_never_raises_on_import(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("pyspark_bookkeeper")
    for name in [name for name in sys.modules if within(name, "bk_spark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "bk_spark.datasource", None)  # as if it could not be imported
    module = importlib.reload(module)
    source = module.DefaultSource
    assert source.name() == "bookkeeper" and source is module.DefaultSource
    with pytest.raises(ImportError, match=r'format\("bookkeeper"\) is not available: .*bk_spark.datasource'):
        source({})
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)  # nor has Spark anything that it could be
    module = importlib.reload(module)
    assert getattr(module, "DefaultSource", None) is None
    assert getattr(module, "__path__", None) is None


def test_importing_bk_core_is_cheap() -> None:
    """It is imported by every Spark worker, used or not."""
    program = (
        "import sys, bk_core; print([m for m in ('kazoo', 'lmdb', 'google.protobuf', 'click', 'rich', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


ERROR_FIRST = re.compile(r"\w+Error\b")


def test_docstrings_of_functions_begin_with_no_error() -> None:
    """ "Raises NoSuchLogError if ..." is a sentence; "NoSuchLogError if ..." is half of one."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in modules()
        for line, text in facts(path).functions
        if ERROR_FIRST.match(text)
    ]
    assert not found, "say that it raises:\n" + "\n".join(found)


_ID = r"(?:[A-Z]{1,5}-I?\d+[a-z]?|[DRQ]\d{1,2})(?: \(\d\))?"
_IDS = rf"{_ID}(?:(?:, | and |\.\.| \.\. ){_ID})*"
CLIPPED = re.compile(
    r"(?:What|Which|Who|Whose|Whom|Whether|Where|How|Why|When|Whoever|Whatever|Those|Any thread|So many|Called|Idempotent|Seldom"
    r"|At|Beside|Between|By|For|From|In|Not|Of|Up to (?!``)|With (?!True\b|False\b|a guaranteed\b))\b"
)
ID_FIRST = re.compile(rf"{_IDS}(?:[.:] |\.?$)")


def test_docstrings_begin_with_their_subject() -> None:
    """A stranger reads "True if ..." or "The bytes that ..." once, and "Whether ...", "Those of ..." or "Any thread." twice."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for package in ("bk_core", "bk_spark")
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in facts(path).texts
        if CLIPPED.match(text)
    ]
    assert not found, "say what it is or does, with a subject:\n" + "\n".join(found)


def test_docstrings_begin_with_words_and_end_with_rules() -> None:
    """ "Ask all bookies (RC-4)." tells a stranger what happens; "RC-4: all of them." does not."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for package in ("bk_core", "bk_spark")
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in facts(path).texts
        if ID_FIRST.match(text.split("\n\n")[0])
    ]
    assert not found, "say what it is or does first, and the rule's id last:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    ["Whether it is.", "What a bookie says.", "How it asks.", "Why it ended.", "Those of one store.", "Any thread.", "With what is known."],
)
def test_clipped_docstrings_are_seen(text: str) -> None:
    assert CLIPPED.match(text)


@pytest.mark.parametrize("text", ["With True, it waits.", "Up to ``most`` threads.", "Forget it.", "Inches of a figure.", "Bytes of it."])
def test_docstrings_with_a_subject_are_let_be(text: str) -> None:
    assert not CLIPPED.match(text)


@pytest.mark.parametrize("text", ["RC-5.", "EC-4..EC-16, META-11.", "LOG-1 (2), LOG-2: the last two.", "R37: none.", "OWN-10"])
def test_ids_in_front_are_seen(text: str) -> None:
    assert ID_FIRST.match(text)
    assert not ID_FIRST.match(f"Stop ({text})")


SECRETS = re.compile(r"password|passwd|secret|token|master_key")
HIDDEN = re.compile(r"repr=False")


def shown_secrets(tree: ast.AST) -> Iterator[str]:
    """Yield each field of a dataclass or a NamedTuple that is named as a secret and stands in the ``repr`` that Python makes."""
    for one in ast.walk(tree):
        if not isinstance(one, ast.ClassDef):
            continue
        makers = [ast.unparse(maker) for maker in (*one.decorator_list, *one.bases)]
        maker = next((maker for maker in makers if maker.startswith(("dataclass", "NamedTuple"))), None)
        own = any(isinstance(part, ast.FunctionDef) and part.name == "__repr__" for part in one.body)
        if maker is None or own or HIDDEN.search(maker):
            continue
        for part in one.body:
            if isinstance(part, ast.AnnAssign) and SECRETS.fullmatch(ast.unparse(part.target)) and "bytes" in ast.unparse(part.annotation):
                value = "" if part.value is None else ast.unparse(part.value)
                if not HIDDEN.search(value):
                    yield f"{one.name}.{ast.unparse(part.target)}"


def test_no_value_shows_a_secret() -> None:
    """A ``repr`` gets into tracebacks, logs and the output of notebooks."""
    found = [f"{module_name(path)}.{what}" for path in modules() for what in shown_secrets(ast.parse(text_of(path)))]
    assert not found, "give the field repr=False, or the class a __repr__ of its own: " + ", ".join(found)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("@dataclass(frozen=True)\nclass A:\n    password: bytes = b''", ["A.password"]),
        ("@dataclass\nclass A:\n    master_key: bytes | None = None", ["A.master_key"]),
        ("class A(NamedTuple):\n    password: bytes", ["A.password"]),
        ("@dataclass\nclass A:\n    password: bytes = field(default=b'', repr=False)", []),
        ("@dataclass(repr=False)\nclass A:\n    password: bytes", []),
        ("class A(NamedTuple):\n    password: bytes\n    def __repr__(self): ...", []),
        ("class A(TypedDict):\n    password: bytes", []),
    ],
)
def test_shown_secrets_are_seen(text: str, shown: list[str]) -> None:
    assert list(shown_secrets(ast.parse(text))) == shown


LONGEST_TEST_FILE = 700
WORLD_FOLDERS = ("unit", "integration", "network", "spark")


def test_the_worlds_of_tests_are_listed() -> None:
    """A world that nobody finds is written a second time."""
    helpers = {
        str(path.relative_to(ROOT / "tests"))
        for folder in WORLD_FOLDERS
        for path in tracked_files()
        if path.is_relative_to(ROOT / "tests" / folder) and path.suffix == ".py" and not path.name.startswith(("test_", "conftest", "__"))
    }
    listed = set(re.findall(r"^\| `([\w/]+\.py)` \|", (ROOT / "tests" / "README.md").read_text(), re.M))
    assert helpers <= listed, f"tests/README.md does not list {sorted(helpers - listed)}"
    assert all((ROOT / "tests" / name).exists() for name in listed)


def test_test_files_are_named_by_subject_and_no_longer_than_one_can_look_through() -> None:
    tests = [path for path in tracked_files() if path.name.startswith("test_") and path.suffix == ".py"]
    assert not [path.name for path in tests if re.search(r"\d+_\d+", path.name)]
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in tests}
    assert not {name: lines for name, lines in long.items() if lines > LONGEST_TEST_FILE}
