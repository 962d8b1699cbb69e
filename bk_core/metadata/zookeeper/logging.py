"""The log records of the ZooKeeper client itself. By default there are none, because the store reports the same events (SES-8).

While there is no server kazoo warns at every attempt, about once a second for as long as the process lives.
"""

from __future__ import annotations

import logging

NAME = "bk_core.metadata.kazoo"


class _OnlyForDebugging(logging.Filter):
    """Lets errors pass, and everything if this logger was set to DEBUG."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or logging.getLogger(NAME).getEffectiveLevel() <= logging.DEBUG


_FILTER = _OnlyForDebugging()


def quiet_logger() -> logging.Logger:
    """The logger of this package's own ZooKeeper clients; kazoo's ``kazoo.client`` stays as the program set it."""
    logger = logging.getLogger(NAME)
    logger.addFilter(_FILTER)  # a filter that is there already is not added again
    return logger
