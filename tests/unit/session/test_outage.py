"""The time for which an outage of the metadata store is borne, and the words about it."""

from __future__ import annotations

from bk_core.protocol.session.outage import Connection, Outage, Welcome

S = 1_000_000_000


def test_an_outage_is_borne_for_the_whole_patience_and_the_next_one_anew() -> None:
    """SES-7."""
    outage = Outage(60 * S)
    assert outage.failed(100 * S) and outage.failed(159 * S) and not outage.failed(160 * S)
    outage.answered()
    assert outage.failed(161 * S) and outage.failed(220 * S) and not outage.failed(221 * S)


def test_each_loss_and_each_return_is_said_once() -> None:
    """SES-8."""
    connection = Connection("ZooKeeper at h:1")
    assert [connection.changed(False, 0), connection.changed(True, S)] == [None, None]
    told = [connection.changed(there, at * S) for there, at in [(False, 10), (False, 11), (False, 40), (True, 42), (True, 43), (False, 50)]]
    assert told == [told[0], None, None, "connected to ZooKeeper at h:1 again after 32.0 s", None, told[0]]
    assert told[0] is not None and told[0].startswith("no connection to ZooKeeper at h:1; ")


def test_each_new_connection_waits_longer_until_one_is_answered() -> None:
    """SES-12."""
    welcome = Welcome(1.0)
    waited = []
    for _ in range(5):
        waited.append(welcome.waits_s(10.0))
        welcome.missed()
    assert waited == [1.0, 2.0, 4.0, 8.0, 10.0]
    welcome.came()
    assert (welcome.waits_s(10.0), welcome.waits_s(0.5)) == (1.0, 0.5)
