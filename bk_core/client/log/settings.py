"""The properties of a log as users give them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol, TypedDict

from bk_core.arguments import Duration, kept_milliseconds
from bk_core.client.log.tables import tables
from bk_core.errors import InvalidArgumentError
from bk_core.near import meant
from bk_core.protocol.ledger.metadata import DigestName, DigestType
from bk_core.protocol.log.segments import EntryFormat

_DURATIONS: Mapping[str, str] = {"retention": "retention_ms", "committed_retention": "committed_retention_ms"}


class ArrowSchema(Protocol):
    """A schema of pyarrow, or of another library that shares its schemas by Arrow's C interface."""

    def __arrow_c_schema__(self) -> object: ...


class LogChanges(TypedDict, total=False):
    """The properties that ``Log.set`` takes by name, for type checkers."""

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    digest_type: DigestType | DigestName
    guaranteed_write_quorum: bool
    retention: Duration | None
    retention_ms: int | None
    retention_bytes: int | None
    committed_retention: Duration | None
    committed_retention_ms: int | None


class LogSettings(LogChanges, total=False):
    """The properties that ``BookKeeper.create_log`` takes by name: the fields of LogProperties, and two times as lengths, for type
    checkers."""

    entry_format: EntryFormat
    schema: str | ArrowSchema


def properties_of(given: Mapping[str, Any], fixed: Collection[str] = ()) -> dict[str, Any]:
    """Settings as users give them, with times as ``timedelta`` or seconds, as fields of LogProperties. InvalidArgumentError, which
    suggests none of ``fixed``."""
    known = [name for name in LogSettings.__annotations__ if name not in fixed]
    found: dict[str, Any] = {}
    if given.get("schema") == "" and "entry_format" not in given and "schema" not in fixed:
        raise InvalidArgumentError("schema is empty: name the columns, or leave it out")
    if given.get("schema") not in (None, "") and "schema" not in fixed:  # columns are those of Arrow entries
        given = {"entry_format": "arrow", **given, "schema": schema_text(given["schema"])}
    for name, value in given.items():
        if name not in LogSettings.__annotations__:
            hint = meant(name, known, 1) or f"there are {', '.join(known)}"
            raise InvalidArgumentError(f"a log has no property {name!r}; {hint}")
        field = _DURATIONS.get(name, name)
        if field in found:
            first = next(one for one in given if _DURATIONS.get(one, one) == field)
            raise InvalidArgumentError(f"{field} is given twice, as {first} and as {name}")
        if isinstance(value, DigestType):
            value = value.name
        found[field] = kept_milliseconds(name, value) if name in _DURATIONS and value is not None else value
    return found


def schema_text(schema: object) -> str:
    """Return columns as a log's list keeps them, from DDL, an Arrow schema, or such a text. LogSchemaError;
    MissingPackageError without pyarrow."""
    return tables().schema_text(schema)
