"""``client.ledgers()`` and ``client.ledger(7)``: what they read, when, and what other libraries get of it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars
import pytest

from bk_core.client import BookKeeper, connect
from bk_core.client.exploring import ledgers as exploring
from bk_core.client.exploring.copies import fragments_of
from bk_core.config import ClientConfig
from bk_core.errors import ArgumentTypeError, InvalidArgumentError, MetadataFormatError, NoSuchLedgerError, NoSuchLogError
from bk_core.metadata.memory import MemoryStore
from bk_core.metadata.store import Versioned
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState

A, B, C, D = (f"10.0.0.{n}:3181" for n in range(1, 5))
TOGETHER = 64
BORN_MS = 1_700_000_000_000


class CountingStore(MemoryStore):
    """Keeps the ids of each request for metadata, and holds them back until it is told to go on."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.asked: list[list[int]] = []
        self.answers = threading.Event()
        self.answers.set()

    def read_ledgers(self, ledger_ids: Iterable[int]) -> Iterator[tuple[int, Versioned | None]]:
        left = iter(ledger_ids)
        while together := list(islice(left, TOGETHER)):
            self.answers.wait()
            self.asked.append(together)
            yield from super().read_ledgers(together)

    @property
    def count(self) -> int:
        return sum(map(len, self.asked))


def born(number: int) -> datetime:
    return datetime.fromtimestamp(BORN_MS / 1000, UTC) + timedelta(seconds=number)


def stored(number: int) -> LedgerMetadata:
    """Every third ledger is OPEN, the others have ``number`` entries of 10 bytes; even ones were made for the log web."""
    closed = number % 3 != 0
    fragments = (Fragment(0, (A, B, C)), Fragment(4, (D, B, C))) if number > 5 else (Fragment(0, (A, B, C)),)
    return LedgerMetadata(
        3, 2, 2, LedgerState.CLOSED if closed else LedgerState.OPEN, fragments, number - 1 if closed else -1, 10 * number if closed else 0,
        custom=MappingProxyType({} if number % 2 else {"log": b"web"}), ctime_ms=BORN_MS + number * 1000,
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CountingStore]:
    with closing(CountingStore(tmp_path.name)) as store:
        store.initialize_cluster()
        for bookie in (A, B, C):
            store.register_bookie(bookie, "127.0.0.1", 3181)
        for number in range(300):
            store.create_ledger(number, metadata_codec.encode(stored(number)))
        yield store


@pytest.fixture
def client(store: CountingStore) -> Iterator[BookKeeper]:
    with BookKeeper(ClientConfig("memory://x"), store) as client:
        yield client


def ids(table: Any) -> list[int]:
    return [ledger.ledger_id for ledger in table]


def test_a_table_is_read_when_it_is_asked_for_and_many_ledgers_at_a_time(client: BookKeeper, store: CountingStore) -> None:
    table = client.ledgers(state="CLOSED").where(bookie=D)
    assert not store.asked and "state CLOSED" in repr(table) and not store.asked
    assert ids(table) == [number for number in range(300) if number % 3 and number > 5]
    assert store.count == 300 and len(store.asked) < 10
    first = iter(table)
    assert next(first).ledger_id == 7 and store.count < 300 + 70  # memory holds those that were read together
    assert ids(table) == ids(table)  # each iteration reads anew


def test_conditions_on_ids_spare_the_reading_of_metadata(client: BookKeeper, store: CountingStore) -> None:
    assert ids(client.ledgers(first_id=10, last_id=14)) == [10, 11, 12, 13, 14] and store.count == 5
    assert ids(client.ledgers(ids=[3, 299, 1000]).where(first_id=4)) == [299] and store.count == 7
    assert ids(client.ledgers(limit=3)) == [0, 1, 2] and store.count == 10
    assert client.ledgers().count() == 300 and client.ledgers(last_id=9).limit(4).count() == 4 and store.count == 10
    assert client.ledgers(ids=[1, 1000]).count() == 1
    assert ids(client.ledgers(limit=0)) == [] == ids(client.ledgers(ids=[]))


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({"state": LedgerState.OPEN}, lambda n: n % 3 == 0),
        ({"state": ["open", "IN_RECOVERY"]}, lambda n: n % 3 == 0),
        ({"bookie": [A, "nobody:1"], "first_id": 3}, lambda n: n >= 3),
        ({"log": "web"}, lambda n: n % 2 == 0),
        ({"min_length": 100, "max_length": 200}, lambda n: n % 3 and 10 <= n <= 20),
        (
            {"created_after": born(5), "created_before": born(9)},
            lambda n: 5 <= n < 9,
        ),
    ],
    ids=["state", "states", "bookie", "log", "length", "created"],
)  # fmt: skip
def test_each_condition_keeps_what_it_says(client: BookKeeper, filters: dict[str, Any], wanted: Any) -> None:
    assert ids(client.ledgers(**filters)) == [number for number in range(300) if wanted(number)]


