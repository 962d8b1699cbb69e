"""Apache's Java client as the judge: what is written here it reads and recovers, and the other way round. Four digests, both protocols."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import bk_core
from bk_core.errors import WrongPasswordError
from bk_core.protocol.ledger.metadata import LedgerState
from tests.integration.patience import PATIENT

if TYPE_CHECKING:
    from conftest import JavaClient

    from bk_core.bookie.local_cluster import LocalCluster
    from bk_core.client import BookKeeper

pytestmark = pytest.mark.apache

PAYLOADS = [b"", b"one", bytes(range(256)), b"x" * 100_000] + [b"%d" % i for i in range(40)]
PASSWORD = "secret"
SIZE = sum(map(len, PAYLOADS))


@pytest.fixture(params=["v2", "v3"])
def client(request: pytest.FixtureRequest, apache_cluster: LocalCluster) -> Iterator[BookKeeper]:
    with bk_core.connect(apache_cluster.uri, protocol=request.param, limits=PATIENT) as opened:
        yield opened


@pytest.fixture(params=["CRC32", "MAC", "CRC32C", "DUMMY"])
def digest(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)], ids=["mirrored", "striped"])
def test_written_here_read_by_java(
    client: BookKeeper, apache_cluster: LocalCluster, java_client: JavaClient, digest: str, quorums: tuple[int, int, int]
) -> None:
    """The mirrored ledger is closed; the striped one is left unclosed, and Java recovers it."""
    e, w, a = quorums
    writer = client.create_ledger(
        ensemble_size=e, write_quorum_size=w, ack_quorum_size=a, digest_type=digest, password=PASSWORD.encode(), custom={"by": b"python"}
    )
    writer.append_many(PAYLOADS).result(30)
    if quorums == (3, 3, 2):
        writer.close()
        seen = java_client.read(apache_cluster, writer.ledger_id, digest=digest, password=PASSWORD, protocol=client.config.protocol)
    else:
        writer.abandon()
        seen = java_client.recover(apache_cluster, writer.ledger_id, digest=digest, password=PASSWORD, protocol=client.config.protocol)
    assert seen.closed
    assert list(seen.payloads) == PAYLOADS
    assert seen.length == SIZE
    stored = client.ledger_metadata(writer.ledger_id)
    assert (stored.state, stored.last_entry_id, stored.length) == (LedgerState.CLOSED, len(PAYLOADS) - 1, SIZE)
    assert stored.custom["by"] == b"python"


@pytest.mark.parametrize("crash", [False, True], ids=["closed", "unclosed"])
def test_written_by_java_read_here(
    client: BookKeeper, apache_cluster: LocalCluster, java_client: JavaClient, digest: str, crash: bool
) -> None:
    written = java_client.write(
        apache_cluster, PAYLOADS, digest=digest, password=PASSWORD, protocol=client.config.protocol, quorums=(3, 2, 2), crash=crash
    )
    with pytest.raises(WrongPasswordError):
        client.open_ledger(written.ledger_id, password=b"other")
    if crash:
        with client.open_ledger(written.ledger_id, password=PASSWORD.encode()) as reader:
            assert not reader.is_closed
            last = reader.read_last_add_confirmed()
            assert last >= len(PAYLOADS) - 2
            assert reader.read(0, last) == PAYLOADS[: last + 1]
        client.recover_ledger(written.ledger_id, password=PASSWORD.encode()).close()
    with client.open_ledger(written.ledger_id, password=PASSWORD.encode(), digest_type=digest) as reader:
        assert reader.is_closed
        assert reader.length == SIZE
        assert reader.last_add_confirmed == len(PAYLOADS) - 1
        assert reader.read(0, reader.last_add_confirmed) == PAYLOADS
    assert client.ledger_metadata(written.ledger_id).custom["judge"] == b"java"


def test_java_reads_what_was_recovered_here(client: BookKeeper, apache_cluster: LocalCluster, java_client: JavaClient) -> None:
    crashed = java_client.write(apache_cluster, PAYLOADS, crash=True, protocol=client.config.protocol)
    client.recover_ledger(crashed.ledger_id).close()
    seen = java_client.read(apache_cluster, crashed.ledger_id, protocol=client.config.protocol)
    assert seen.closed
    assert list(seen.payloads) == PAYLOADS
