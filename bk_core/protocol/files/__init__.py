"""A tree of files on ledgers: the rules of a file store, and nothing else. README.md says how it works."""

from __future__ import annotations

from bk_core.protocol.files.content import Content, Extent, FileStatus
from bk_core.protocol.files.machine import FileMachine
from bk_core.protocol.files.replay import FileReplay
from bk_core.protocol.files.state import FileLimits, FileState
from bk_core.protocol.files.tree import FileTree

__all__ = ["Content", "Extent", "FileLimits", "FileMachine", "FileReplay", "FileState", "FileStatus", "FileTree"]
