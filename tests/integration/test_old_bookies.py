"""The oldest bookies that are supported: no batch read (they close the connection on one), other fence and LAC corners."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import bk_core
from bk_core.bookie import apache
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.errors import BookieUnavailableError, LedgerError
from tests import quick_java
from tests.integration.patience import PATIENT

VERSION = "4.14.7"
PAYLOADS = [b"entry %d" % n for n in range(300)]

pytestmark = pytest.mark.apache


@pytest.fixture(scope="module")
def old_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    try:
        apache.resolve(VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    # four: a connection that the oldest bookie resets in its first moments costs an ensemble change and not the ledger
    with quick_java.apache_cluster(4, tmp_path_factory.mktemp("old"), VERSION) as cluster:
        yield cluster


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_write_read_fence_recover(old_cluster: LocalCluster, protocol: str) -> None:
    with (
        bk_core.connect(old_cluster.uri, protocol=protocol, limits=PATIENT) as bk,
        bk_core.connect(old_cluster.uri, protocol=protocol) as other,
    ):
        writer = bk.create_ledger(password=b"secret")
        assert writer.append_many(PAYLOADS) == len(PAYLOADS) - 1
        with other.open_ledger(writer.ledger_id, password=b"secret") as reader:
            assert reader.wait_for(99, 30)  # known by the explicit LAC: one run carries no newer LAC than its start
            assert reader.read(0, 99) == PAYLOADS[:100]  # the batch read is refused: entry by entry
        assert writer.append(b"the reader did not fence") == len(PAYLOADS)
        with other.recover_ledger(writer.ledger_id, password=b"secret") as recovered:
            assert recovered.read(0, len(PAYLOADS)) == [*PAYLOADS, b"the reader did not fence"]
        with pytest.raises(LedgerError):
            writer.append(b"too late")
