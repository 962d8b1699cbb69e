"""The writer of a live segment, which the exclusive writer that made its ledger names in the ledger's custom metadata (FORMAT.md)."""

from __future__ import annotations

import json
from collections.abc import Collection

from bk_core.client.log.intents import Intent, intent_here
from bk_core.client.log.list_store import LogClient
from bk_core.client.moments import told_utc
from bk_core.errors import BkError
from bk_core.protocol.log.stored_json import loads

WRITER = "writer"
"""The key of the custom metadata."""


def writer_tag(since_ms: int) -> bytes:
    """Return the value for this process, whose writer exists since then."""
    here = intent_here(0, "")
    value = {"host": here.host, "pid": here.pid, "sinceMs": since_ms, "started": here.started, "boot": here.boot}
    return json.dumps(value, separators=(",", ":")).encode()


def writer_of(client: LogClient, ledger_id: int) -> Intent | None:
    """Return the writer of an exclusive writer's ledger; ``created_ms`` is since when. None if the ledger does not tell or is gone."""
    try:
        custom = getattr(client.ledger_metadata(ledger_id), "custom", {})
        value = loads(custom[WRITER])
        worker = (str(value["host"]), int(value["pid"]), int(value["sinceMs"]))
        return Intent(ledger_id, "", *worker, int(value.get("started", 0)), str(value.get("boot", "")))
    except (BkError, KeyError, TypeError, ValueError):
        return None


def writer_told(client: LogClient, ledger_ids: Collection[int]) -> str:
    """Return a text for a message, about the newest of these ledgers that tells its writer."""
    for ledger_id in sorted(ledger_ids, reverse=True):
        writer = writer_of(client, ledger_id)
        if writer is not None:
            since = told_utc(writer.created_ms)
            return f"host {writer.host}, process {writer.pid}, since {since} UTC"
    return "it does not say who it is"
