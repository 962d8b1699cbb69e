"""A ledger whose metadata is of Apache's oldest format, on real bookies and in a real ZooKeeper: what a caller names is used (META-15)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import bk_core
from bk_core import cli
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import DigestType, LedgerState
from tests.integration.patience import PATIENT

if TYPE_CHECKING:
    from bk_core.bookie.local_cluster import LocalCluster

PAYLOADS = [b"entry %d" % n for n in range(30)]


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_a_ledger_of_format_1_is_recovered_read_and_checked(
    cluster: LocalCluster, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """META-15, OP-4, RR-4. Bookies learned the key of the password from the writer, and refuse any other one at the fence."""
    with bk_core.connect(cluster.uri, protocol=protocol, limits=PATIENT) as bk:
        writer = bk.create_ledger(ack_quorum_size=3, digest_type="MAC", password=b"secret")
        writer.append_many(PAYLOADS)
        writer.abandon()
        stored = bk.store.read_ledger(writer.ledger_id)
        old = replace(metadata_codec.decode(stored.data), format_version=1, creator_token=None, ctime_ms=None)
        old = replace(old, has_digest=False, stores_password=False, digest_type=DigestType.CRC32, password=b"")
        bk.store.write_ledger(writer.ledger_id, metadata_codec.encode(old), stored.version)
        with bk.recover_ledger(writer.ledger_id, password=b"secret", digest_type="MAC") as reader:
            assert reader.read(0, len(PAYLOADS) - 1) == PAYLOADS
        found = bk.ledger_metadata(writer.ledger_id)
        assert (found.state, found.format_version, found.last_entry_id) == (LedgerState.CLOSED, 1, len(PAYLOADS) - 1)
    command = [str(writer.ledger_id), "--digest", "MAC", "--password", "secret", "--uri", cluster.uri, "--protocol", protocol]
    assert cli.run(["ledger", "read", "--raw", *command]) == 0
    assert cli.run(["ledger", "check", "--full", *command]) == 0
    assert cli.run(["ledger", "repair", "--full", *command]) == 0
    assert cli.run(["ledger", "check", "--full", str(writer.ledger_id), "--uri", cluster.uri]) == 1
    assert "CRC32 without a password was used" in capsys.readouterr().out.replace("\n", " ")
