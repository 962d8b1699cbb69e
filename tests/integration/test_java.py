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
    from bk_core.client.ledger.write_handle import WriteHandle

pytestmark = pytest.mark.apache

PAYLOADS = [b"", b"one", bytes(range(256)), b"x" * 100_000] + [b"%d" % i for i in range(40)]
PASSWORD = "secret"
DIGESTS = ("CRC32", "MAC", "CRC32C", "DUMMY")
SIZE = sum(map(len, PAYLOADS))


@pytest.fixture(params=["v2", "v3"])
def client(request: pytest.FixtureRequest, apache_cluster: LocalCluster) -> Iterator[BookKeeper]:
    with bk_core.connect(apache_cluster.uri, protocol=request.param, limits=PATIENT) as opened:
        yield opened


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)], ids=["mirrored", "striped"])
def test_written_here_read_by_java(
    client: BookKeeper, apache_cluster: LocalCluster, java_client: JavaClient, quorums: tuple[int, int, int]
) -> None:
    """One ledger for each digest. The mirrored ones are closed; the striped ones are left unclosed, and Java recovers them."""
    mirrored = quorums == (3, 3, 2)
    ledgers: dict[int, str] = {}
    made: dict[int, int | None] = {}
    for digest in DIGESTS:
        writer = _writer(client, digest, quorums)
        made[writer.ledger_id] = client.ledger_metadata(writer.ledger_id).ctime_ms
        writer.append_many(PAYLOADS)
        if mirrored:
            writer.close()
        else:
            writer.abandon()
        ledgers[writer.ledger_id] = digest
    command = "read" if mirrored else "recover"
    seen = java_client.read_each(apache_cluster, command, ledgers, password=PASSWORD, protocol=client.config.protocol)
    assert [each.ledger_id for each in seen] == list(ledgers)
    for each in seen:
        assert each.closed
        assert list(each.payloads) == PAYLOADS
        assert each.length == SIZE
        stored = client.ledger_metadata(each.ledger_id)
        assert (stored.state, stored.last_entry_id, stored.length) == (LedgerState.CLOSED, len(PAYLOADS) - 1, SIZE)
        assert stored.custom["by"] == b"python"
        assert stored.ctime_ms is not None and stored.ctime_ms == made[each.ledger_id]  # also where Java has written the metadata anew


def _writer(client: BookKeeper, digest: str, quorums: tuple[int, int, int]) -> WriteHandle:
    e, w, a = quorums
    return client.create_ledger(
        ensemble_size=e, write_quorum_size=w, ack_quorum_size=a, digest_type=digest, password=PASSWORD.encode(), custom={"by": b"python"}
    )


@pytest.mark.parametrize("crash", [False, True], ids=["closed", "unclosed"])
def test_written_by_java_read_here(client: BookKeeper, apache_cluster: LocalCluster, java_client: JavaClient, crash: bool) -> None:
    """One ledger for each digest."""
    written = java_client.write_each(
        apache_cluster, PAYLOADS, DIGESTS, password=PASSWORD, protocol=client.config.protocol, quorums=(3, 2, 2), crash=crash
    )
    assert len(written) == len(DIGESTS)
    for each, digest in zip(written, DIGESTS, strict=True):
        _judge_what_java_wrote(client, each.ledger_id, digest, crash)


def _judge_what_java_wrote(client: BookKeeper, ledger_id: int, digest: str, crash: bool) -> None:
    with pytest.raises(WrongPasswordError):
        client.open_ledger(ledger_id, password=b"other")
    if crash:
        with client.open_ledger(ledger_id, password=PASSWORD.encode()) as reader:
            assert not reader.is_closed
            last = reader.read_last_add_confirmed()
            assert last >= len(PAYLOADS) - 2
            assert reader.read(0, last) == PAYLOADS[: last + 1]
        client.recover_ledger(ledger_id, password=PASSWORD.encode()).close()
    with client.open_ledger(ledger_id, password=PASSWORD.encode(), digest_type=digest) as reader:
        assert reader.is_closed
        assert reader.length == SIZE
        assert reader.last_add_confirmed == len(PAYLOADS) - 1
        assert reader.read(0, reader.last_add_confirmed) == PAYLOADS
    assert client.ledger_metadata(ledger_id).custom["judge"] == b"java"


def test_java_reads_what_was_recovered_here(client: BookKeeper, apache_cluster: LocalCluster, java_client: JavaClient) -> None:
    crashed = java_client.write(apache_cluster, PAYLOADS, crash=True, protocol=client.config.protocol)
    client.recover_ledger(crashed.ledger_id).close()
    seen = java_client.read(apache_cluster, crashed.ledger_id, protocol=client.config.protocol)
    assert seen.closed
    assert list(seen.payloads) == PAYLOADS
