"""The ``bk`` command: look into ledgers and logs, and run a cluster on this machine.

The commands are imported on first use: that takes longer than many a command, and somebody may press Ctrl-C meanwhile.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from bk_core.cli import statuses

if TYPE_CHECKING:
    from bk_core.cli.commands import cli as cli


def __getattr__(name: str) -> Any:
    if name != "cli":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bk_core.cli.commands import cli

    return cli


def main(arguments: list[str] | None = None) -> None:
    """Entry point. The exit status is one of ``statuses.STATUSES``."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run a command line as ``main`` does, and return its status."""
    if not statuses.has_outputs():
        return statuses.USAGE
    try:
        from bk_core.cli import commands
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return statuses.INTERRUPTED
    return commands.run(arguments)
