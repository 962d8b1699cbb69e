"""Checks the ledgers of a read when it is planned, before any task begins: they exist, and the password fits. Pure, but for a warning."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from bk_core.errors import LogDataLossError, WrongPasswordError
from bk_core.protocol.log.password import is_same
from bk_spark.entries.ranges import EntryRange
from bk_spark.options.table import Options
from bk_spark.source.known import Known, facts_of

_log = logging.getLogger("bk_spark.read")
REST = "failOnDataLoss=false reads the rest"


def check_password(known: Known, options: Options, ranges: Iterable[EntryRange]) -> None:
    """Raise WrongPasswordError unless ``password`` is that of every ledger of ``ranges`` whose metadata stores one (OP-1)."""
    for ledger_id, log in {r.ledger_id: r.log for r in ranges}.items():
        stored = known.ledgers.get(ledger_id)
        wanted = None if stored is None else facts_of(stored).password
        if wanted is not None and not is_same(wanted, options.secret):
            raise WrongPasswordError(_wrong_password(ledger_id, log, bool(wanted), bool(options.secret)), ledger=ledger_id)


def _wrong_password(ledger_id: int, log: str | None, has_one: bool, given: bool) -> str:
    """Return the message. The passwords themselves are not passed in here."""
    which = f"ledger {ledger_id}" if log is None else f"log {log!r}"
    if has_one and given:
        which = which if log is None else f"{which} (ledger {ledger_id})"
        return f"the password given is not the one that {which} is written with"
    told = "" if log is None else f" (ledger {ledger_id} has {'it' if has_one else 'none'})"
    if has_one:
        line = '.option("password", "...") or .option("passwordFile", "..."), on a table WITH (password = \'...\')'
        return f"{which} is written with a password{told}, and none was given: {line}"
    return f"{which} is written without a password{told}, and one was given: leave the option out"


def still_there(known: Known, options: Options, ranges: Sequence[EntryRange]) -> list[EntryRange]:
    """Return the ranges whose ledger exists. Raises LogDataLossError if one does not, or with ``failOnDataLoss=false`` warns of each
    (LOG-13)."""
    gone = dict.fromkeys(r.ledger_id for r in ranges if r.ledger_id not in known.ledgers)
    for ledger_id in gone:
        error = _lost([r for r in ranges if r.ledger_id == ledger_id])
        if options.fail_on_data_loss:
            raise error
        _log.warning("%s", error, extra={"context": {"ledger": str(ledger_id)}})
    return [r for r in ranges if r.ledger_id not in gone]


def _lost(ranges: Sequence[EntryRange]) -> LogDataLossError:
    """Return the error for ``ranges``, which are all of one ledger."""
    ledger_id, log = ranges[0].ledger_id, ranges[0].log
    first, last = min(r.first for r in ranges), max(r.last for r in ranges)
    if log is None:
        message = f"ledger {ledger_id} does not exist any more: its entries {first}..{last} are lost. {REST}"
        return LogDataLossError(message, ledger=ledger_id)
    message = f"log {log!r} lists ledger {ledger_id}, which does not exist: its entries {first}..{last} are lost. {_ways_out(log)}; {REST}"
    return LogDataLossError(message, log=log, ledger=ledger_id)


def lost_live(log: str, ledger_id: int) -> LogDataLossError:
    """Return the error for a live segment, whose end nobody knows."""
    message = f"log {log!r} lists a live ledger that does not exist, {ledger_id}: its entries are lost. {_ways_out(log)}"
    return LogDataLossError(message, log=log, ledger=ledger_id)


def _ways_out(log: str) -> str:
    return f"bk log check {log} shows all that is missing, bk log repair {log} writes it off"
