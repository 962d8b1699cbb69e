"""The base of a log's machines."""

from __future__ import annotations

from bk_core.protocol.log.effects import LogEffect, LogEvent
from bk_core.protocol.requests import RequestMachine


class LogMachine(RequestMachine[LogEffect, LogEvent]):
    """A machine whose requests are those of a log."""
