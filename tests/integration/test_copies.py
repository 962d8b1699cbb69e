"""The copies of one bookie, and the differences between two: on real bookies, over the command line."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import closing
from typing import Any

import pytest

import bk_core
from bk_core import cli
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.errors import BookieUnavailableError, InvalidArgumentError
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.wire.messages import AddRequest, Status
from tests.integration.copies import NOBODY, length_of, made_by_hand, payload
from tests.integration.patience import PATIENT
from tests.integration.replicas import Direct

ENTRIES = 700  # more than one run of reads


def run(cluster: LocalCluster, capfd: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> tuple[str, str]:
    capfd.readouterr()
    found = cli.run([*arguments, "--uri", cluster.uri])
    sys.stdout.flush()
    out, err = capfd.readouterr()
    assert found == status, (out, err)
    assert "Traceback" not in err
    return out, err


def json_of(cluster: LocalCluster, capfd: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> list[Any]:
    return [json.loads(line) for line in run(cluster, capfd, *arguments, "--json", status=status)[0].splitlines()]


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_two_replicas_are_compared_byte_by_byte(cluster: LocalCluster, protocol: str) -> None:
    a, b, c = sorted(cluster.bookie_ids)[:3]
    with bk_core.connect(cluster.uri, protocol=protocol, limits=PATIENT) as bk:
        missing = {a: [650, 651], b: [*range(100, 130), 650]}
        ledger_id = made_by_hand(bk, [(0, (a, b, c))], ENTRIES, missing={**missing, c: [5]}, corrupt={b: [5], a: [400]})
        found = bk.diff(ledger_id, a, b)
        told = [(one.first, one.last, one.count, one.what, one.fields) for one in found.differences]
        assert told == [
            (5, 5, 1, "differs", ("payload",)),
            (100, 129, 30, "only in the first", ()),
            (400, 400, 1, "differs", ("payload",)),
            (650, 650, 1, "in neither", ()),
            (651, 651, 1, "only in the second", ()),
        ]
        assert [(one.first_digest_ok, one.second_digest_ok) for one in found.differences if one.what == "differs"] == [
            (True, False),
            (False, True),
        ]
        assert (found.same, found.differing, found.held_by_one) == (ENTRIES - 34, 34, 0)
        assert bk.diff(ledger_id, a, b, first=10, last=99).is_same
        with pytest.raises(InvalidArgumentError, match="given twice"):
            bk.diff(ledger_id, a, a)
        with pytest.raises(InvalidArgumentError, match=f"bookie {NOBODY} holds nothing of ledger {ledger_id}"):
            bk.diff(ledger_id, a, NOBODY)


def test_copies_that_differ_in_their_lac_are_told_as_such(cluster: LocalCluster) -> None:
    a, b, c = sorted(cluster.bookie_ids)[:3]
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk:
        ledger_id = made_by_hand(bk, [(0, (a, b, c))], 10, missing={b: [4]})
        with closing(Direct(b)) as direct:  # what a recovery leaves: another LAC, and a right digest
            body = layout.encode_body(ledger_id, 4, 0, length_of(4), payload(4), bk.ledger_metadata(ledger_id).digest_type)
            assert direct.add(AddRequest(0, ledger_id, 4, digests.master_key(b""), body)) is Status.OK
        (one,) = bk.diff(ledger_id, a, b).differences
        assert (one.first, one.what, one.fields, one.first_digest_ok, one.second_digest_ok) == (4, "differs", ("LAC",), True, True)


def test_of_a_striped_ledger_what_both_hold_is_compared(cluster: LocalCluster) -> None:
    a, b, c = sorted(cluster.bookie_ids)[:3]
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk:
        ledger_id = made_by_hand(bk, [(0, (a, b, c)), (60, (b, c, a))], 120, quorums=(3, 2, 2), corrupt={b: [0, 61]})
        found = bk.diff(ledger_id, a, b)
        assert (found.same + found.differing, found.held_by_one) == (40, 80)
        # entry 0 is on a and b; 61 is on c and a, so nothing of b differs there
        assert [(one.first, one.what) for one in found.differences] == [(0, "differs")]


def test_a_bookie_that_is_dead_is_named(cluster: LocalCluster) -> None:
    a, b, _ = sorted(cluster.bookie_ids)[:3]
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk:
        ledger_id = made_by_hand(bk, [(0, (a, b, NOBODY))], 10)
        with pytest.raises(BookieUnavailableError, match=f"bookie {NOBODY} gave no answer about entry 0 of ledger {ledger_id}"):
            bk.diff(ledger_id, a, NOBODY)


def test_the_commands_show_one_bookies_copies_and_differences(cluster: LocalCluster, capfd: pytest.CaptureFixture[str]) -> None:
    a, b, c = sorted(cluster.bookie_ids)[:3]
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk:
        number = str(made_by_hand(bk, [(0, (a, b, c))], 20, missing={b: [3, 4]}, corrupt={b: [7]}))
    out, err = run(cluster, capfd, "ledger", "read", number, "--from-bookie", b, "--last", "8", status=1)
    lines = out.splitlines()
    assert len(lines) == 9
    assert lines[3].split() == ["3", "missing", "(NO_ENTRY)"]
    assert "WRONG DIGEST" in lines[7]
    assert lines[8].split()[0] == "8"
    assert f"{b}: 9 copies, 3 missing or wrong" in err
    told = json_of(cluster, capfd, "ledger", "read", number, "--from-bookie", b, "--first", "3", "--last", "7", status=1)
    assert [(one["entry"], one["state"], one["lac"]) for one in told] == [
        (3, "missing", None),
        (4, "missing", None),
        (5, "good", 4),
        (6, "good", 5),
        (7, "corrupt", 6),
    ]
    assert len(json_of(cluster, capfd, "ledger", "read", number, "--from-bookie", a)) == 20
    out, _ = run(cluster, capfd, "ledger", "diff", number, a, b, status=1)
    assert "3-4" in out
    assert f"only on {a}" in out
    assert f"payload differs; that of {b} is wrong" in out
    assert f"ledger {number}, {a} and {b}: 17 entries alike, 3 not" in out
    (facts,) = json_of(cluster, capfd, "ledger", "diff", number, a, b, status=1)
    assert facts["differences"] == [
        {"first": 3, "last": 4, "count": 2, "what": "only in the first"},
        {"first": 7, "last": 7, "count": 1, "what": "differs", "fields": ["payload"], "digestOk": [True, False]},
    ]
    run(cluster, capfd, "ledger", "diff", number, a, c)


def test_the_end_of_a_ledger_is_shown_and_followed_until_it_is_closed(cluster: LocalCluster, capfd: pytest.CaptureFixture[str]) -> None:
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk:
        ledger = bk.create_ledger()
        ledger.append_many([b"entry %d" % n for n in range(30)])
        ledger.append(b"entry 30")  # confirms the one before
        number = str(ledger.ledger_id)
        out, err = run(cluster, capfd, "ledger", "tail", number, "-n", "3", "--raw")
        assert out.split("\n")[:-1] in (["entry 27", "entry 28", "entry 29"], ["entry 28", "entry 29", "entry 30"])
        assert "is OPEN" in err

        def write() -> None:
            ledger.append(b"entry 31")
            ledger.close()

        writer = threading.Timer(0.5, write)
        writer.start()
        out, err = run(cluster, capfd, "ledger", "tail", number, "-n", "3", "-f", "--raw")
        writer.join()
        assert out.split("\n")[-3:-1] == ["entry 30", "entry 31"]
        assert f"ledger {number} is CLOSED, its last entry is 31" in err
        assert [one["entry"] for one in json_of(cluster, capfd, "ledger", "tail", number, "-n", "2")] == [30, 31]
