"""``python -m tests.wheel``: the wheel, built and played where only what it declares is installed. 0 if every part held.

``lowest``: every declared package at its lower bound. ``newest``: whatever the package index has. Both are made anew in ``.cache/wheel``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".cache" / "wheel"
TRIAL = Path(__file__).with_name("trial.py")


def constraints(path: Path) -> Path:
    """Pins of all lower bounds that the wheel declares for Spark."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    path.write_text("".join(f"{bound.split(',')[0].replace('>=', '==')}\n" for bound in bounds))
    return path


def build() -> Path:
    shutil.rmtree(WORK / "dist", ignore_errors=True)
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # setuptools would pack what was deleted since
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", WORK / "dist", ROOT)
    (wheel,) = (WORK / "dist").glob("*.whl")
    return wheel


def play(name: str, wheel: Path, *pins: str | Path) -> bool:
    """In a folder of its own, so that the checkout is not on the path."""
    home = WORK / name
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home / "environment", with_pip=True)
    python = home / "environment" / "bin" / "python"
    _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[spark]", *pins)
    shutil.copy(TRIAL, home)
    print(f"-- {name}", flush=True)
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME", "BK_CORE_KERNELS")}
    with (home / "errors.log").open("w") as errors:
        done = subprocess.run([python, TRIAL.name], cwd=home, stderr=errors, env=clean)
    if done.returncode:
        print(f"{name} failed; see {home / 'errors.log'}", flush=True)
    return done.returncode == 0


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wheel", description=__doc__)
    parser.add_argument("--only", choices=("lowest", "newest"))
    only = parser.parse_args().only
    WORK.mkdir(parents=True, exist_ok=True)
    wheel = build()
    pins: dict[str, list[str | Path]] = {"lowest": ["--constraint", constraints(WORK / "lowest.txt")], "newest": []}
    results = [play(name, wheel, *pins[name]) for name in pins if only in (None, name)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
