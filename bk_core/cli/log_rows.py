"""The rows of a log of Arrow entries, for ``bk log tail``: tables for people, an object a row for scripts."""

from __future__ import annotations

import base64
import json
import math
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from bk_core.cli.output import say_json, say_table
from bk_core.display.words import preview

if TYPE_CHECKING:
    import threading

    import pyarrow as pa

    from bk_core.client import BookKeeper
    from bk_core.protocol.log.position import Position

_Rows: TypeAlias = "tuple[Sequence[pa.Field], list[tuple[Any, ...]]]"  # with their columns
ROWS_A_TABLE = 1000
_CELL_MAX = 60
_LOOK_S = 0.5
_NUMBERS = ("int", "uint", "float", "double", "halffloat", "decimal")


def say_rows(batches: Iterable[pa.RecordBatch], as_json: bool, *, last: int | None = None) -> int:
    """Print the rows, or with ``last`` that many of the last ones, and return how many there are. A table is printed when it is full, and
    when the batches pause, so that rows of a log that is followed are seen as they come."""
    shown = 0
    for columns, rows in _tables(batches) if last is None else _as_one(_tables(_last(batches, last))):
        shown += len(rows)
        if as_json:
            for row in rows:
                say_json({field.name: _plain(value) for field, value in zip(columns, row, strict=True)})
        elif rows:
            heads = [f"{'#' if str(field.type).startswith(_NUMBERS) else ''}{field.name}" for field in columns]
            say_table(heads, ([_cell(value) for value in row] for row in rows))
        sys.stdout.flush()
    return shown


def _last(batches: Iterable[pa.RecordBatch], count: int) -> Iterator[pa.RecordBatch]:
    kept: deque[pa.RecordBatch] = deque()
    rows = 0
    for batch in batches:
        kept.append(batch)
        rows += batch.num_rows
        while kept and rows - kept[0].num_rows >= count:
            rows -= kept.popleft().num_rows
    if kept:
        kept[0] = kept[0].slice(max(0, rows - count))
    yield from kept


def _as_one(tables: Iterable[_Rows]) -> Iterator[_Rows]:
    """Yield all rows as one table; all have the same columns."""
    parts = list(tables)
    if parts:
        yield parts[0][0], [row for _, rows in parts for row in rows]


def _tables(batches: Iterable[pa.RecordBatch]) -> Iterator[_Rows]:
    """Yield the columns with some rows, small batches as they are and large ones in parts."""
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_A_TABLE):
            part = batch.slice(start, ROWS_A_TABLE)
            yield list(part.schema), list(zip(*map(_values, part.columns), strict=True))


def _values(column: pa.Array) -> list[Any]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError):  # a time that Python has no value for
        return [column.slice(index, 1).to_string().strip("[] \n") for index in range(len(column))]


def _cell(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        text = preview(value)
    elif isinstance(value, list | dict):
        text = json.dumps(_plain(value), ensure_ascii=False)
    else:
        text = value if isinstance(value, str) else str(_plain(value))
    return text if len(text) <= _CELL_MAX else f"{text[:_CELL_MAX]} ..."


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: times as ISO texts, durations in seconds, bytes in base64, exact numbers and NaN as texts."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def followed(
    client: BookKeeper, name: str, password: bytes, columns: Sequence[str] | None, start: Position, stop: threading.Event | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield batches from ``start`` on for ever. A log that has no columns yet is waited for until it has."""
    from bk_core.client.log.history import read_log
    from bk_core.client.log.reader import LogReader

    with LogReader(client, name, start=start, password=password) as waiting:
        while not read_log(client, name).properties.schema:
            waiting.wait(_LOOK_S)
    yield from client.log(name, password=password).follow_batches(columns=columns, start=start, stop=stop)


def read_rows(client: BookKeeper, name: str, password: bytes, columns: Sequence[str] | None, start: Position) -> Iterator[pa.RecordBatch]:
    """Yield batches from ``start`` to the end of now; of a log without columns none."""
    from bk_core.client.log.history import read_log

    if not read_log(client, name).properties.schema:
        return
    yield from client.log(name, password=password).to_batches(columns=columns, start=start)
