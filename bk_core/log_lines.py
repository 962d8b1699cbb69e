"""The loggers of bk_core and bk_spark, and the variable that shows their lines: ``BOOKKEEPER_LOG_LEVEL``.

With ``BOOKKEEPER_LOG_FORMAT=json`` each of these lines is an object of JSON, with the facts of the line as its ``context``.
A program that configures logging needs neither: the names are below two roots, ``bk_core`` and ``bk_spark``. The variable is for processes
that nobody configures: Spark's workers and source runners, the driver of a notebook, the embedded bookie, ``bk``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TextIO

VARIABLE = "BOOKKEEPER_LOG_LEVEL"
FORMAT_VARIABLE = "BOOKKEEPER_LOG_FORMAT"
ROOTS = ("bk_core", "bk_spark")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
LOGGERS: Mapping[str, str] = MappingProxyType(
    {
        "bk_core.bookie": "the embedded bookie: its disk, garbage, what it refuses and repairs",
        "bk_core.client": "the client: bookies that come and go, quarantine, ensembles, writers, leaders",
        "bk_core.client.files": "file stores, and what owns them",
        "bk_core.client.log": "lists and history of logs, and what is cleaned up",
        "bk_core.exit_hook": "what fails while clients are closed at the end of the process",
        "bk_core.kernels": "the C kernels, where they cannot be loaded",
        "bk_core.metadata": "ZooKeeper: sessions, watches, racks; one name for each module below it",
        "bk_core.metadata.kazoo": "the records of kazoo itself: errors, and at DEBUG all but what requests and answers hold",
        "bk_core.metrics": "exporters of metrics, where they fail",
        "bk_core.net": "connections to bookies",
        "bk_core.threads": "threads of the client, and callbacks that fail",
        "bk_core.ui": "the live page: what fails while it is made",
        "bk_spark.checkpoint": "checkpoints in ledgers, and the gateway that serves them",
        "bk_spark.errors": "the whole of an error of which Spark shows one line",
        "bk_spark.read": "batch reads: plans, and ledgers that are missing",
        "bk_spark.sink": "writes: commits, aborts, what dead tasks have left",
        "bk_spark.stream": "streaming reads: a line for each trigger and log, with the lag",
    }
)
"""Each name that the packages log to, with what it tells."""
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _ToStandardError(logging.StreamHandler[TextIO]):
    """Writes to what standard error is then, and nothing in a program that has configured logging, which shows the lines itself."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr
            super().emit(record)


class JsonLines(logging.Formatter):
    """Makes an object of JSON of each record: ``ts`` in UTC, ``level``, ``logger``, ``msg``, ``context`` with the facts of the line, and
    ``exception`` where there is one. A program may give it to handlers of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        told = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "msg": record.getMessage(),
        }
        context = getattr(record, "context", None)
        if context:
            told["context"] = context
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


def _formatter(environment: Mapping[str, str] = os.environ) -> logging.Formatter:
    wanted = environment.get(FORMAT_VARIABLE, "").strip().lower()
    return JsonLines() if wanted == "json" else logging.Formatter(_FORMAT)


def show(level: str) -> list[logging.Handler]:
    """Send lines from ``level`` on to standard error, unless the program has handlers of its own; return the handlers that are new."""
    made: list[logging.Handler] = []
    for name in ROOTS:
        logger = logging.getLogger(name)
        logger.setLevel(level)
        if not any(isinstance(handler, _ToStandardError) for handler in logger.handlers):
            handler = _ToStandardError()
            handler.setFormatter(_formatter())
            logger.addHandler(handler)
            made.append(handler)
    return made


def show_as_told(environment: Mapping[str, str] = os.environ) -> None:
    """Show lines as the variable says, from its level on; without it nothing is changed. A level or a format that does not exist is a
    warning."""
    level = environment.get(VARIABLE, "").strip().upper()
    if level in LEVELS:
        show(level)
    elif level:
        logging.getLogger("bk_core").warning("%s is %r, which is no level; there are %s", VARIABLE, level, ", ".join(LEVELS))
    wanted = environment.get(FORMAT_VARIABLE, "").strip().lower()
    if wanted not in ("", "json", "text"):
        logging.getLogger("bk_core").warning("%s is %r, which is no format; there are json and text", FORMAT_VARIABLE, wanted)


@contextmanager
def shown(level: str | None) -> Iterator[None]:
    """Show lines from ``level`` on meanwhile; with None everything stays as it is."""
    if level is None:
        yield
        return
    before = {name: logging.getLogger(name).level for name in ROOTS}
    made = show(level)
    try:
        yield
    finally:
        for name in ROOTS:
            logger = logging.getLogger(name)
            logger.setLevel(before[name])
            for handler in made:
                logger.removeHandler(handler)
