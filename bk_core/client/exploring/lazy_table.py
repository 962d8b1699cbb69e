"""A table whose rows are read when they are asked for, a few at a time, and that other libraries take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from bk_core.client.here import StaysHere

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_TOGETHER = 1024


class LazyTable(StaysHere):
    """The part that all such tables share. A subclass has ``columns``, names with their types as DDL, and ``_rows``, which reads anew."""

    columns: Mapping[str, str] = {}

    def _rows(self) -> Iterator[dict[str, Any]]:
        raise AssertionError("a subclass reads the rows")

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return all rows, as dicts by the names of the columns. Raises what reading them raises."""
        return list(self._rows())

    def to_batches(self) -> pa.RecordBatchReader:
        """Return the rows as Arrow record batches, which are read as they are asked for: memory holds some rows and no more.

        Raises MissingPackageError where there is no pyarrow.
        """
        from bk_core.client.log.tables import tables

        return tables().fact_batches(self.columns, self._together())

    def _together(self) -> Iterator[list[dict[str, Any]]]:
        rows = self._rows()
        while some := list(islice(rows, ROWS_TOGETHER)):
            yield some

    def to_arrow(self) -> pa.Table:
        """Return all rows as a ``pyarrow.Table``. Raises what ``to_batches`` does."""
        return self.to_batches().read_all()

    def to_pandas(self) -> Any:
        """Return all rows as a DataFrame of pandas. Raises what ``to_batches`` does, and MissingPackageError where there is no pandas."""
        from bk_core.client.log.tables import tables

        return tables().facts_to_pandas(self.to_batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return Arrow's C stream of the rows, which ``polars.DataFrame(table)``, DuckDB and others ask for, with ``requested_schema``."""
        return self.to_batches().__arrow_c_stream__(requested_schema)
