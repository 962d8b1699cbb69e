"""The fields of ``--json``: the help of each command lists those that it prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import bk_core
from bk_core.cli.commands import cli
from tests.unit.bk_core.conftest import Bk

NAME = re.compile(r"[A-Za-z0-9]+")


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def told(command: click.Command) -> str:
    """The paragraph of a command's help about ``--json``, "" if there is none."""
    paragraphs = (command.help or "").split("\n\n")
    return " ".join(next((one for one in paragraphs if one.lstrip().startswith("--json:")), "").removeprefix("--json:").split())


def fields(text: str) -> set[str]:
    """The names in the first clause of such a paragraph; what stands in brackets says what is in a field."""
    depth, bare = 0, ""
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        bare += letter if depth == 0 and letter != ")" else ""
    clause = re.split(r"[;.]", bare)[0].rpartition(":")[2]
    return {NAME.match(part.strip().removeprefix("and "))[0] for part in clause.split(",")}  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("uri, cluster (INSTANCEID).", {"uri", "cluster"}),
        ("a line for each look: atMs, logs (log, rows); the last one: more.", {"atMs", "logs"}),
        ("ledger, bookies (their ids), and problems. A replica has position.", {"ledger", "bookies", "problems"}),
    ],
)
def test_fields_are_found_in_words(text: str, names: set[str]) -> None:
    assert fields(text) == names


def test_every_command_that_has_the_option_lists_its_fields() -> None:
    found = {" ".join(path) for path, command in commands() if any("--json" in one.opts for one in command.params) and not told(command)}
    assert not found


SAME_AS = {"log set": "log create", "checkpoint show": "checkpoint ls"}
MORE = {"checkpoint show": {"batches"}, "ledger read --from-bookie": {"bookie", "state", "lac", "length"}}


def test_what_is_printed_is_what_is_listed(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path) -> None:
    listed = {" ".join(path): fields(told(command)) for path, command in commands() if told(command)}
    with client.create_ledger() as ledger:
        ledger.append_many([b"x"] * 5)
    with client.create_ledger() as live:
        live.append(b"x")
    number, bookie = ledger.ledger_id, ledger.metadata.last_fragment.ensemble[0]
    checkpoint = tmp_path / "checkpoint"
    for name in ("metadata", "offsets/0", "commits/0"):
        place = checkpoint / name
        place.parent.mkdir(parents=True, exist_ok=True)
        offset = {"logId": client.create_log("events", exist_ok=True).info.log_id, "seq": 0, "entry": 0, "row": 0, "rows": 0, "bytes": 0}
        place.write_text({"metadata": '{"id":"a query"}', "commits/0": "v1\n{}"}.get(name, f"v1\n{{}}\n{json.dumps({'events': offset})}"))
    with client.log("events").writer() as writer:
        writer.append(b"an entry")
    lines = [
        f"bookie show {bookie}", f"bookie health {bookie}", "bookie ls", f"bookie cookie get {bookie}", "cluster info",
        "cluster autorecovery", "ledger ls", f"ledger show {number}", f"ledger check {number}", f"ledger repair {number}",
        f"ledger read {number}", f"ledger read {number} --from-bookie {bookie}", f"ledger tail {number}", f"ledger xray {number}",
        f"ledger diff {number} {bookie} {ledger.metadata.last_fragment.ensemble[1]}", f"ledger recover {number}",
        f"ledger export {number} {tmp_path}/it.bke", f"ledger import {tmp_path}/it.bke", f"ledger cp {number}", f"ledger rm {number} --yes",
        "log ls", "log show events", "log segments events", "log create more", "log set more --retention 7d", "log check events",
        "log tail events", "log trim events --before-seq 0", "log gc events", "log release events", "log verify events",
        "log repair events", f"log export events {tmp_path}/events.bke", "log rm more --yes", f"checkpoint import q {checkpoint}",
        "checkpoint ls", "checkpoint show q", "checkpoint tail q -F", "checkpoint cat q metadata", f"checkpoint export q {tmp_path}/out",
        "checkpoint gc q", "query lag bk://q", f"trace entry {live.ledger_id} 0", "bench --entries 5 --size 10", "top --count 1",
        "checkpoint rm q --yes",
    ]  # fmt: skip
    for line in lines:
        group, *words = line.split()
        printed = bk.json(*words, group=group)
        path = next(path for path in (" ".join([group, *words[:count]]) for count in (2, 1, 0)) if path in listed)
        wanted = listed[SAME_AS.get(path, path)] | MORE.get(path, set())
        if "--from-bookie" in line:
            wanted = wanted | MORE["ledger read --from-bookie"]
        assert printed, line
        assert set(printed[0]) == wanted, line
