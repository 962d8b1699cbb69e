"""Finds the checkpoints of queries in a file store, and their files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bk_core.client.files.imports import is_of_import
from bk_core.protocol.files.paths import ROOT, parent

if TYPE_CHECKING:
    from bk_core.client.files.view import FileStoreView
    from bk_core.protocol.files.content import Content, FileStatus


def everything(view: FileStoreView, path: str = ROOT) -> list[tuple[FileStatus, Content | None]]:
    """Return ``path`` and all below it, without what an unfinished import has there, unless that was named."""
    found = view.everything(path)
    return found if is_of_import(path) else [(status, content) for status, content in found if not is_of_import(status.path)]


def bases(view: FileStoreView, path: str = ROOT) -> list[str]:
    """Return the checkpoints of queries in a folder of a store: the directories that have offsets in them."""
    return [parent(status.path) for status, _ in everything(view, path) if status.is_directory and status.name == "offsets"]
