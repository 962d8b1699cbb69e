"""Logs as Arrow tables: finds what makes them. bk_core imports neither pyarrow nor what is built on it.

``bk_spark.arrow`` is imported by its name, when a program asks for the first table. There is no entry point for it: the zips that Spark's
``--py-files`` ships, and a checkout on ``PYTHONPATH``, have none, and nobody else makes tables of these logs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, cast

from bk_core.client.log.list_store import LogClient
from bk_core.errors import MissingPackageError
from bk_core.protocol.log.position import Position

if TYPE_CHECKING:
    import threading

    import pyarrow as pa

MODULE = "bk_spark.arrow"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
Place: TypeAlias = "Position | int | str"
"""A place in a log: a position, a time in milliseconds since 1970, ``EARLIEST`` or ``LATEST``."""

Compression: TypeAlias = Literal["none", "zstd", "lz4"]

OnCounts: TypeAlias = "Callable[[str, int, int], None]"
"""A function of a step (export, import or verify), the rows or entries so far, and their bytes."""


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """The rows that ``Log.write`` added: how many, in how many entries and payload bytes. ``log.to_arrow(start=first, end=end)`` reads
    them again."""

    rows: int
    entries: int
    bytes: int
    first: Position
    end: Position


class Tables(Protocol):
    """The functions of ``bk_spark.arrow``."""

    def arrow_schema(self, client: LogClient, name: str, columns: Sequence[str] | None) -> pa.Schema: ...

    def open_batches(
        self,
        client: LogClient,
        name: str,
        *,
        password: bytes,
        columns: Sequence[str] | None,
        start: Place,
        end: Place,
    ) -> pa.RecordBatchReader: ...

    def follow_batches(
        self,
        client: LogClient,
        name: str,
        *,
        password: bytes,
        columns: Sequence[str] | None,
        start: Place,
        stop: threading.Event | None,
    ) -> pa.RecordBatchReader: ...

    def to_pandas(self, reader: pa.RecordBatchReader) -> Any: ...

    def write_rows(
        self,
        client: LogClient,
        name: str,
        data: object,
        *,
        password: bytes,
        ended: Sequence[int] | None,
        entry_size: int,
        compression: Compression,
    ) -> WrittenRows: ...

    def export_rows(
        self, client: LogClient, name: str, path: Path, kind: str, *, password: bytes, compression: str | None, on_counts: OnCounts | None
    ) -> tuple[int, Position, Position]: ...

    def open_rows(self, path: Path, kind: str) -> pa.RecordBatchReader: ...

    def is_raw_table(self, rows: pa.RecordBatchReader | None) -> bool: ...

    def counted(self, rows: pa.RecordBatchReader | None, on_counts: OnCounts | None) -> Iterator[pa.RecordBatch]: ...

    def value_batches(self, runs: Iterable[tuple[Any, array[int]]]) -> Iterator[pa.RecordBatch]: ...

    def same_rows(
        self,
        client: LogClient,
        name: str,
        path: Path,
        kind: str,
        *,
        password: bytes,
        start: Place,
        end: Place,
        on_counts: OnCounts | None,
    ) -> bool: ...
    def fact_batches(self, columns: Mapping[str, str], together: Iterable[Sequence[Mapping[str, Any]]]) -> pa.RecordBatchReader: ...

    def facts_to_pandas(self, reader: pa.RecordBatchReader) -> Any: ...

    def schema_text(self, schema: object) -> str: ...

    def told_columns(self, text: str) -> list[tuple[str, str]]: ...


def tables() -> Tables:
    """The module that makes tables. MissingPackageError where there is no pyarrow, or an old one."""
    return cast("Tables", import_module(MODULE))


def columns_told(schema: str) -> list[tuple[str, str]] | None:
    """Return the columns of a schema as a log's list keeps it, each with its type as DDL spells it: none for "", None where there is no
    pyarrow to read it. LogSchemaError for a text that no sink wrote."""
    if not schema:
        return []
    try:
        return tables().told_columns(schema)
    except MissingPackageError:
        return None
