"""Rows and Arrow batches to entries and back. No pyspark."""
