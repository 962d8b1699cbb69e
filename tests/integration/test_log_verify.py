"""Every copy of a log on real bookies: what one of them has wrong is found, and what no segment lists is left alone."""

from __future__ import annotations

import json
import sys
from contextlib import closing

import pytest

import bk_core
from bk_core import cli
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.client.log.history import update_ledger_list
from bk_core.client.log.verify import verify_log
from bk_core.protocol.entry import digests
from bk_core.protocol.log.ledger_list import LedgerList, SegmentRange
from bk_core.protocol.wire.messages import AddRequest, Status
from tests.integration.copies import made_by_hand
from tests.integration.patience import PATIENT
from tests.integration.replicas import Direct


def listed_by(bk: bk_core.BookKeeper, name: str, ledger_id: int, *spans: tuple[int, int]) -> None:
    """Let a log list entries of a ledger."""
    ranges = [SegmentRange(ledger_id, first, last, last - first + 1, 10) for first, last in spans]

    def change(listed: LedgerList) -> LedgerList:
        return listed.append_segments(ranges, 1)

    update_ledger_list(bk, name, change)


def test_a_log_is_verified_copy_by_copy(cluster: LocalCluster, capfd: pytest.CaptureFixture[str]) -> None:
    a, b, c = sorted(cluster.bookie_ids)[:3]
    name = f"verified-{cluster.kind.replace(' ', '-').replace('.', '-')}"
    with bk_core.connect(cluster.uri, limits=PATIENT) as bk:
        with bk.create_log(name, exist_ok=True).writer() as writer:
            writer.append_many([b"x" * 100] * 300)
        found = verify_log(bk, name)
        assert found.is_good
        assert (found.copies, found.ledgers) == (900, 1)
        ledger_id = made_by_hand(bk, [(0, (a, b, c))], 60, missing={b: [20, 45]}, corrupt={c: [7, 30]})
        listed_by(bk, name, ledger_id, (0, 9), (10, 24), (40, 59))
        found = verify_log(bk, name)
        told = [(one.first_seq, one.last_seq, one.problem.bookie, one.problem.stretch.first) for one in found.damages]
        # entry 30 is in no segment
        assert told == [(1, 2, b, 20), (1, 2, c, 7), (3, 3, b, 45)]
        assert found.damaged == 3
        assert any(problem.kind == "foreign" for problem in found.check.problems)  # it was not made for the log
        assert "3 in need of repair" in found._repr_html_()
        assert cli.run(["log", "verify", name, "--uri", cluster.uri, "--json"]) == 1
        sys.stdout.flush()
        shown = json.loads(capfd.readouterr().out)
        assert (shown["good"], shown["damaged"], len(shown["damages"])) == (False, 3, 3)
        with closing(Direct(b)) as direct:
            status, body = direct.read(ledger_id, 21)
            assert status is Status.OK
            assert body is not None
            assert direct.add(AddRequest(0, ledger_id, 21, digests.master_key(b""), bytes(body))) is Status.OK  # nobody was fenced
        bk.log(name).delete()
