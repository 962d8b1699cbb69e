"""Reads: batch and streaming, from the plan to the columns."""
