"""The log records of the ZooKeeper client itself. By default there are none, because the store reports the same events (SES-8).

While there is no server kazoo warns at every attempt, about once a second for as long as the process lives.
"""

from __future__ import annotations

import logging

NAME = "bk_core.metadata.kazoo"


class _OnlyForDebugging(logging.Filter):
    """Lets errors pass, and everything of level DEBUG if this logger was set to it; but not what requests and answers hold.

    Metadata of ledgers hold their passwords, requests for authentication hold this client's, and records below DEBUG hold the password of
    the session.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.DEBUG:
            return False
        if isinstance(record.args, tuple) and str(record.msg).startswith(("Sending request", "Received response")):
            record.args = tuple(map(_named, record.args))
        return record.levelno >= logging.ERROR or logging.getLogger(NAME).getEffectiveLevel() <= logging.DEBUG


def _named(value: object) -> object:
    """Return what may be shown of a request or an answer: its kind and its path."""
    return value if isinstance(value, int) else f"{type(value).__name__} {getattr(value, 'path', '')}".rstrip()


_FILTER = _OnlyForDebugging()


def quiet_logger() -> logging.Logger:
    """The logger of this package's own ZooKeeper clients; kazoo's ``kazoo.client`` stays as the program set it."""
    logger = logging.getLogger(NAME)
    logger.addFilter(_FILTER)  # a filter that is there already is not added again
    return logger
