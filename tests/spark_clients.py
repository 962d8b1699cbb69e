"""The clients that the Spark source and sink keep for their process, which in Spark ends with its workers."""

from __future__ import annotations

from bk_spark import clients


def close_clients() -> None:
    while clients._clients:
        clients._clients.popitem()[1].close()
    while clients._readers:
        clients._readers.popitem()[1][2].close()
