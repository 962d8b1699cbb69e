"""Makes ``format("bookkeeper")`` known to Spark without a register call.

Spark imports every top-level module whose name starts with ``pyspark_`` and takes its ``DefaultSource``. It does so in every session on
every machine where this is installed, so importing it never raises and loads nothing: without pyspark or pyarrow there is just no source,
and the log says why: an import that raised here would take every other Python format of the session with it (spark-connectors.md 5.11).
"""

from __future__ import annotations

import logging
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from bk_spark.source import BookKeeperDataSource
        except Exception as error:
            logging.getLogger(__name__).warning('format("bookkeeper") is not available: %s', error)
            raise AttributeError(f"no BookKeeper source here: {error}") from None
        return BookKeeperDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
