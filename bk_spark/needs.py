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


def check_for_tables() -> None:
    """Raise MissingPackageError if there is no pyarrow, or it is too old, for tables of logs without Spark."""
    try:
        from pyarrow import __version__
    except ImportError:
        raise _missing_for_tables("there is none") from None
    try:
        check_version("pyarrow", __version__)
    except MissingPackageError:
        raise _missing_for_tables(f"this is {__version__}") from None


def _missing_for_tables(found: str) -> MissingPackageError:
    low = ".".join(map(str, BOUNDS["pyarrow"]))
    message = f'logs as tables need pyarrow {low}, {found} ({sys.executable}): pip install "bk-spark[arrow]" there'
    return MissingPackageError(message, package="pyarrow")


def check_pandas(what: str = "Log.to_pandas") -> None:
    """Raise MissingPackageError if there is no pandas, which only calls such as ``what`` ask for."""
    if not _is_there("pandas"):
        raise MissingPackageError(f"{what} needs pandas, there is none ({sys.executable}): pip install pandas", package="pandas")


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
