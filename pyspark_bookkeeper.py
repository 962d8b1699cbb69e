"""Makes ``format("bookkeeper")`` known to Spark without a register call.

Spark imports every top-level module whose name starts with ``pyspark_`` and takes its ``DefaultSource``. It does so in every session on
every machine where this is installed, so importing it never raises and loads nothing: an import that raised here would take every other
Python format of the session with it (spark-connectors.md 5.11). Where the source cannot be loaded (pyspark too old, no pyarrow), its place
is taken by one that says why as soon as it is used.
"""

from __future__ import annotations

import logging
from typing import Any

_stand_ins: list[type] = []  # one at most: Spark pickles it by its name, which has to give the same object again


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from bk_spark import BookKeeperDataSource
        except Exception as error:
            if not _stand_ins:
                logging.getLogger(__name__).warning('format("bookkeeper") is not available: %s', error)
                _stand_ins.append(_stand_in(str(error)))
            return _stand_ins[0]
        return BookKeeperDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _stand_in(reason: str) -> type:
    """AttributeError where pyspark has no Python sources at all: Spark does not look for them there."""
    try:
        from pyspark.sql.datasource import DataSource
    except ImportError:
        raise AttributeError(f"no BookKeeper source here: {reason}") from None

    class DefaultSource(DataSource):
        def __init__(self, options: Any) -> None:
            raise ImportError(f'format("bookkeeper") is not available: {reason}')

        @classmethod
        def name(cls) -> str:
            return "bookkeeper"

    DefaultSource.__qualname__ = DefaultSource.__name__
    return DefaultSource
