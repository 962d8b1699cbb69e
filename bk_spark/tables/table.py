"""The definition of a metadata table: columns, how its work is divided, and its rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql.types import StructType

from bk_core.client import moments
from bk_spark.options import Options
from bk_spark.pushdown import Bounds

Row = Mapping[str, Any]
Plan = Callable[[Any, Options, Bounds], Sequence[Any]]
Rows = Callable[[Any, Options, Any, Collection[str]], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class Table:
    """``plan(client, options, bounds)`` gives picklable units of work, one for each task; ``rows(client, options, unit, columns)`` the rows
    of one, as values by column: only those in ``columns`` are looked at, so that a table can leave out what is dear to find out.

    ``takes``: options (by field) that mean something to it. ``bounded_by``: columns whose filters ``plan`` understands, and what they
    mean (pushdown.py).
    """

    schema: StructType
    plan: Plan
    rows: Rows
    takes: frozenset[str]
    bounded_by: Mapping[str, str]


WHICH_LOGS = frozenset({"log", "logs", "log_pattern"})
WHICH_LEDGERS = WHICH_LOGS | {"ledgers"}


def moment(ms: int | None) -> datetime | None:
    """Milliseconds since 1970 as Spark takes them; None for none, and for the 0 of what nobody recorded."""
    return moments.moment(ms) if ms else None


def chunks(items: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(items[i : i + size]) for i in range(0, len(items), size)]
