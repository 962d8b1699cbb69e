"""The exit status of a command that cannot do its work: 2 for what is wrong by the command line alone, 1 for what the cluster says."""

from __future__ import annotations

import pytest

import bk_core
from tests.unit.bk_core.conftest import Bk

WRONG = (
    "bench --quorums 2/3/1",
    "bench --quorums 3-3-2",
    "bench --size 10MiB",
    "bookie health x/y",
    "bookie read-only x/y on",
    "bookie show x/y",
    "bookie decommission x/y",
    "checkpoint export .a DIR",
    "checkpoint ls .a",
    "checkpoint rm a/b --yes",
    "ledger check",
    "ledger read 1 --first 5 --last 4",
    "ledger repair 1 --lost x/y",
    "ledger show one",
    "log adopt x/y",
    "log append x/y",
    "log check x/y",
    "log create x/y",
    "log create new --ensemble-size 2 --write-quorum-size 3",
    "log export x/y FILE",
    "log forget x/y --yes",
    "log gc x/y",
    "log import x/y FILE",
    "log marks x/y",
    "log release x/y",
    "log repair x/y --yes",
    "log rm x/y --yes",
    "log segments x/y",
    "log set x/y --retention 1d",
    "log show x/y",
    "log tail lines --from nowhere",
    "log tail x/y",
    "log trim lines --retention soon",
    "log trim x/y --before-seq 1",
    "log verify x/y",
    "trace batch x/y --batch 1",
)
"""Impossible whatever there is: words, numbers, names, sizes."""
ABSENT = (
    "bookie health 127.0.0.1:1",
    "bookie show 127.0.0.1:1",
    "checkpoint show nothing",
    "ledger check 77",
    "ledger read 77",
    "ledger show 77",
    "log check nothing",
    "log marks lines --forget zzz",
    "log segments nothing",
    "log show nothing",
    "log tail lines --from 0:7",
    "log tail lines --from 9",
    "log tail nothing",
    "trace batch lines --batch 1",
    "trace entry 77 0",
)
"""The cluster has no such thing."""


@pytest.mark.parametrize(("commands", "status"), [(WRONG, 2), (ABSENT, 1)], ids=["wrong", "absent"])
def test_a_wrong_command_line_is_not_a_thing_that_is_absent(
    bk: Bk, client: bk_core.BookKeeper, commands: tuple[str, ...], status: int
) -> None:
    with client.create_log("lines").writer() as writer:
        writer.append(b"one")
    found, wanted = {}, {}
    for command in commands:
        group, *words = command.split()
        bk(*words, group=group, status=None)
        found[command] = (bk.status, bk.out, bk.err.split(" ")[0])
        wanted[command] = (status, "", "Usage:" if status == 2 else "error:")
    assert found == wanted
