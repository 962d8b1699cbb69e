"""The choice of kernels, each time in a fresh interpreter, with and without an extension to load."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bk_core.kernels
from bk_core.kernels import _native, pure

PACKAGE = Path(bk_core.kernels.__file__).parent
FUNCTIONS = sorted(set(bk_core.kernels.__all__) - {"CRC32C_KERNEL", "IMPLEMENTATION"})
SHOW = "from bk_core import kernels as k; print(k.IMPLEMENTATION, k.CRC32C_KERNEL, hex(k.crc32c(b'123456789')))"


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A tree with the door and the pure kernels only, like a zip given to Spark."""
    kernels = tmp_path / "bk_core" / "kernels"
    kernels.mkdir(parents=True)
    (kernels.parent / "__init__.py").touch()
    (kernels.parent / "errors.py").write_bytes((PACKAGE.parent / "errors.py").read_bytes())
    for path in PACKAGE.glob("*.py"):
        (kernels / path.name).write_bytes(path.read_bytes())
    return tmp_path


def run(root: Path, choice: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "BK_CORE_KERNELS"}
    environment["PYTHONPATH"] = str(root)
    if choice is not None:
        environment["BK_CORE_KERNELS"] = choice
    return subprocess.run([sys.executable, "-c", SHOW], env=environment, cwd=root.parent, capture_output=True, text=True, timeout=60)


def with_extension(bare: Path) -> Path:
    extension = Path(_native.__file__)
    (bare / "bk_core" / "kernels" / extension.name).write_bytes(extension.read_bytes())
    return bare


@pytest.mark.parametrize("choice", [None, "native"])
def test_native_is_preferred(bare: Path, choice: str | None) -> None:
    result = run(with_extension(bare), choice)
    assert result.stdout == f"native {_native.CRC32C_KERNEL} 0xe3069283\n"
    assert result.stderr == ""


def test_pure_can_be_forced(bare: Path) -> None:
    result = run(with_extension(bare), "pure")
    assert (result.stdout, result.stderr) == ("pure python 0xe3069283\n", "")


def test_falling_back_says_so_once(bare: Path) -> None:
    result = run(bare, None)
    assert result.stdout == "pure python 0xe3069283\n"
    assert result.stderr.count("\n") == 1 and "the native kernels cannot be loaded" in result.stderr


def test_a_broken_extension_falls_back_too(bare: Path) -> None:
    (bare / "bk_core" / "kernels" / Path(_native.__file__).name).write_bytes(b"not a shared library")
    result = run(bare, None)
    assert result.stdout.startswith("pure ") and "the native kernels cannot be loaded" in result.stderr


def test_a_zip_or_a_wheel_on_the_path_says_what_to_do(bare: Path) -> None:
    """It has the extension, as --py-files has when it gets a wheel, and Python imports none from there."""
    for ending in ("zip", "whl"):
        packed = bare.with_name(f"{bare.name}-packed.{ending}")
        shutil.make_archive(str(bare.with_name("packed")), "zip", with_extension(bare))
        bare.with_name("packed.zip").rename(packed)
        result = run(packed, None)
        assert result.stdout == "pure python 0xe3069283\n"
        assert result.stderr.count("\n") == 1 and f"({packed}): install the wheel there" in result.stderr
        forced = run(packed, "native")
        assert forced.returncode != 0 and f"({packed}): install the wheel there" in forced.stderr


def test_native_forced_but_missing_is_fatal(bare: Path) -> None:
    result = run(bare, "native")
    assert result.returncode != 0 and result.stdout == ""
    assert "ImportError: BK_CORE_KERNELS=native, but the native kernels cannot be loaded" in result.stderr


def test_an_unknown_choice_is_fatal(bare: Path) -> None:
    result = run(bare, "fast")
    assert result.returncode != 0 and "BK_CORE_KERNELS must be native, pure or not set, not 'fast'" in result.stderr


def test_the_door_offers_one_twin_whole() -> None:
    twin = {"native": _native, "pure": pure}[bk_core.kernels.IMPLEMENTATION]
    assert bk_core.kernels.CRC32C_KERNEL == twin.CRC32C_KERNEL
    assert sorted(name for name in dir(_native) if not name.startswith("_") and name != "CRC32C_KERNEL") == FUNCTIONS
    assert sorted(pure.__all__) == sorted([*FUNCTIONS, "CRC32C_KERNEL"])
    for name in FUNCTIONS:
        assert getattr(bk_core.kernels, name) is getattr(twin, name)


def test_kernel_names() -> None:
    assert _native.CRC32C_KERNEL in {"avx512-vpclmulqdq", "sse4.2-pclmulqdq", "sse4.2", "armv8-crc", "table"}
    assert pure.CRC32C_KERNEL == "python"
