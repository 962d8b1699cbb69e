"""The writers of live segments, each of which names itself in the custom metadata of its ledger (FORMAT.md), and if they still live."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bk_core.client.log.intents import Intent, abandoned, intent_here, lives_here
from bk_core.client.log.list_store import LogClient
from bk_core.display.moments import moment, told_utc
from bk_core.errors import MetadataFormatError, NoSuchLedgerError
from bk_core.protocol.log.identity import LOG_ID_KEY
from bk_core.protocol.log.stored_json import loads

WRITER = "writer"
"""The key of the custom metadata."""

ALIVE, GONE, UNKNOWN = "alive", "gone", "unknown"
_RANK = (GONE, UNKNOWN, ALIVE)
_LEFT_MAX = 4096
_left: dict[tuple[int, bytes, bytes], None] = {}  # ledgers that writers of this process have left open and write no more


@dataclass(frozen=True, slots=True)
class LiveWriter:
    """The process that writes a log, or has open a file store, and has not closed it. ``state``: "alive" if it is seen running on this
    host, "gone" if it is certainly not running any more, or is this very program, whose writer was dropped or abandoned, "unknown" for a
    process of another host, or if its ledger does not tell. A ledger that does not tell leaves ``host`` empty, and ``pid`` and ``since_ms``
    0. ``is_own``: it is this very program."""

    host: str
    pid: int
    since_ms: int
    state: str
    is_own: bool = False

    @property
    def since(self) -> datetime | None:
        """The time since when it writes; None if its ledger does not tell."""
        return moment(self.since_ms) if self.host else None

    @property
    def told(self) -> str:
        """The process in words."""
        if not self.host:
            return "a process that is not named"
        who = "this program, " if self.is_own else ""
        return f"{who}process {self.pid} on host {self.host}, since {told_utc(self.since_ms)} UTC"

    def ending(self, owner: str = "writer") -> str:
        """Return the way to end it without force, for a message: a program that is told to stop its own process is helped by nothing."""
        return f"close that {owner} of this program" if self.is_own else "stop that process"


def writer_tag(since_ms: int) -> bytes:
    """Return the value for this process, whose writer exists since then."""
    here = intent_here(0, "")
    value = {"host": here.host, "pid": here.pid, "sinceMs": since_ms, "started": here.started, "boot": here.boot}
    return json.dumps(value, separators=(",", ":")).encode()


def writer_of(client: LogClient, ledger_id: int) -> Intent | None:
    """Return the writer of an exclusive writer's ledger; ``created_ms`` is since when. None if the ledger does not tell or is gone.
    Raises what looking at metadata raises otherwise: where the metadata store does not answer, nobody knows what the ledger tells."""
    return _named(_custom(client, ledger_id), ledger_id)


def _custom(client: LogClient, ledger_id: int) -> Mapping[str, bytes]:
    try:
        return getattr(client.ledger_metadata(ledger_id), "custom", {})
    except (NoSuchLedgerError, MetadataFormatError):
        return {}


def _named(custom: Mapping[str, bytes], ledger_id: int) -> Intent | None:
    try:
        return process_of(loads(custom[WRITER]), ledger_id)
    except (KeyError, TypeError, ValueError):
        return None


def process_of(value: Any, ledger_id: int = 0) -> Intent | None:
    """Return the process that wrote this ``writer_tag``, which was read from JSON; None for a value that is none."""
    try:
        worker = (str(value["host"]), int(value["pid"]), int(value["sinceMs"]))
        return Intent(ledger_id, "", *worker, int(value.get("started", 0)), str(value.get("boot", "")))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def host_of(custom: Mapping[str, bytes]) -> str:
    """Return the host that a ledger of a log names as its writer's; "" if it names none."""
    stored = custom.get(WRITER)
    try:
        return "" if stored is None else str(json.loads(stored)["host"])
    except (KeyError, TypeError, ValueError):
        return ""


def live_writers(client: LogClient, ledger_ids: Collection[int]) -> dict[int, LiveWriter]:
    """Return the verdict on the writer of each of these live ledgers (GRD-4). Raises what ``writer_of`` does."""
    return {ledger_id: _judged(_custom(client, ledger_id), ledger_id) for ledger_id in ledger_ids}


def _judged(custom: Mapping[str, bytes], ledger_id: int) -> LiveWriter:
    writer = _named(custom, ledger_id)
    if writer is None:
        return LiveWriter("", 0, 0, UNKNOWN)
    alive = lives_here(writer)
    own = alive and writer.pid == os.getpid()
    left = own and (ledger_id, bytes(custom[WRITER]), bytes(custom.get(LOG_ID_KEY, b""))) in _left
    state = GONE if left or abandoned(writer) else ALIVE if alive else UNKNOWN
    return LiveWriter(writer.host, writer.pid, writer.created_ms, state, own)


def note_left(ledger_id: int, tag: bytes, log_id: str) -> None:
    """Note that a writer of this process has left a ledger open and writes nothing to it any more, because it was dropped, abandoned, or
    ended by an error: nobody else can tell. ``tag`` is the writer's."""
    while len(_left) >= _LEFT_MAX:
        _left.pop(next(iter(_left)), None)
    _left[ledger_id, tag, log_id.encode()] = None


def foremost(writers: Mapping[int, LiveWriter]) -> LiveWriter | None:
    """Return the one of the verdicts that stands for all: a writer that lives comes before one that may live, and both come before one
    that is gone; of equals the newest that its ledger names. None if there is no live ledger."""
    found = max(
        writers, key=lambda ledger_id: (_RANK.index(writers[ledger_id].state), bool(writers[ledger_id].host), ledger_id), default=None
    )
    return None if found is None else writers[found]


def writer_told(client: LogClient, ledger_ids: Collection[int]) -> str:
    """Return a text for a message, about the writer of these live ledgers, of which there is at least one."""
    writer = foremost(live_writers(client, ledger_ids))
    assert writer is not None
    return writer.told
