"""Wheel and source distribution of this checkout, made outside of it, and environments that have them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = "import sys, setuptools.build_meta as backend; getattr(backend, 'build_' + sys.argv[1])(sys.argv[2])"
OURS = ("PYTHONPATH", "PYTHONHOME", "SPARK_HOME", "BK_CORE_KERNELS", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV")


def tracked() -> list[str]:
    """Files of the checkout that git knows or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in names.split("\0") if name and (ROOT / name).is_file())


def copy(directory: Path) -> Path:
    """The checkout without what was built in it, which setuptools would pack too."""
    for name in tracked():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, directory / name)
    return directory


def build(kind: str, tree: Path, out: Path) -> Path:
    """Build by the setuptools of this environment, without the network. ``kind``: wheel or sdist."""
    out.mkdir(parents=True, exist_ok=True)
    run(sys.executable, "-c", BUILD, kind, out, cwd=tree)
    (made,) = out.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


def unpack(sdist: Path, directory: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    (tree,) = directory.iterdir()
    return tree


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def activated(environment: Path) -> dict[str, str]:
    """The variables of a shell in which this environment is activated, without what this process was told for itself."""
    clean = {name: value for name, value in os.environ.items() if name not in OURS}
    clean["PATH"] = os.pathsep.join([str(environment / "bin"), clean.get("PATH", "")])
    return clean


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Quietly, unless it fails."""
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(done.stdout, file=sys.stderr, flush=True)
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout)
