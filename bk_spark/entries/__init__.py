"""Rows and Arrow batches to entries and back. No pyspark in it but for its types."""
