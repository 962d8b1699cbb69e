"""Suggestions for the name of an option that is not in the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bk_core.near import near_names

if TYPE_CHECKING:
    from bk_spark.options.table import Option

ELSEWHERE = {
    "kafka.bootstrap.servers": "bookkeeper.metadataServiceUri",
    "service.url": "bookkeeper.metadataServiceUri",
    "pulsar.target-num-splits": "minPartitions",
    "startingVersion": "startingOffsets",
    "maxFilesPerTrigger": "maxRowsPerTrigger",
    "eventhubs.startingPosition": "startingOffsets",
    "groupIdPrefix": "readerName",
    "kafka.group.id": "readerName",
}
"""Options of other connectors that would be guessed wrongly, and ours that do the same."""


def unknown(key: str, options: Sequence[Option]) -> str:
    """Return the text of the error for an option that is not in the table."""
    elsewhere = {name.lower(): ours for name, ours in ELSEWHERE.items()}.get(key.lower())
    if elsewhere is not None:
        return f"option {key!r} is not known here; what it does elsewhere is done by {elsewhere}"
    spellings = {spelling.lower(): spelling for option in options for spelling in (option.name, *option.aliases)}
    near = near_names(key.lower(), spellings, 1)
    hint = f"; did you mean {spellings[near[0]]}?" if near else f"; known: {', '.join(option.name for option in options)}"
    return f"unknown option {key!r}{hint}"
