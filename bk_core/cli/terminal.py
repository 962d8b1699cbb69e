"""The command line shows nothing but text to a terminal: no control character, no escape sequence, nothing that turns the direction of a
line.

Metadata, names, ids and messages come from other processes and from servers. ``safe_streams`` stands between everything that is printed,
errors, questions and log lines as well, and the streams; ``bk_core.display.words.safe`` is the one function that decides.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast
from unicodedata import category

import click

from bk_core.display.words import UNSAFE, safe
from bk_core.errors import BkError


def safe_json(value: Any) -> str:
    """Return one line of JSON in which all of these are spelled as JSON does. Without Unicode on standard output it is ASCII alone."""
    text = json.dumps(value, ensure_ascii=_encoding(sys.stdout) not in ("utf-8", "utf8"))
    return text if text.isprintable() else "".join(one if category(one) not in UNSAFE else json.dumps(one)[1:-1] for one in text)


def _encoding(stream: Any) -> str:
    return (getattr(stream, "encoding", None) or "ascii").lower()


class SafeStream:
    """A text stream that writes what is safe. ``inner`` takes what is meant for the terminal, such as colours of Rich's."""

    encoding = "utf-8"  # so that nobody wraps the bytes below it: what the inner one cannot write is spelled out here

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner

    def write(self, text: str) -> int:
        inner = _encoding(self.inner)
        shown = safe(text)
        self.inner.write(shown if inner in ("utf-8", "utf8") else shown.encode(inner, "backslashreplace").decode(inner))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def inner(stream: Any) -> TextIO:
    """Return the stream below a SafeStream, for Rich, whose texts were made safe before."""
    return cast(TextIO, stream.inner if isinstance(stream, SafeStream) else stream)


@contextmanager
def safe_streams() -> Iterator[None]:
    """Have standard output and standard error take only what is safe meanwhile. Bytes (``--raw``) pass as they are: they are the
    payload."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast(TextIO, SafeStream(inner(sys.stdout))), cast(TextIO, SafeStream(inner(sys.stderr)))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _Told(logging.Handler):
    """Writes lines to standard error as sentences of the command."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"{record.getMessage()} ...", err=True)


class _HeldBack(logging.Filter):
    """Keeps the lines that tell an error by its code; others pass."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[logging.LogRecord] = []

    def filter(self, record: logging.LogRecord) -> bool:
        is_error = record.getMessage().startswith("[BK-")
        if is_error:
            self.lines.append(record)
        return not is_error


@contextmanager
def errors_once() -> Iterator[None]:
    """Keep the log of a client from telling an error which this block raises, and which is printed then. Other errors are told at the end
    of the block."""
    log, held = logging.getLogger("bk_core.client"), _HeldBack()
    said = ""
    log.addFilter(held)
    try:
        yield
    except BkError as error:
        said = str(error)
        raise
    finally:
        log.removeFilter(held)
        for record in held.lines:
            if record.getMessage() not in said:
                log.handle(record)


@contextmanager
def telling_of_waits() -> Iterator[None]:
    """Say at a terminal when a command waits for the metadata service. Elsewhere `bk --verbose` does."""
    if not sys.stderr.isatty():
        yield
        return
    waits, told = logging.getLogger("bk_core.metadata.waits"), _Told()
    before = waits.level, waits.propagate
    waits.addHandler(told)
    waits.setLevel(logging.INFO)
    waits.propagate = False  # else `bk --verbose` would say it twice
    try:
        yield
    finally:
        waits.removeHandler(told)
        waits.setLevel(before[0])
        waits.propagate = before[1]