def test_a_limit_counts_what_meets_all_conditions(client: BookKeeper, store: CountingStore) -> None:
    table = client.ledgers(limit=2).where(lambda ledger: len(ledger.fragments) > 1, state="OPEN")
    assert ids(table) == [6, 9] and store.count < 100
    assert [ledger.ledger_id for ledger in client.ledgers().head(2)] == [0, 1]


def test_the_ledgers_that_a_log_lists(uri: str) -> None:
    with connect(uri) as client:
        client.await_bookies(3, 3)
        log = client.create_log("orders")
        assert ids(client.ledgers(listed_by="orders")) == []
        with log.writer() as writer:
            for number in range(3):
                writer.append(b"%d" % number)
                writer.roll()
        with client.create_ledger() as other:
            other.append(b"x")
        listed = sorted({segment.ledger_id for segment in log.segments()})
        assert len(listed) >= 3 and ids(client.ledgers(listed_by="orders")) == listed
        assert ids(client.ledgers(listed_by="orders", first_id=listed[1])) == listed[1:] and ids(client.ledgers(log="orders")) == listed
        assert other.ledger_id in ids(client.ledgers())
        with pytest.raises(NoSuchLogError):
            ids(client.ledgers(listed_by="nobody"))


def test_what_cannot_be_asked_is_said_before_anything_is_read(client: BookKeeper, store: CountingStore) -> None:
    with pytest.raises(InvalidArgumentError, match="filtered by 'statee'; did you mean 'state'"):
        client.ledgers(statee="OPEN")  # type: ignore[call-arg]
    with pytest.raises(InvalidArgumentError, match="state 'OPNE'; did you mean 'OPEN'"):
        client.ledgers(state="opne")
    with pytest.raises(InvalidArgumentError, match="names no time zone"):
        client.ledgers(created_after=datetime(2024, 1, 1))
    for wrong in ({"ids": 3}, {"bookie": 3}, {"log": b"web"}, {"created_before": 3}, {"first_id": "3"}):
        with pytest.raises(ArgumentTypeError):
            client.ledgers(**wrong)
    with pytest.raises(ArgumentTypeError):
        client.ledgers().where("state")  # type: ignore[arg-type]
    assert not store.asked


def test_other_libraries_get_the_same_rows(client: BookKeeper) -> None:
    table = client.ledgers(last_id=7)
    rows = table.to_pylist()
    assert table.to_arrow().to_pylist() == rows and list(rows[0]) == list(table.columns)
    assert rows[7] == {
        "ledgerId": 7, "state": "CLOSED", "ensembleSize": 3, "writeQuorumSize": 2, "ackQuorumSize": 2, "digestType": "CRC32C",
        "passwordProtected": False, "guaranteed": False, "lastEntryId": 6, "length": 70, "storedBytes": client.ledger(7).stored_bytes,
        "fragments": 2, "bookies": [A, B, C, D], "createdAt": born(7), "log": None, "problem": None,
    }  # fmt: skip
    frame = table.to_pandas()
    assert frame["lastEntryId"].dtype == "Int64" and frame["lastEntryId"].tolist()[7] == 6 and frame["ledgerId"].dtype == "Int64"
    assert polars.DataFrame(table)["ledgerId"].to_list() == list(range(8))


def test_a_limit_of_any_size_is_one(client: BookKeeper) -> None:
    assert len(list(client.ledgers(limit=10**30))) == 300 == client.ledgers().limit(10**30).count()
    assert len(client.ledgers().head(2**63)) == 300


def test_the_ledgers_are_told_beside_one_whose_numbers_no_column_holds(client: BookKeeper, store: CountingStore) -> None:
    damaged = LedgerMetadata(3, 3, 2, LedgerState.CLOSED, (Fragment(0, (A, B, C)),), 2**62, 10)
    store.create_ledger(500, metadata_codec.encode(damaged))
    frame = client.ledgers(first_id=299).to_pandas()
    assert frame["ledgerId"].tolist() == [299, 500] and frame["lastEntryId"].tolist() == [298, 2**62]
    assert frame["storedBytes"].isna().tolist() == [False, True]
    assert client.ledgers(first_id=299).copies().to_arrow()["entries"].to_pylist()[-1] == 2**62 + 1


