"""``bk ledger``: what lies beyond the end, and files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

import bk_core
from tests.unit.bk_core.conftest import Bk


@pytest.fixture
def ledgers(client: bk_core.BookKeeper) -> tuple[int, int, int]:
    """A ledger of two entries that is closed, one that is open, and one without entries."""
    with client.create_ledger() as closed:
        closed.append_many([b"one", b"two"])
    opened = client.create_ledger()
    opened.append_many([b"one", b"two"])
    client.create_ledger().close()
    return closed.ledger_id, opened.ledger_id, opened.ledger_id + 1


def test_a_look_that_begins_beyond_the_end_is_an_error(
    bk: Bk, client: bk_core.BookKeeper, ledgers: tuple[int, int, int], tmp_path: Path
) -> None:
    """It looked at nothing, which is no reason to call a ledger good."""
    two = client.bookies().writable[:2]
    for ledger_id in ledgers:
        for words in (("xray", str(ledger_id)), ("diff", str(ledger_id), *two), ("export", str(ledger_id), tmp_path / f"{ledger_id}.bin")):
            assert bk(*words, "--first", "2", status=1, group="ledger") == ""
            assert f"error: [BK-ARGUMENT] first entry 2 lies beyond the end of ledger {ledger_id}: " in bk.err
            bk(*words, group="ledger")
    assert bk.json("xray", str(ledgers[0]), "--first", "1", group="ledger")[0]["copies"] == 3
    assert sorted(one.name for one in tmp_path.glob("*.bin")) == sorted(f"{ledger_id}.bin" for ledger_id in ledgers)  # of the second words
    bk("xray", str(ledgers[0]), "--first", "2", status=1, group="ledger")
    assert "its last entry is 1, as far as is known" in bk.err


def test_the_last_no_entries_are_none_and_nothing_lies_beyond(bk: Bk, ledgers: tuple[int, int, int]) -> None:
    for ledger_id in ledgers:
        assert bk("tail", str(ledger_id), "-n", "0", group="ledger") == ""
        assert "beyond" not in bk.err


def test_a_mistyped_id_is_told_before_anything_is_deleted(bk: Bk, client: bk_core.BookKeeper, ledgers: tuple[int, int, int]) -> None:
    ids = [str(one) for one in ledgers]
    bk("rm", ids[0], "999", *ids[1:], "--yes", status=1, group="ledger")
    assert set(ledgers) <= set(client.list_ledgers())
    bk("rm", ids[0], *ids, "--yes", group="ledger")
    assert not set(ledgers) & set(client.list_ledgers())
