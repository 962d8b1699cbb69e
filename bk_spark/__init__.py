"""Apache BookKeeper as a Spark data source: ``spark.read``, ``readStream``, ``write``, ``writeStream`` with ``format("bookkeeper")``."""

from __future__ import annotations

from typing import Any

from bk_spark.needs import check

__all__ = ["BookKeeperDataSource"]

check()


def __getattr__(name: str) -> Any:
    if name == "BookKeeperDataSource":
        from bk_spark.source import BookKeeperDataSource

        return BookKeeperDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
