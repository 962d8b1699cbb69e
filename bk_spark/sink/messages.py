"""The messages of write tasks to the commit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from bk_core.protocol.log.ledger_list import SegmentRange


@dataclass(frozen=True, slots=True)
class LogPart:
    """The ranges that one task wrote to one log. ``log_id`` is "" if the log did not exist when the write was planned, and ``base`` is the
    schema that it had then; ``closed`` ledgers are done."""

    log: str
    log_id: str
    schema: str
    ranges: tuple[SegmentRange, ...]
    closed: tuple[int, ...] = ()
    base: str = ""

    @property
    def rows(self) -> int:
        return sum(r.rows for r in self.ranges)

    @property
    def bytes(self) -> int:
        return sum(r.bytes for r in self.ranges)


@dataclass(frozen=True)
class CommitMessage(WriterCommitMessage):
    """The message of a task. Every task sends one, with rows or without, because only tasks know the query id (spark-connectors.md 5.3)."""

    query_id: str
    partition: int
    attempt: int
    parts: tuple[LogPart, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


def ours(messages: Iterable[Any]) -> list[CommitMessage]:
    """Return our messages in the order of their partitions, which is the order of the rows in the log. Failed tasks left None."""
    return sorted((m for m in messages if isinstance(m, CommitMessage)), key=lambda m: (m.partition, m.attempt))


def parts_by_log(messages: Iterable[CommitMessage]) -> dict[str, list[LogPart]]:
    """Return the logs by name, with the parts of each in the order of ``messages``."""
    parts: dict[str, list[LogPart]] = {}
    for message in messages:
        for part in message.parts:
            parts.setdefault(part.log, []).append(part)
    return {log: parts[log] for log in sorted(parts)}


def query_id_of(messages: Iterable[CommitMessage]) -> str:
    return next((m.query_id for m in messages if m.query_id), "")
