"""Tells a shortage of bookies in the words of the log whose next ledger needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bk_core.client.creation import Creation
from bk_core.errors import NotEnoughBookiesError
from bk_core.protocol.ledger.placement import LOWER
from bk_core.protocol.log.names import store_of

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper
    from bk_core.protocol.log.segments import LogProperties


def of_log(error: NotEnoughBookiesError, log: str, how: str = "") -> NotEnoughBookiesError:
    """Return the same error with the name of the log.

    ``how`` is what changes the ensemble size of its ledgers, by default what changes that of a log that exists.
    """
    text = str(error.args[0])
    if text.endswith(LOWER) and store_of(log) is None:
        text += how or f" of log {log!r}: log.set(ensemble_size=...) or `bk log set {log} --ensemble-size N`"
    return error.retold(f"log {log!r}: {text}")


def check_bookies(client: BookKeeper, log: str, properties: LogProperties, how: str = "") -> None:
    """Raise NotEnoughBookiesError for a log whose ledgers need more bookies than this cluster has, those that are away included.

    Nothing is asked while there are enough. ``how`` is that of ``of_log``.
    """
    try:
        Creation(client._session, client.store).check_known(properties.ensemble_size, properties.write_quorum_size)
    except NotEnoughBookiesError as error:
        raise of_log(error, log, how) from None
