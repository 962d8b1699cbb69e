"""The janitor's rounds, which the committing process makes: bounded, seldom, and never in the way of a commit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from bk_core.client.identity import NOBODY_ADOPTED, delete_own
from bk_core.client.log.history import history_of, update_ledger_list
from bk_core.client.log.intents import forget_intent
from bk_core.client.log.janitor import gc_quietly
from bk_core.errors import ForeignLedgerError, NoSuchLogError
from bk_core.protocol.log.ledger_list import LedgerList
from bk_spark.options.table import Options

PAUSE_S = 60.0
_last: dict[tuple[int, str, str], float] = {}


def sweep(client: Any, options: Options, log: str, owner: str) -> None:
    """Make a round at most once a minute per process and log. Unlisted ledgers of dead workers of ``owner``, who has just committed, are
    garbage."""
    key, now = (os.getpid(), options.uri, log), time.monotonic()
    if now - _last.get(key, -PAUSE_S) >= PAUSE_S:
        _last[key] = now
        gc_quietly(client, log, password=options.secret, query_id=owner)


def delete_unlisted(
    client: Any, log: str, claimed: Sequence[int], password: bytes, keep: Callable[[LedgerList], bool] = lambda _: False
) -> Sequence[int]:
    """Delete those of the ``claimed`` ledgers that the log does not list, and return them. They are condemned in the list first: no commit
    of theirs, however late, can come through then. ``keep`` tells of a list that all of them stay."""
    if not claimed:
        return ()

    def condemn(current: LedgerList) -> LedgerList:
        return current if keep(current) else current.condemn(claimed, history_of(client, log, current.log_id))

    try:
        condemned = set(update_ledger_list(client, log, condemn).condemned)
    except NoSuchLogError:  # there is no list, so nothing lists them
        condemned = set(claimed)
    doomed = [ledger_id for ledger_id in claimed if ledger_id in condemned]
    delete_condemned(client, log, doomed, password)
    return doomed


def delete_condemned(client: Any, log: str, ledger_ids: Sequence[int], password: bytes, adopted: Collection[int] = NOBODY_ADOPTED) -> None:
    """Close, delete and forget ledgers that are condemned in the list, then take them off it. ``adopted`` is as the list has it
    (OWN-11)."""
    for ledger_id in ledger_ids:
        with suppress(ForeignLedgerError):  # it is not of this log, so there is nothing to delete (OWN-6)
            # LOG-12: its writer is fenced, because bookies would go on taking entries
            delete_own(client, log, "", ledger_id, password, adopted)
        forget_intent(client, log, ledger_id)
    if ledger_ids:
        with suppress(NoSuchLogError):
            update_ledger_list(client, log, lambda current: current.absolve(ledger_ids))
