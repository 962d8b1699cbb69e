"""The definition of a metadata table: columns, how its work is divided, and its rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql.types import StructType

from bk_core.display import moments
from bk_spark.options.table import Options
from bk_spark.source.bounds import Bounds

Row = Mapping[str, Any]
Plan = Callable[[Any, Options, Bounds], Sequence[Any]]
Rows = Callable[[Any, Options, Any, Collection[str]], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class Table:
    """``plan(client, options, bounds)`` returns picklable units of work, one for each task. ``rows(client, options, unit, columns)`` yields
    the rows of one, as values by column: only those in ``columns`` are used, so a table need not compute expensive columns that nobody
    asked for.

    ``bounded_by``: columns whose filters ``plan`` understands, and their meaning
    (pushdown.py).
    """

    schema: StructType
    plan: Plan
    rows: Rows
    bounded_by: Mapping[str, str]


def moment(ms: int | None) -> datetime | None:
    """Return milliseconds since 1970 as Spark takes them; None for None, and for the 0 of a time that was not recorded."""
    return moments.moment(ms) if ms else None


def chunks(items: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(items[i : i + size]) for i in range(0, len(items), size)]
