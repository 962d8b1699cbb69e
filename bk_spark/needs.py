"""Checks the packages that bk_spark needs, with one message for a missing or old one. pyproject.toml has the same bounds.

Every way of Spark into bk_spark passes ``check``: a session that registers or discovers the source, a planner, a task on an executor. The
modules without pyspark (``bk_spark/entries``, ``bk_spark/arrow``) need pyarrow alone, so importing the package checks nothing. The check
imports nothing heavy; modules that import pyarrow check its version.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec

from bk_core.errors import MissingPackageError

BOUNDS = {"pyspark": (4, 2), "pyarrow": (18, 0)}
"""Lowest (major, minor) with which this works. pyspark 4.1 has no admission control for Python sources, and other Arrow schemas."""
MODULES = {"pyspark": "pyspark", "pyarrow": "pyarrow", "kazoo": "kazoo", "protobuf": "google.protobuf"}


def check() -> None:
    """Raise MissingPackageError if a package that reading or writing needs is not there, or pyspark is too old."""
    for package, module in MODULES.items():
        if not _is_there(module):
            raise _missing(package, "there is none")
    from pyspark.version import __version__

    check_version("pyspark", __version__)


def check_version(package: str, found: str) -> None:
    """Raise MissingPackageError if ``found`` is below the bound. Only the major and the minor number count."""
    numbers = re.match(r"(\d+)(?:\.(\d+))?", found)
    if numbers is not None and (int(numbers[1]), int(numbers[2] or 0)) < BOUNDS[package]:
        raise _missing(package, f"this is {found}")


def _is_there(module: str) -> bool:
    try:
        return sys.modules.get(module) is not None or find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # no parent, or a module without a spec
        return False


def _missing(package: str, found: str) -> MissingPackageError:
    bound = BOUNDS.get(package)
    needed = package if bound is None else f"{package} {bound[0]}.{bound[1]}"
    message = f'bk_spark needs {needed}, {found} ({sys.executable}): pip install "bk-spark[spark]" there, on the driver and every executor'
    return MissingPackageError(message, package=package)
