"""The answers of a log about itself at one moment: ``Log.info`` and ``Log.segments``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from bk_core.client.log.live_writers import LiveWriter
from bk_core.client.log.tables import columns_told
from bk_core.client.showing import shown_in_time
from bk_core.display.words import counted
from bk_core.errors import LogSchemaError
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties, Segment


@dataclass(frozen=True, slots=True)
class LogInfo:
    """A log at one moment. ``rows`` and ``bytes`` are those of committed segments that are left; entries of a live segment are not counted.

    ``first`` is the position of the first entry that is left, ``end`` the one after the last committed entry. ``writer`` is the process
    that writes the log exclusively, or died writing it (its ``state`` says which); None if there is none.
    """

    name: str
    log_id: str
    properties: LogProperties
    segments: int
    rows: int
    bytes: int
    first: Position
    end: Position
    committed_at: datetime | None
    writer: LiveWriter | None
    live: int = 0
    """The segments that are being written, or whose writer died: they are among ``segments``, and nothing of them is counted."""

    @property
    def columns(self) -> list[tuple[str, str]] | None:
        """The names of the columns with their types, as DDL spells them: none for a log without a schema; None without pyarrow.

        Raises LogSchemaError for a schema that no sink wrote.
        """
        return columns_told(self.properties.schema)

    def __repr__(self) -> str:
        written = "" if self.writer is None else f", writer {self.writer.state}"
        live = f" ({self.live:,} live)" if self.live else ""
        committed = "committed " if self.live else ""
        size = f"{counted(self.rows, f'{committed}row')}, {counted(self.bytes, f'{committed}byte')}"
        return f"<LogInfo {self.name}: {counted(self.segments, 'segment')}{live}, {size}{written}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import logs, table

        try:
            return table.html(*logs.info_parts(self))
        except LogSchemaError as error:
            return table.html(logs.info(self), str(error))


class Segments(Iterator[Segment]):
    """The segments of a log at one moment, read from its history as they are asked for. A notebook shows the first of them."""

    def __init__(self, begin: Callable[[], Iterator[Segment]]) -> None:
        self._begin = begin
        self._items = begin()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Segment:
        return next(self._items)

    def __repr__(self) -> str:
        return "<Segments: iterate over them, or take list(...)>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows. The iteration stays where it is. A line stands there instead if the cluster fails, or
        does not answer within a few seconds."""
        from bk_core.display import logs, table

        return shown_in_time(lambda: table.html(logs.segments(self._begin())), "segments of a log")
