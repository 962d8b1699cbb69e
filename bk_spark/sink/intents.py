"""The owner of a data ledger, noted before the ledger exists: ``intents/<log>/<ledger id>`` in the metadata store
(bk_core/client/log/intents.py).

A ledger begins as the property of one query or write. When a task of another one goes on with it, it first says so in the intent, by
compare-and-set, so a failed write that cleans up behind itself and a query that shares its ledger can never both be right.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from bk_core.client.log.intents import Intent, change_intent, forget_intent
from bk_core.errors import BkError

SHARED = "*"
"""The owner of a ledger that several queries write to."""


def still_usable(client: Any, log: str, ledger_id: int, owner: str) -> bool:
    """Return True if ``owner`` may go on with a ledger that this process has open; if another owner began it, it is shared from then on.

    The result is False if a janitor, a deletion of the log or the end of a failed write claimed it.
    """
    return change_intent(
        client, log, ledger_id, lambda intent: None if intent.query_id in (owner, SHARED) else replace(intent, query_id=SHARED)
    )


def claim(client: Any, log: str, ledger_id: int, owner: str) -> bool:
    """Take a ledger away from its writer, if it never had another owner than ``owner``; any janitor may then delete it at once."""

    def mine(intent: Intent) -> Intent | None:
        if intent.query_id != owner:
            raise _NotOursError
        return None if intent.is_claimed else intent.claimed()

    try:
        return change_intent(client, log, ledger_id, mine, even_if_claimed=True)
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
            change_intent(client, log, ledger_id, Intent.claimed)


class _NotOursError(Exception):
    pass
