"""The records of the ZooKeeper client show no secret, at whatever level."""

from __future__ import annotations

import logging

import pytest

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.metadata.zookeeper.logging import NAME

PASSWORD = b"the-password-of-a-ledger"


@pytest.mark.parametrize("cluster", ["embedded"], indirect=True)
@pytest.mark.parametrize("level", [logging.DEBUG, 1])
def test_no_level_shows_the_password_of_a_ledger(cluster: LocalCluster, caplog: pytest.LogCaptureFixture, level: int) -> None:
    """Apache's metadata has it in clear, and kazoo's records had all that is read and written."""
    caplog.set_level(level, NAME)
    with bk_core.connect(cluster.uri) as client:
        with client.create_ledger(password=PASSWORD) as ledger:
            ledger.append(b"x")
        with client.open_ledger(ledger.ledger_id, password=PASSWORD) as found:
            assert found.read(0, 0) == [b"x"]
    told = [record.getMessage() for record in caplog.records if record.name == NAME]
    assert any(line.startswith("Sending request") for line in told)
    assert not [line for line in told if PASSWORD.decode() in line]
    assert min(record.levelno for record in caplog.records if record.name == NAME) >= logging.DEBUG
