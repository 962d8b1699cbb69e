"""Tells what the process of a bookie counts: by a line of its log now and then, and on a page for Prometheus on the loopback."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bk_core.bookie.embedded import EmbeddedBookie
from bk_core.errors import InvalidArgumentError, MissingPackageError
from bk_core.metrics.snapshot import Metrics

log = logging.getLogger("bk_core.bookie")


def check_page(port: int | None) -> None:
    """Raise MissingPackageError if a page is wanted and Prometheus's library is not there, before anything is begun."""
    if port is not None:
        try:
            import bk_core.metrics.prometheus  # noqa: F401
        except ImportError:
            raise MissingPackageError(
                'a page for Prometheus needs prometheus_client: pip install "bk-spark[prometheus]", or leave --metrics-port out'
            ) from None


@contextmanager
def page_of(bookie: EmbeddedBookie, port: int | None) -> Iterator[None]:
    """Serve a page for Prometheus meanwhile, on the loopback at ``port`` (0: any free one); with None do nothing. The log tells where.

    Raises InvalidArgumentError if the port cannot be had.
    """
    if port is None:
        yield
        return
    from bk_core.metrics.prometheus import serve

    try:
        page = serve(bookie, port=port, label="bookie")
    except OSError as error:
        raise InvalidArgumentError(f"metrics of bookie {bookie.bookie_id} cannot be served on port {port}: {error}") from error
    with page:
        log.info("BK-BOOKIE-METRICS-PAGE %s", page.url)
        yield


class MetricsLine:
    """Writes what was counted since the last line, as one line of JSON, every ``interval_s`` seconds; never with 0."""

    def __init__(self, read: Callable[[], Metrics], interval_s: float) -> None:
        self._read = read
        self._interval_s = interval_s
        self._last = read()
        self._due_s = time.monotonic() + interval_s

    def look(self) -> None:
        """Write a line if it is time."""
        now = time.monotonic()
        if not self._interval_s or now < self._due_s:
            return
        self._due_s = now + self._interval_s
        metrics, before = self._read(), self._last
        self._last = metrics
        told = (metrics - before).to_dict()
        log.info("BK-BOOKIE-METRICS %s", json.dumps(told, separators=(",", ":")), extra={"context": told["metrics"]})
