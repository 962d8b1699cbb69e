"""What a write handle promises about buffers, order and bad input, against bookies on sockets in this process."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.errors import ClientClosedError, InvalidArgumentError
from bk_core.metadata import open_store
from bk_core.protocol.limits import Limits


@pytest.fixture
def uri(tmp_path: Path) -> Iterator[str]:
    address = f"memory://{tmp_path.name}"
    store = open_store(address)
    store.initialize_cluster()
    bookies = [EmbeddedBookie(tmp_path / str(i), "127.0.0.1", 0, store).start() for i in range(3)]
    yield address
    for bookie in bookies:
        bookie.close()
    store.close()


def test_flush_waits_for_empty_payloads_too(uri: str) -> None:
    with bk_core.connect(uri) as bk, bk.create_ledger() as ledger:
        pending = [ledger.append_future(b"") for _ in range(200)]
        ledger.flush()
        assert all(f.done() for f in pending)
        assert ledger.last_add_confirmed == 199


def test_a_buffer_may_be_reused_as_soon_as_append_returns(uri: str) -> None:
    with bk_core.connect(uri) as bk:
        with bk.create_ledger() as ledger:
            buffer, offsets = bytearray(b"first"), array("q", (0, 5))
            done = ledger.append_run(buffer, offsets)
            buffer[:], offsets[1] = b"wrong", 1
            done.result(30)
        with bk.open_ledger(ledger.ledger_id) as reader:
            assert reader.read(0, 0) == [b"first"]


@pytest.mark.parametrize("offsets", [(0,), (0, 3, 2), (-1, 3), (0, 9)])
def test_offsets_that_make_no_sense_are_refused_before_anything_is_sent(uri: str, offsets: tuple[int, ...]) -> None:
    with bk_core.connect(uri) as bk, bk.create_ledger() as ledger:
        with pytest.raises(InvalidArgumentError):
            ledger.append_run(b"abcdef", array("q", offsets))
        assert ledger.append(b"fine") == 0


def test_runs_of_several_threads_stay_whole_under_back_pressure(uri: str) -> None:
    """A run longer than what may be in flight goes in pieces; nobody else's entries come between them."""
    count = 3000
    with bk_core.connect(uri, limits=Limits(unretired_entries_max=1500)) as bk:
        with bk.create_ledger() as ledger, ThreadPoolExecutor(4) as threads:

            def run(letter: bytes) -> int:
                return ledger.append_run(letter * count, array("q", range(count + 1))).result(60)

            ends = sorted(threads.map(run, (b"a", b"b", b"c", b"d")))
        assert ends == [count * (i + 1) - 1 for i in range(4)]
        with bk.open_ledger(ledger.ledger_id) as reader:
            written = b"".join(reader.read(0, ends[-1]))
    assert sorted({written[i : i + count] for i in range(0, 4 * count, count)}) == [c * count for c in (b"a", b"b", b"c", b"d")]


def test_an_append_to_a_closed_handle_says_so(uri: str) -> None:
    with bk_core.connect(uri) as bk:
        ledger = bk.create_ledger()
        ledger.close()
        with pytest.raises(ClientClosedError):
            ledger.append(b"late")
