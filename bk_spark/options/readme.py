"""Writes the table of options into README.md: ``python -m bk_spark.options.readme``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bk_spark.options.scopes import home
from bk_spark.options.table import OPTIONS, Option

_HEAD = "| Option | Default | Aliases | Meaning | For |"


def options_table(options: Sequence[Option]) -> str:
    lines = [_HEAD, "| --- | --- | --- | --- | --- |"]
    for option in options:
        default = option.shown_default if option.shown_default is not None else f"`{option.default}`"
        lines.append(
            f"| `{option.name}` | {default} | {', '.join(f'`{a}`' for a in option.aliases)} | {option.doc} | {home(option.field)} |"
        )
    return "\n".join(lines)


def with_table(readme: str, options: Sequence[Option]) -> str:
    """Return the text with its table replaced by the one of ``options``."""
    before, _, rest = readme.partition(_HEAD)
    lines = rest.splitlines(keepends=True)[1:]
    after = next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return before + options_table(options) + "\n" + "".join(lines[after:])


def main() -> None:
    readme = Path(__file__).parents[1] / "README.md"
    readme.write_text(with_table(readme.read_text(), OPTIONS))


if __name__ == "__main__":
    main()
