"""Help about options: suggestions for a wrong name, and the table of README.md.

``python -m bk_spark.options.help`` writes the table into README.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

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

_HEAD = "| Option | Default | Aliases | Meaning |"


def unknown(key: str, options: Sequence[Option]) -> str:
    """Return the text of the error for an option that is not in the table."""
    elsewhere = {name.lower(): ours for name, ours in ELSEWHERE.items()}.get(key.lower())
    if elsewhere is not None:
        return f"option {key!r} is not known here; what it does elsewhere is done by {elsewhere}"
    spellings = {spelling.lower(): spelling for option in options for spelling in (option.name, *option.aliases)}
    near = get_close_matches(key.lower(), spellings, n=1, cutoff=0.5)
    hint = f"; did you mean {spellings[near[0]]}?" if near else f"; known: {', '.join(option.name for option in options)}"
    return f"unknown option {key!r}{hint}"


def out_of_place(idle: Mapping[str, str], what: str) -> str:
    """Return the text of the error for options (fields by name) that have no effect in ``what``."""
    homes: dict[str, list[str]] = {}
    for name, field in sorted(idle.items()):
        homes.setdefault(_home(field), []).append(name)
    told = ", ".join(f"{', '.join(names)} to {home}" if len(homes) > 1 else home for home, names in homes.items())
    one = len(idle) == 1
    belong = "belong: " if len(homes) > 1 else f"{'it belongs' if one else 'they belong'} to "
    return f"option{'' if one else 's'} {', '.join(sorted(idle))} {'does' if one else 'do'} nothing in {what}: {belong}{told}"


def _home(field: str) -> str:
    """Return the reads and writes in which an option has an effect, by its field."""
    from bk_spark.sink.task import SINK_OPTIONS, STREAM_SINK_OPTIONS
    from bk_spark.source.batch import BATCH_OPTIONS, TABLES  # for the message alone: these import much, and one another
    from bk_spark.source.stream import STREAMED

    batch, stream = field in BATCH_OPTIONS, field in STREAMED
    tables = [name for name, table in TABLES.items() if field in table.takes]
    places = [
        *(["batch and streaming reads of rows"] if batch and stream else []),
        *(["batch reads of rows"] if batch and not stream else []),
        *(["streaming reads (readStream)"] if stream and not batch else []),
        *([f"metadata={', '.join(tables)}"] if tables else []),
        *(["writes"] if field in SINK_OPTIONS & STREAM_SINK_OPTIONS else []),
        *(["batch writes"] if field in SINK_OPTIONS - STREAM_SINK_OPTIONS else []),
        *(["streaming writes (writeStream)"] if field in STREAM_SINK_OPTIONS - SINK_OPTIONS else []),
    ]
    return f"{', '.join(places[:-1])} and {places[-1]}" if len(places) > 1 else places[0]


def options_table(options: Sequence[Option]) -> str:
    lines = [_HEAD, "| --- | --- | --- | --- |"]
    for option in options:
        default = option.shown_default if option.shown_default is not None else f"`{option.default}`"
        lines.append(f"| `{option.name}` | {default} | {', '.join(f'`{a}`' for a in option.aliases)} | {option.doc} |")
    return "\n".join(lines)


def with_table(readme: str, options: Sequence[Option]) -> str:
    """Return the text with its table replaced by the one of ``options``."""
    before, _, rest = readme.partition(_HEAD)
    lines = rest.splitlines(keepends=True)[1:]
    after = next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return before + options_table(options) + "\n" + "".join(lines[after:])


def main() -> None:
    from bk_spark.options.table import OPTIONS

    readme = Path(__file__).with_name("README.md")
    readme.write_text(with_table(readme.read_text(), OPTIONS))


if __name__ == "__main__":
    main()
