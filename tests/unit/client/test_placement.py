"""Placement at work: a ledger over racks, a bookie of it dies, and its rack stays represented."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import bk_core
from bk_core.bookie.embedded import EmbeddedBookie
from bk_core.metadata import open_store


@pytest.fixture
def bookies(tmp_path: Path) -> Iterator[dict[str, EmbeddedBookie]]:
    """Four bookies by id."""
    store = open_store(f"memory://{tmp_path.name}")
    store.initialize_cluster()
    started = [EmbeddedBookie(tmp_path / str(number), "127.0.0.1", 0, store).start() for number in range(4)]
    running = {bookie.bookie_id: bookie for bookie in started}
    yield running
    for bookie in running.values():
        bookie.close()
    store.close()


def test_a_dead_bookie_is_replaced_from_its_rack_and_stays_in_quarantine(bookies: dict[str, EmbeddedBookie], tmp_path: Path) -> None:
    """EC-6, CR-2: same rack first; and the dead one, even registered again, is not chosen while there are others."""
    racks = {bookie: f"/rack{number % 2}" for number, bookie in enumerate(bookies)}
    with bk_core.connect(f"memory://{tmp_path.name}", placement="rack-aware", racks=racks, quarantine_s=600.0) as bk:
        with bk.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2) as ledger:
            ledger.append(b"first")
            dead, other = bk.ledger_metadata(ledger.ledger_id).last_fragment.ensemble
            assert racks[dead] != racks[other]
            bookies[dead].close()
            ledger.append(b"second")
            after = bk.ledger_metadata(ledger.ledger_id).last_fragment.ensemble
        assert after[1] == other and after[0] != dead and racks[after[0]] == racks[dead]
        with bk.open_ledger(ledger.ledger_id) as reader:
            assert reader.read(0, 1) == [b"first", b"second"]
        host, port = dead.rsplit(":", 1)
        registration = bk.store.register_bookie(dead, host, int(port))
        bk._session.refresh_bookies()
        assert dead in bk.bookies().writable
        for _ in range(10):
            with bk.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2) as ledger:
                assert dead not in bk.ledger_metadata(ledger.ledger_id).last_fragment.ensemble
        registration.close()
