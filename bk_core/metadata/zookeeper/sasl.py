"""Checks for the package by which kazoo speaks SASL. It is an extra, because few programs need it."""

from __future__ import annotations

import sys

from bk_core.errors import MissingPackageError


def check_sasl() -> None:
    """Raise MissingPackageError without pure-sasl."""
    try:
        import puresasl  # noqa: F401 - kazoo imports it
    except ImportError:
        text = (
            f"SASL to ZooKeeper needs pure-sasl, there is none ({sys.executable}): pip install 'bk-spark[sasl]', or pip install pure-sasl"
        )
        raise MissingPackageError(text, package="pure-sasl") from None
