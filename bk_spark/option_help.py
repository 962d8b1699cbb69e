"""Help about options: what a wrong name should have been, and the table of README.md.

``python -m bk_spark.option_help`` writes the table into README.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bk_spark.options import Option

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
    """The text of the error for an option that is not in the table."""
    elsewhere = {name.lower(): ours for name, ours in ELSEWHERE.items()}.get(key.lower())
    if elsewhere is not None:
        return f"option {key!r} is not known here; what it does elsewhere is done by {elsewhere}"
    spellings = {spelling.lower(): spelling for option in options for spelling in (option.name, *option.aliases)}
    near = get_close_matches(key.lower(), spellings, n=1, cutoff=0.5)
    hint = f"; did you mean {spellings[near[0]]}?" if near else f"; known: {', '.join(option.name for option in options)}"
    return f"unknown option {key!r}{hint}"


def options_table(options: Sequence[Option]) -> str:
    lines = [_HEAD, "| --- | --- | --- | --- |"]
    for option in options:
        default = option.shown_default if option.shown_default is not None else f"`{option.default}`"
        lines.append(f"| `{option.name}` | {default} | {', '.join(f'`{a}`' for a in option.aliases)} | {option.doc} |")
    return "\n".join(lines)


def with_table(readme: str, options: Sequence[Option]) -> str:
    """The text with the table it has replaced by the one of ``options``."""
    before, _, rest = readme.partition(_HEAD)
    lines = rest.splitlines(keepends=True)[1:]
    after = next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return before + options_table(options) + "\n" + "".join(lines[after:])


def main() -> None:
    from bk_spark.options import OPTIONS

    readme = Path(__file__).with_name("README.md")
    readme.write_text(with_table(readme.read_text(), OPTIONS))


if __name__ == "__main__":
    main()
