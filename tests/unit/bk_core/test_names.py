"""Names that are loaded on first use: they are there for whoever looks, completes or imports them."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from types import ModuleType

import pytest

import bk_core
import bk_spark
from bk_core.client.files.view import FileStoreView

PARTS = {"Content", "EntryState", "FoundLedger", "LedgerAccess", "LedgerFragment", "TraceMark", "TraceMessage", "TraceStep"}
PARTS |= {"ApacheSettings", "ClientSettings", "LedgerFilters", "LogChanges", "LogSettings", "RepairSettings", "Versioned", "XrayProblem"}
PARTS |= {"ClientCounts", "Closable", "Following", "KerberosService", "LogClient", "MetadataStore", "Session"}
"""Classes that are part of a value, name the options of a call, or are what the program itself works with."""


@pytest.mark.parametrize("module", [bk_core, bk_spark], ids=lambda module: module.__name__)
def test_dir_tells_every_name_of_a_module(module: ModuleType) -> None:
    assert set(module.__all__) <= set(dir(module))
    assert "__name__" in dir(module)
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("module", [bk_core, bk_spark], ids=lambda module: module.__name__)
def test_dir_tells_no_name_that_is_not_public(module: ModuleType) -> None:
    assert {name for name in dir(module) if not name.startswith("__")} == set(module.__all__) - {"__version__"}


def test_what_the_documents_name_is_there_after_a_bare_import() -> None:
    program = "import bk_core; print(bk_core.kernels.IMPLEMENTATION, bk_core.ClientConfig.__name__)"
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True)
    assert done.stdout in ("native ClientConfig\n", "pure ClientConfig\n"), done.stderr


def test_a_view_is_exported_beside_the_store() -> None:
    assert bk_core.FileStoreView is FileStoreView and {"FileStore", "FileStoreView"} <= set(bk_core.__all__)


def test_what_users_give_and_get_is_there() -> None:
    """Each class of ours that a public call takes or returns, but those that are parts of others, or of this program."""
    met = set()
    for name in bk_core.__all__:
        public = getattr(bk_core, name)
        for member in vars(public).values() if isinstance(public, type) else [public]:
            call = inspect.unwrap(getattr(member, "fget", None) or getattr(member, "__func__", None) or member)
            if inspect.isfunction(call) and not call.__name__.startswith("_"):
                words = re.findall(r"[A-Z][A-Za-z]+", " ".join(map(str, call.__annotations__.values())))
                met |= {word for word in words if inspect.isclass(call.__globals__.get(word)) and _is_ours(call.__globals__[word])}
    assert {"LogEntries", "LogInfo", "ReadOptions", "FileStatus"} <= met
    assert met - PARTS <= set(bk_core.__all__)
    assert bk_core.ClientConfig("zk://a/l", limits=bk_core.Limits()).limits == bk_core.Limits()


def test_the_types_of_settings_are_there() -> None:
    """Else a program has to know in which module of ours they lie."""
    classes = [public for name in bk_core.__all__ if isinstance(public := getattr(bk_core, name), type) and is_dataclass(public)]
    names = {one: vars(sys.modules[one.__module__]) for one in classes if "__post_init__" in vars(one)}
    met = {
        word
        for one, known in names.items()
        for field in fields(one)
        for word in re.findall(r"[A-Z][A-Za-z]+", str(field.type))
        if inspect.isclass(known.get(word)) and _is_ours(known[word])
    }
    assert {"Limits", "ReadMode", "ReadOptions", "Security"} <= met <= set(bk_core.__all__)


def _is_ours(found: type) -> bool:
    return found.__module__.startswith("bk_core.") and not issubclass(found, BaseException)


def test_looking_loads_nothing() -> None:
    program = "import sys, bk_core; dir(bk_core); sys.exit('bk_core.client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
