"""Spark's checkpoints in ledgers: ``writeStream.option("checkpointLocation", checkpoint_location(spark, "flights", uri=...))``."""

from __future__ import annotations

from bk_spark.checkpoint.location import checkpoint_location, close

__all__ = ["checkpoint_location", "close"]
