"""Every command of Apache's shell has a row in the guide for those who come from Java, and each `bk` command that a row names exists."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from bk_core import cli
from bk_core.bookie import apache
from bk_core.errors import BookieUnavailableError

GUIDE = (Path(__file__).resolve().parents[2] / "docs/site/pages/guides/from-java.md").read_text()
_NAMES = """
    activeledgers autorecovery bookieformat bookieinfo bookiesanity check-db-ledgers-index clusterinfo convert-to-db-storage
    convert-to-interleaved-storage cookie_create cookie_delete cookie_generate cookie_get cookie_update decommissionbookie deleteledger
    endpointinfo forceauditchecks help initbookie initnewcluster lastmark ledger ledgermetadata listbookies listfilesondisc listledgers
    listunderreplicated localconsistencycheck lostbookierecoverydelay metaformat nukeexistingcluster queryautorecoverystatus readjournal
    readledger readlog readlogmetadata rebuild-db-ledger-locations-index rebuild-db-ledgers-index recover
    regenerate-interleaved-storage-index-file simpletest triggeraudit updateBookieInLedger updatecookie updateledgers whatisinstanceid
    whoisauditor
"""
COMMANDS = frozenset(_NAMES.split())
"""The commands of the shell of 4.18.0 (`bookkeeper shell help`)."""


def rows() -> dict[str, str]:
    """Return the second column of the table by the commands of the first."""
    table = GUIDE.partition("\n## The shell\n")[2].partition("\n## ")[0]
    found: dict[str, str] = {}
    for first, second in re.findall(r"^\| (.*?) \| (.*) \|$", table, re.M):
        for name in re.findall(r"`([A-Za-z_-]+)`", first):
            assert name not in found, f"{name} has two rows"
            found[name] = second
    return found


def test_every_command_of_the_shell_has_one_row() -> None:
    assert rows().keys() == COMMANDS


def test_the_commands_that_rows_name_are_there() -> None:
    named = [line for row in rows().values() for line in re.findall(r"`bk ([^`]+)`", row)]
    assert len(named) > 25
    for line in named:
        command: click.Command = cli.cli
        words = line.split()
        while words and isinstance(command, click.Group) and not words[0].startswith("-"):
            word = words.pop(0)
            assert word in command.commands, f"bk {line}"
            command = command.commands[word]
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
        assert {word for word in words if word.startswith("--")} <= known, f"bk {line}"


@pytest.mark.apache
def test_the_list_is_that_of_the_release() -> None:
    javap = shutil.which("javap")
    if javap is None:
        pytest.skip("there is no javap (a JDK)")
    try:
        jars = apache.resolve("4.18.0")
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    shell = ["-constants", "-private", "org.apache.bookkeeper.bookie.BookieShell"]
    told = subprocess.run([javap, "-cp", f"{jars}/*", *shell], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r'String CMD_\w+ = "([^"]+)"', told)) == COMMANDS
