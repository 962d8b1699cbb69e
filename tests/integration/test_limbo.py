"""A replaced disk on a real cluster: nothing acknowledged is lost, the writer is stopped, and the bookie is whole again in the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import bk_core
from bk_core.bookie.local_cluster import local_cluster
from bk_core.bookie.replicas import ReplicaReader
from bk_core.errors import BkError, BookieUnavailableError
from bk_core.protocol.entry.layout import decode_body
from bk_core.protocol.ledger.metadata import DigestType, LedgerState
from tests.integration.dead_bookies import unregister

PAYLOADS = [b"%d" % number for number in range(200)]


def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_a_wiped_bookie_of_open_ledgers(tmp_path: Path) -> None:
    """B-10, RC-25, RC-26, RC-27, L-7 (scenarios 7 and 10, R24): with ack quorum 2 of three recovery decides, with 1 it must not."""
    with local_cluster(3, tmp_path) as cluster, bk_core.connect(cluster.uri) as bk:
        writers = [bk.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=quorum) for quorum in (2, 1)]
        for writer in writers:
            for payload in PAYLOADS:
                writer.append_future(payload)
            writer.flush()
        decidable, undecidable = (writer.ledger_id for writer in writers)
        writers[1].abandon()  # a live writer without a spare bookie would close its ledger, and leave nothing to decide
        cluster.wipe(0)
        with pytest.raises(BookieUnavailableError, match="has lost its data"):
            cluster.restart(0)
        unregister(cluster, 0)
        cluster.restart(0, accept_data_loss=True)
        host, port = cluster.bookie_ids[0].split(":")
        reader = ReplicaReader(lambda bookie: (host, int(port)))
        for writer in writers:
            assert reader.read("it", writer.ledger_id, [0, 199, 200]) == {}
        with pytest.raises(BkError):
            for _ in range(50):  # FENCED comes from the wiped bookie, if it was not given up before
                writers[0].append(b"late")
        with bk.recover_ledger(decidable) as ledger:
            assert ledger.read(0, len(PAYLOADS) - 1) == PAYLOADS
            assert cluster.bookie_ids[0] in ledger.metadata.fragments[0].ensemble
        assert eventually(lambda: len(reader.read("it", decidable, range(200))) == 200)
        bodies = reader.read("it", decidable, range(200))
        assert [decode_body(bodies[i], decidable, i, DigestType.CRC32C).payload for i in range(200)] == PAYLOADS
        with pytest.raises(BkError):
            bk.recover_ledger(undecidable)
        assert bk.ledger_metadata(undecidable).state is LedgerState.IN_RECOVERY
        assert (tmp_path / "bookie-0" / "data" / "current" / "LOST").exists()
        reader.close()
        writers[0].abandon()
