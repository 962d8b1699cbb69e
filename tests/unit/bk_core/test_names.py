"""Names that are loaded on first use: they are there for whoever looks, completes or imports them."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import bk_core
import bk_spark
from bk_core.client.files.view import FileStoreView


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


def test_looking_loads_nothing() -> None:
    program = "import sys, bk_core; dir(bk_core); sys.exit('bk_core.client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