def test_copies_add_up_to_what_is_stored(client: BookKeeper) -> None:
    rows = client.ledgers(ids=[7, 299, 9]).copies().to_pylist()
    of_7 = [row for row in rows if row["ledgerId"] == 7]
    assert [(row["fragment"], row["bookie"], row["entries"]) for row in of_7] == [
        (0, A, 3), (0, B, 3), (0, C, 2), (1, D, 2), (1, B, 2), (1, C, 2),
    ]  # fmt: skip
    assert sum(row["entries"] for row in rows if row["ledgerId"] == 299) == 299 * 2
    of_9 = [row for row in rows if row["ledgerId"] == 9]
    assert [row["lastEntryId"] for row in of_9] == [3, 3, 3, None, None, None] and of_9[-1]["entries"] is None
    stored_bytes = client.ledger(7).stored_bytes
    assert stored_bytes is not None and 0 <= stored_bytes - sum(row["bytes"] for row in of_7) < 6
    frame = client.ledgers().copies().to_pandas()
    assert set(frame["bookie"]) == {A, B, C, D}


def test_live_copies_are_those_of_the_entry_that_has_the_fewest() -> None:
    first, second = fragments_of(stored(8))
    assert first.live_copies({B, C}) == (1, 2) and second.live_copies({A, B, C, D}) == (2, 2) and first.live_copies(()) == (0, 0)
    short = LedgerMetadata(3, 2, 2, LedgerState.CLOSED, (Fragment(0, (A, B, C)), Fragment(1, (D, B, C))), 0, 10)
    first, behind = fragments_of(short)  # one entry, on A and B alone, and a fragment behind the end
    assert first.live_copies({A, C}) == (1, 1) and behind.entries == 0 and behind.last_entry_id == 0


def test_a_ledger_is_an_object(client: BookKeeper, store: CountingStore) -> None:
    ledger = client.ledger(7)
    assert (ledger.state, ledger.last_entry_id, ledger.length, ledger.log) == ("CLOSED", 6, 70, None)
    assert ledger.bookies == (A, B, C, D) and ledger.dead_bookies == (D,) and client.ledger(8).log == "web"
    assert repr(ledger) == "<Ledger 7 CLOSED, 2 fragments, last entry 6, 70 bytes>"
    shown = ledger._repr_html_()
    assert "1 to 2 of 2" in shown and "2 of 2" in shown and "ledger" in shown
    store.write_ledger(9, metadata_codec.encode(stored(9).closed(20, 200)), 0)
    assert client.ledger(9).refresh().last_entry_id == 20
    with pytest.raises(NoSuchLedgerError):
        client.ledger(1000)


def test_a_ledger_that_cannot_be_understood_spoils_nothing(client: BookKeeper, store: CountingStore) -> None:
    store.create_ledger(400, b"\x00nonsense")
    found = client.ledgers(first_id=299).to_pylist()
    assert [row["state"] for row in found] == ["CLOSED", "UNREADABLE"] and found[1]["problem"] and found[1]["lastEntryId"] is None
    bad = client.ledger(400)
    assert bad.fragments == () and bad.bookies == () and bad.problem is not None and bad.problem in bad._repr_html_().replace("&#x27;", "'")
    with pytest.raises(MetadataFormatError):
        _ = bad.metadata
    assert ids(client.ledgers(state="UNREADABLE")) == [400] and ids(client.ledgers(first_id=300, min_length=0)) == []
    assert "UNREADABLE" in client.ledgers(first_id=299)._repr_html_()


def test_a_ledger_that_is_deleted_meanwhile_is_left_out(client: BookKeeper, store: CountingStore) -> None:
    reading = iter(client.ledgers())
    next(reading)
    store.delete_ledger(200)
    assert 200 not in [ledger.ledger_id for ledger in reading]


def test_a_notebook_shows_the_first_rows_and_says_that_there_are_more(client: BookKeeper, store: CountingStore) -> None:
    shown = client.ledgers()._repr_html_()
    assert "only the first 20 are shown" in shown and shown.count("<tr>") == 21 and store.count < 100
    assert "7 ledgers" in client.ledgers(last_id=6)._repr_html_()


def test_a_notebook_waits_for_no_big_or_dead_cluster(client: BookKeeper, store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploring, "SHOWN_WITHIN_S", 0.0)  # as if the time were over after the first ledger
    assert "only the first 1 ledger were" in client.ledgers(bookie="nobody:1")._repr_html_()
    monkeypatch.undo()
    monkeypatch.setattr("bk_core.client.showing.SHOWN_S", 0.05)
    store.answers.clear()
    try:
        assert "did not answer" in client.ledgers()._repr_html_()
    finally:
        store.answers.set()


def test_progress_is_told(client: BookKeeper, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(exploring, "TELL_S", 0.0)
    told: list[int] = []
    assert len(ids(client.ledgers(progress=told.append))) == 300 and told == sorted(told) and told[-1] == 300
    assert client.ledgers(state="OPEN", progress=True).count() == 100
    assert "300 ledgers read\n" in capsys.readouterr().err
