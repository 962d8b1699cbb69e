"""Options that were given at a wrong place: ``bk --uri URI ledger ls``, ``bk ledger ls --verbose``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click


def with_its_place(error: click.NoSuchOption, words: Sequence[str]) -> click.NoSuchOption:
    """Return the error with the place where the option goes, if ``bk`` itself or a command below the one that got it knows it; else as it
    is. ``words``: the command line."""
    if error.ctx is not None and error.ctx.parent is not None and _knows(error.ctx.find_root().command, error.option_name):
        message = (
            f"No such option {error.option_name!r} here: it goes in front of the command, as in `bk {error.option_name} {words[0]} ...`."
        )
        return click.NoSuchOption(error.option_name, message, ctx=error.ctx)
    if error.ctx is None or not isinstance(error.ctx.command, click.Group):
        return error
    command, path = error.ctx.command, error.ctx.command_path
    below: click.Command = command
    for word in words:
        if isinstance(below, click.Group) and word in below.commands:
            below, path = below.commands[word], f"{path} {word}"
    found = next((one for one in _options(below) if error.option_name in one.opts + one.secondary_opts), None)
    if found is None:
        return error
    where = f"{path} COMMAND" if isinstance(below, click.Group) else path
    value = "" if found.is_flag or found.count else " ..."
    message = f"No such option {error.option_name!r} here: it goes after the command, as in `{where} {error.option_name}{value}`."
    return click.NoSuchOption(error.option_name, message, ctx=error.ctx)


def _knows(command: click.Command, name: str) -> bool:
    return any(name in one.opts + one.secondary_opts for one in command.params if isinstance(one, click.Option))


def _options(command: click.Command) -> Iterable[click.Option]:
    yield from (one for one in command.params if isinstance(one, click.Option))
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from _options(below)
