"""Apache BookKeeper as a Spark data source: ``spark.read``, ``readStream``, ``write``, ``writeStream`` with ``format("bookkeeper")``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bk_spark.needs import check

if TYPE_CHECKING:
    from bk_spark.accumulators import count_in_accumulators as count_in_accumulators
    from bk_spark.active import activate as activate
    from bk_spark.checkpoint.location import checkpoint_location as checkpoint_location
    from bk_spark.datasource import BookKeeperDataSource as BookKeeperDataSource
    from bk_spark.query_metrics import QueryMetrics as QueryMetrics

__all__ = ["BookKeeperDataSource", "QueryMetrics", "activate", "checkpoint_location", "count_in_accumulators"]


if not TYPE_CHECKING:  # a type checker knows the names above, and finds others by itself

    def __getattr__(name: str) -> Any:
        if name == "BookKeeperDataSource":
            check()
            from bk_spark.datasource import BookKeeperDataSource

            return BookKeeperDataSource
        if name == "QueryMetrics":
            check()
            from bk_spark.query_metrics import QueryMetrics

            return QueryMetrics
        if name == "count_in_accumulators":
            check()
            from bk_spark.accumulators import count_in_accumulators

            return count_in_accumulators
        if name == "activate":
            check()
            from bk_spark.active import activate

            return activate
        if name == "checkpoint_location":
            check()
            from bk_spark.checkpoint.location import checkpoint_location

            return checkpoint_location
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, and those that every module has."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
