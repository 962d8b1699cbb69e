"""The owner of a data ledger, noted before the ledger exists: ``intents/<log>/<ledger id>`` in the metadata store
(bk_core/client/log/intents.py).

A ledger begins as the property of one query or write. When a task of another one goes on with it, it first says so in the intent, by
compare-and-set, so a failed write that cleans up behind itself and a query that shares its ledger can never both be right.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from bk_core.client.log.intents import forget_intent, intent_path
from bk_core.client.log.list_store import UPDATE_TIMEOUT_S
from bk_core.client.repeating import until_definite
from bk_core.errors import BkError, MetadataFormatError, NoNodeError, VersionConflictError
from bk_core.protocol.log.stored_json import loads

SHARED = "*"
"""The owner of a ledger that several queries write to."""


def still_usable(client: Any, log: str, ledger_id: int, owner: str) -> bool:
    """Return True if ``owner`` may go on with a ledger that this process has open; if another owner began it, it is shared from then on.

    The result is False if a janitor, a deletion of the log or the end of a failed write claimed it.
    """
    return _change(client, log, ledger_id, lambda value: None if value["query"] in (owner, SHARED) else {**value, "query": SHARED})


def claim(client: Any, log: str, ledger_id: int, owner: str) -> bool:
    """Take a ledger away from its writer, if it never had another owner than ``owner``; any janitor may then delete it at once."""

    def mine(value: dict[str, Any]) -> dict[str, Any] | None:
        if value["query"] != owner:
            raise _NotOursError
        return {**value, "createdMs": 0} if value["createdMs"] else None

    try:
        return _change(client, log, ledger_id, mine, claimed=True)
    except _NotOursError:
        return False


def withdraw(client: Any, log: str, handle: Any) -> None:
    """Delete a ledger that no message and no commit will ever name. Never raises: at a failure the janitor does it in its next round."""
    ledger_id = int(handle.ledger_id)
    try:
        handle.close(forced=True)
        client.delete_ledger(ledger_id, even_if_listed=True)
        forget_intent(client, log, ledger_id)
    except BkError:
        with suppress(BkError):
            _change(client, log, ledger_id, lambda value: {**value, "createdMs": 0})


class _NotOursError(Exception):
    pass


def _change(
    client: Any, log: str, ledger_id: int, change: Callable[[dict[str, Any]], dict[str, Any] | None], *, claimed: bool = False
) -> bool:
    """Make one compare-and-set. Return False if the intent is gone, is claimed (unless that is ``claimed``), or another process
    was faster."""
    path = intent_path(log, ledger_id)
    try:
        stored = _definite(lambda: client.store.read(path))
        try:
            value = loads(stored.data)
            if not value["createdMs"] and not claimed:
                return False
            changed = change(value)
        except (ValueError, KeyError, TypeError) as error:
            raise MetadataFormatError(f"{path} in the metadata store is no intent to write a ledger: {error}") from None
        if changed is not None:
            data = json.dumps(changed).encode()
            _definite(lambda: client.store.write(path, data, stored.version))
    except (NoNodeError, VersionConflictError):
        return False
    return True


def _definite(request: Callable[[], Any]) -> Any:
    return until_definite(request, time.monotonic() + UPDATE_TIMEOUT_S)
