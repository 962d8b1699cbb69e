"""Names of logs: those that hold the changes of file stores begin alike. Pure."""

from __future__ import annotations

from collections.abc import Iterable

FILES_PREFIX = "files."
"""Logs whose names begin with this hold the changes of file stores, and nothing else is written to them (GRD-7)."""


def not_of_files(names: Iterable[str], asked: str) -> list[str]:
    """The names without those of file stores' logs, unless ``asked`` begins as they do: who reads and writes logs does not mean them."""
    return [name for name in names if asked.startswith(FILES_PREFIX) or not name.startswith(FILES_PREFIX)]
