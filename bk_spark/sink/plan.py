"""Plans a write for one log, from what is stored and from the options, before any row moves and without any side effect."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql.types import StructType

from bk_core.client.guards import check_password
from bk_core.client.log.list_store import UPDATE_TIMEOUT_S, log_path, no_such_log, read_ledger_list
from bk_core.client.log.live_writers import writer_told
from bk_core.client.log.too_few import check_bookies
from bk_core.client.repeating import until_definite
from bk_core.errors import InvalidArgumentError, LogWriterAliveError, NoSuchLogError, WrongPasswordError
from bk_core.protocol.log.ledger_list import LedgerList, LogProperties
from bk_core.protocol.log.names import check_not_of_files
from bk_core.protocol.log.segments import unchecked_properties
from bk_spark.options.table import Options
from bk_spark.sink.schema import check_raw, schema_to_write

_FIXED = {  # option, and its field in Options and in LogProperties: decided when a log is created
    "entryFormat": "entry_format",
    "ensembleSize": "ensemble_size",
    "writeQuorumSize": "write_quorum_size",
    "ackQuorumSize": "ack_quorum_size",
    "digestType": "digest_type",
    "guaranteedWriteQuorum": "guaranteed_write_quorum",
}
_ARROW_ONLY = {
    "entrySize": "entry_size",
    "compression": "compression",
    "mergeSchema": "merge_schema",
    "overwriteSchema": "overwrite_schema",
}


@dataclass(frozen=True, slots=True)
class LogPlan:
    """The way in which one log is written. ``log_id`` is "" if the log does not exist yet, and the commit creates it. ``done``: rows need
    not be written."""

    log: str
    log_id: str
    properties: LogProperties
    schema: str
    done: bool = False


def wanted_properties(options: Options) -> LogProperties:
    """Return the properties of a log that this write creates. Raises InvalidArgumentError unless E >= Qw >= Qa (CR-1)."""
    o = options
    properties = unchecked_properties(
        entry_format=o.entry_format,
        ensemble_size=o.ensemble_size,
        write_quorum_size=o.write_quorum_size,
        ack_quorum_size=o.ack_quorum_size,
        digest_type=o.digest_type,
        guaranteed_write_quorum=o.guaranteed_write_quorum,
    )
    properties.check()
    return properties


def check_fixed(options: Options, log: str, properties: LogProperties) -> None:
    """Raise InvalidArgumentError for an option that contradicts the properties the log was created with."""
    for name, field in _FIXED.items():
        wanted, has = getattr(options, field), getattr(properties, field)
        if field in options.given and wanted != has:
            raise InvalidArgumentError(
                f"option {name}={wanted} does not fit: log {log!r} was created with {has}, for ever. Leave the option out"
            )


def check_own_password(client: Any, options: Options, log: str, listed: LedgerList) -> None:
    """Raise WrongPasswordError for another password than the log is written with (GRD-6)."""
    try:
        check_password(client, log, listed, options.secret)
    except WrongPasswordError as error:
        raise error.retold(f"option password does not fit: {error.args[0]}") from error.__cause__


def same_kind(options: Options, properties: LogProperties) -> bool:
    """Return True if a log is what this write would have created, because its ledgers were made for such a log."""
    wanted = wanted_properties(options)
    return all(getattr(wanted, field) == getattr(properties, field) for field in _FIXED.values())


def plan_log(client: Any, options: Options, log: str, schema: StructType, mark: tuple[str, int] | None, overwrite: bool = False) -> LogPlan:
    """Read the log's list and decide. Raises before any side effect: InvalidArgumentError for options that do not fit the log,
    WrongPasswordError, LogSchemaError, LogWriterAliveError behind an exclusive writer without ``takeOver``, NoSuchLogError with
    ``createLogs=false``, NotEnoughBookiesError for ledgers of more bookies than the cluster has, those that are away included.
    InvalidArgumentError for the log of a file store, whatever is insisted on (GRD-7).
    """
    log_path(log)
    check_not_of_files(log, False)
    listed = _read(client, log)
    if listed is None:
        if not options.create_logs:
            raise NoSuchLogError(f"{no_such_log(client, log).args[0]}; createLogs is false, so this write makes none", log=log)
        properties, how = wanted_properties(options), "option ensembleSize"
    else:
        properties, how = listed.properties, ""
        check_fixed(options, log, properties)
        until_definite(partial(check_own_password, client, options, log, listed), time.monotonic() + UPDATE_TIMEOUT_S)
        if listed.live_segments and not options.take_over:
            live = [segment.ledger_id for segment in listed.live_segments]
            raise LogWriterAliveError(
                f"log {log!r} has an exclusive writer ({writer_told(client, live)}; live ledger {live[-1]}); stop it, or fence it with "
                '.option("takeOver", "true"); of one that died close the segment: bk log release',
                log=log,
            )
    until_definite(partial(check_bookies, client, log, properties, how), time.monotonic() + UPDATE_TIMEOUT_S)
    text = _schema_for(options, log, properties, schema, overwrite)
    done = mark is not None and listed is not None and listed.is_committed(*mark)
    plain = unchecked_properties(properties, extra={})  # tasks need no fields that this release does not know
    return LogPlan(log, "" if listed is None else listed.log_id, plain, text, done)


def _schema_for(options: Options, log: str, properties: LogProperties, schema: StructType, overwrite: bool) -> str:
    if properties.entry_format != "raw":
        stored = "" if options.overwrite_schema else properties.schema
        return schema_to_write(log, stored, schema, options.merge_schema, overwrite)
    for name, given in _ARROW_ONLY.items():
        if given in options.given:
            raise InvalidArgumentError(f"option {name} is for arrow logs; {log!r} is a raw one: each value is an entry as it is")
    check_raw(log, schema)
    return ""


def _read(client: Any, log: str) -> LedgerList | None:
    try:
        return until_definite(lambda: read_ledger_list(client, log), time.monotonic() + UPDATE_TIMEOUT_S)
    except NoSuchLogError:
        return None
