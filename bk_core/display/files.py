"""The tables of file stores: the status of a file, and what a collection did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bk_core.display.table import Table
from bk_core.display.words import told_size, when

if TYPE_CHECKING:
    from bk_core.client.files.upkeep import FileGcReport
    from bk_core.protocol.files.content import FileStatus


def status(one: FileStatus) -> Table:
    """Return one file or directory, a fact a line."""
    size = ("children", f"{one.children:,}") if one.is_directory else ("size", told_size(one.size))
    return Table(
        ["directory" if one.is_directory else "file", one.path], [size, ("modified (UTC)", when(one.modified_ms)), ("id", one.file_id)]
    )


def collected(report: FileGcReport) -> Table:
    """Return the ledgers and folders that a collection dealt with, and what became of each."""
    rows: list[tuple[object, ...]] = [(f"ledger {ledger_id}", "deleted", None) for ledger_id in report.deleted]
    rows += [(f"ledger {ledger_id}", "could not be deleted", why) for ledger_id, why in report.failed]
    rows += [(f"ledger {ledger_id}", "left alone", why) for ledger_id, why in report.foreign]
    rows += [(path, "deleted", "its import was killed") for path in report.imports]
    rows += [(path, "in place", "its import was killed after its last change") for path in report.finished]
    return Table(["of the store", "what", "why"], rows)
