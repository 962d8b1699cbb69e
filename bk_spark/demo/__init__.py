"""The demo: 336,776 flights through a log on a small cluster, while a bookie and the whole driver are killed.

``python -m bk_spark.demo`` ends with 0 only if every row and every column came back exactly once.
"""
