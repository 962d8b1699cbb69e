"""A log has one password. This finds the listed ledgers that tell it, and refuses a writer whose own does not fit. Pure.

A list keeps no password, so the metadata of its ledgers tells it, for lists of earlier programs too. Where two writers with different
passwords wrote a log before this check existed, either of them may go on: the log is damaged already, and nobody is to be locked out.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from bk_core.errors import WrongPasswordError
from bk_core.protocol.log.ledger_list import LedgerList

ASKED_MAX = 4
TOLD_MAX = 2


def witnesses(listed: LedgerList) -> tuple[int, ...]:
    """Return the ledgers to ask, in this order: the oldest and the newest one of the tail, then some others in case those are gone."""
    ids = list(dict.fromkeys(segment.ledger_id for segment in listed.segments))
    return tuple(dict.fromkeys([*ids[:1], *ids[-1:], *ids]))[:ASKED_MAX]


def is_same(stored: bytes, given: bytes) -> bool:
    return hmac.compare_digest(stored, given)


def check_told(name: str, told: Sequence[tuple[int, bytes]], given: bytes) -> None:
    """Raise WrongPasswordError unless one of the ledgers that told their password, (id, password) each, has the one ``given`` (GRD-6)."""
    if not told or any(is_same(stored, given) for _, stored in told):
        return
    ledger_id, stored = told[0]
    was = f"with a password (ledger {ledger_id} has it), and " + ("another one" if given else "none") + " was given"
    if not stored:
        was = f"without a password (so is ledger {ledger_id}), and one was given"
    raise WrongPasswordError(
        f"log {name!r} is written {was}. Nobody could read all of a log with two; give the log's own "
        f"({WrongPasswordError.given_by}), or write another log",
        log=name,
        ledger=ledger_id,
    )
