"""Tells which of the proposed commands need the password of a log or ledger. A list keeps none, so the metadata of ledgers tells it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from bk_core.errors import BkError

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

OPTION = " --password-file FILE"
"""The option of a command about what has a password. Who looks at a cluster does not know which file has it."""
ADVICE = "; FILE has its password"
_ASKED_MAX = 20


def password_option(client: BookKeeper, ledgers: Iterable[int]) -> tuple[str, str]:
    """Return the option that a command about these ledgers needs, and what the advice says of it; "" for both if none of the first 20 is
    known to have a password."""
    for ledger_id in islice(ledgers, _ASKED_MAX):
        try:
            if client.ledger_metadata(ledger_id).has_password:
                return OPTION, ADVICE
        except BkError:  # deleted, or not to be understood, which other findings are about
            continue
    return "", ""
