"""Appends for which no thread waits. An append for which there is no room stands in line, and the thread that makes room hands it in."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol


class Ticket(Protocol):
    """Released once its owner was let in or sent away."""

    def release(self) -> object: ...


class Entering(Protocol):
    """One append."""

    @property
    def future(self) -> Future[Any]:
        """The outcome of the append, or the error that kept it out."""

    @property
    def admitted(self) -> bool:
        """True once all of it is handed in."""

    def leave(self) -> bool:
        """Wait for room no longer. Return True if it is too late for that: the append, or a part of it, was handed in and takes effect."""

    def why_waiting(self) -> str:
        """Return what the append waits for, for the text of an error."""


Told = Callable[[], None]
"""A function that is called once an append that stood in line is handed in. Any thread may call it, also one that holds a lock: it only
passes the news on."""
