"""Options of catalog tables. Spark forgets them, so ``schema()`` hides them in the metadata of the first column (spark-connectors.md 5.12).

``CREATE TABLE t USING bookkeeper OPTIONS (...)`` shows its options to ``schema()`` alone; later ``reader`` gets none. But what ``schema()``
returns is stored with the table, with the metadata of its columns, and comes back in ``reader(schema)`` and ``streamReader(schema)``.
Secrets are never stored: give them at each statement.

A table made in any other way (with columns, by ``saveAsTable``, ``writeTo(...).create()`` or ``createOrReplace()``) remembers nothing: no
method of ours is called for the table, and to a writer these statements look like ``save()``, down to the last byte that Spark sends, so
that they cannot be refused either. The rows are in the log; the first read says how to make the table again.

Writers must not look there: ``INSERT INTO t SELECT * FROM u`` hands over the columns of the query, so the metadata is that of ``u``, and
the rows would be appended to the log they came from. They demand their options at the statement.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.types import StructField, StructType

from bk_core.errors import InvalidArgumentError
from bk_core.protocol.log.stored_json import loads
from bk_spark.options.grammar import parse_secret
from bk_spark.options.table import OPTIONS, Option
from bk_spark.schemas import TABLE_OPTIONS_KEY

_PROVIDER, _PREFIX = "provider", "option."
_SOURCES = frozenset({"log", "logs", "log_pattern", "ledgers"})  # a statement that names one of them does not mean the table's
_SPELLED: Mapping[str, Option] = {name.lower(): option for option in OPTIONS for name in (option.name, *option.aliases)}
_URI, _LOG = "`bookkeeper.metadataServiceUri` = 'zk://host:2181/ledgers'", "log = 'name'"
_LINE = ".option('bookkeeper.metadataServiceUri', 'zk://host:2181/ledgers').option('log', 'name') names the cluster and the log"


def of_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a CREATE TABLE, or None if ``given`` is from elsewhere. Spark adds the table's properties there, and a copy of
    each option that begins with ``option.``."""
    lowered = {key.lower(): value for key, value in given.items()}
    if _PROVIDER not in lowered:
        return None
    return {key[len(_PREFIX) :]: value for key, value in lowered.items() if key.startswith(_PREFIX)}


def remember(schema: StructType, given: Mapping[str, str]) -> StructType:
    """Return the schema with all options but the secret ones in the metadata of its first column."""
    kept = {key: value for key, value in given.items() if not _is_secret(key)}
    first, *rest = schema.fields
    noted: dict[str, Any] = {**(first.metadata or {}), TABLE_OPTIONS_KEY: json.dumps(kept, sort_keys=True)}
    return StructType([StructField(first.name, first.dataType, first.nullable, noted), *rest])


def for_reading(given: Mapping[str, str], schema: StructType, takes: Callable[[str], bool] = lambda _: True) -> dict[str, str]:
    """Return the options of a read: those of the statement, over those of the table unless the statement names another source. The table's
    options serve batches and streams, so only the fields that this read ``takes`` are used.

    Raises InvalidArgumentError, with the line to write, if there are none at all.
    """
    fields = {_field(key) for key in given}
    if fields & _SOURCES:
        return dict(given)
    stored = _remembered(schema)
    if not given and not stored:
        raise InvalidArgumentError(
            f"this read has no options: {_LINE}. Of a table: Spark keeps no options for this one, and tells them to us only at a CREATE "
            "TABLE without columns and without AS SELECT; not with columns, nor at saveAsTable, writeTo(...).create() or "
            "createOrReplace(). Its rows are in the log. Make it again: DROP TABLE t; CREATE TABLE t USING bookkeeper OPTIONS (...), which "
            f"finds the columns and remembers the options. Or say them at the statement: SELECT * FROM t WITH ({_URI}, {_LOG}), or "
            "spark.read.option(...).table('t')"
        )
    return {key: value for key, value in stored.items() if _field(key) not in fields and takes(_field(key))} | dict(given)


def for_writing(given: Mapping[str, str]) -> dict[str, str]:
    """Raise InvalidArgumentError, with the line to write, if there are no options, because the table's do not reach a write."""
    if not given:
        raise InvalidArgumentError(
            f"this write has no options: {_LINE}. Of a table: Spark does not tell a write which options the table was made with. For "
            "CREATE TABLE ... AS SELECT write the rows first: df.write.format('bookkeeper').option(...).mode('append').save(), then "
            "CREATE TABLE t USING bookkeeper OPTIONS (...). Into a table that is there, say them at the statement: "
            f"INSERT INTO t WITH ({_URI}, {_LOG}) SELECT ...; "
            "df.writeTo('t').option('log', 'name').option(...).append(); or save() as above. Not df.write.option(...).insertInto('t'): "
            "without .format('bookkeeper') Spark drops its options"
        )
    return dict(given)


def _remembered(schema: StructType) -> dict[str, str]:
    text = (schema.fields[0].metadata or {}).get(TABLE_OPTIONS_KEY) if schema.fields else None
    try:
        return {str(key): str(value) for key, value in loads(text).items()} if text else {}
    except (ValueError, AttributeError) as error:
        raise InvalidArgumentError(f"the options stored with this table cannot be read ({error}); create it again") from None


def _field(key: str) -> str:
    """Return the field of an option, whatever its alias; unknown names stand for themselves."""
    option = _SPELLED.get(key.lower())
    return key.lower() if option is None else option.field


def _is_secret(key: str) -> bool:
    option = _SPELLED.get(key.lower())
    return option is not None and option.parse is parse_secret
