"""Tells a shortage of bookies in the words of the log whose next ledger needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bk_core.client.creation import Creation
from bk_core.errors import NotEnoughBookiesError
from bk_core.protocol.log.names import store_of

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper
    from bk_core.protocol.log.segments import LogProperties


def of_log(error: NotEnoughBookiesError, log: str, how: str = "") -> NotEnoughBookiesError:
    """Return the same error with the name of the log, and with what changes the ensemble size of its ledgers.

    ``how`` is what changes it, by default the ways to change a log that exists. A file store's log cannot be changed.
    """
    how = how or f"log.set(ensemble_size=...) or `bk log set {log} --ensemble-size N`"
    changes = f". The ensemble size of this log is changed by {how}" if store_of(log) is None else ""
    return error.retold(f"log {log!r}: {error.args[0]}{changes}")


def check_bookies(client: BookKeeper, log: str, properties: LogProperties, how: str = "") -> None:
    """Raise NotEnoughBookiesError for a log whose ledgers need more bookies than this cluster has, those that are away included.

    Nothing is asked while there are enough. ``how`` is that of ``of_log``.
    """
    try:
        Creation(client._session, client.store).check_known(properties.ensemble_size, properties.write_quorum_size)
    except NotEnoughBookiesError as error:
        raise of_log(error, log, how) from None
