"""The log of our client in a run, and the search for secrets in all logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def client_log(path: Path) -> Iterator[None]:
    """Write all that our client tells into a file: of each refusal, too."""
    told = logging.getLogger("bk_core")
    level, propagates = told.level, told.propagate
    handler = logging.FileHandler(path)
    told.addHandler(handler)
    told.setLevel(logging.DEBUG)
    told.propagate = False
    try:
        yield
    finally:
        told.removeHandler(handler)
        handler.close()
        told.setLevel(level)
        told.propagate = propagates


def shown_secrets(directory: Path, secrets: Sequence[str]) -> list[str]:
    """Return the logs below a folder that a secret stands in, each with the number of the secret, which itself is not shown."""
    found = []
    for path in sorted(directory.rglob("*.log")):
        text = path.read_bytes()
        found += [f"secret {at} in {path.relative_to(directory)}" for at, secret in enumerate(secrets) if secret.encode() in text]
    return found
