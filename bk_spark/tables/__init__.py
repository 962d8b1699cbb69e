"""The cluster and its logs as tables (``option("metadata", ...)``), from metadata alone; only ``entries`` asks for entries, one by one.

Nothing here fences: ``openLedgers=recover`` is refused. What is deleted while a table is read is left out of it.
"""
