"""Reads the checkpoint of a Spark query: its batches, and how far the query has read."""
