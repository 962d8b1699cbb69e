"""The secrets that open the gateway: random texts, compared in constant time and shown nowhere."""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Iterable
from typing import Any, NoReturn

PY4J_LOGGERS = ("py4j.clientserver", "py4j.java_gateway")


class Secret:
    """256 random bits as text. Its ``repr`` tells nothing, and it does not pickle."""

    __slots__ = ("_text",)

    def __init__(self) -> None:
        self._text = secrets.token_urlsafe(32)

    def reveal(self) -> str:
        """The text itself: for Hadoop's configuration, and for answers to those who have shown the other secret."""
        return self._text

    def matches(self, given: str) -> bool:
        """True if ``given`` is the secret; takes as long for one guess as for another."""
        return hmac.compare_digest(self._text.encode(), given.encode("utf-8", "surrogatepass"))

    def __repr__(self) -> str:
        return "<secret>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret of the checkpoint gateway stays in its process")


class _Silence(logging.Filter):
    """Drops the log records that would show a secret: at level DEBUG py4j logs every command that it sends, arguments included."""

    def __init__(self, kept: Iterable[Secret]) -> None:
        super().__init__()
        self._kept = tuple(kept)

    def filter(self, record: logging.LogRecord) -> bool:
        said = f"{record.msg!r} {record.args!r}"
        return not any(secret.reveal() in said for secret in self._kept)


def keep_out_of_logs(kept: Iterable[Secret]) -> list[tuple[logging.Logger, Any]]:
    """Have py4j's loggers drop what shows one of these secrets. Returns what ``let_go`` takes back."""
    silence = _Silence(kept)
    loggers = [logging.getLogger(name) for name in PY4J_LOGGERS]
    for logger in loggers:
        logger.addFilter(silence)
    return [(logger, silence) for logger in loggers]


def let_go(silenced: Iterable[tuple[logging.Logger, Any]]) -> None:
    """Take the filters away: the gateway has ended, and its secrets open nothing any more."""
    for logger, silence in silenced:
        logger.removeFilter(silence)
