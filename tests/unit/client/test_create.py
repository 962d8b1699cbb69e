"""Creating ledgers over a store that loses answers, and beside others who create the same ones (replication-protocol.md section 2)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

import bk_core
from bk_core.client.client import BookKeeper
from bk_core.errors import (
    InvalidArgumentError,
    LedgerExistsError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
)
from bk_core.metadata import Version
from bk_core.metadata.memory import MemoryStore
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import Status

E, QW, QA = 3, 2, 2


class Dies(Exception):
    """The process ends here."""


class LossyStore(MemoryStore):
    """``script``: what becomes of each create in turn; afterwards all goes well.

    "applied": done, but the answer is lost. "lost": never done, and nobody knows. "away": not even sent. "foreign": another client has
    created the same id just before. "dies before", "dies after": the process ends around the request. "deleted": done, the answer
    lost, and deleted by somebody before the next request. "fenced": done, the answer lost, and taken into recovery by somebody.
    """

    def __init__(self) -> None:
        super().__init__(uuid.uuid4().hex)
        self.script: list[str] = []
        self.requests: list[tuple[int, bytes]] = []
        self.deleted_before_read: int | None = None
        self.foreign_format = 3

    def create_ledger(self, ledger_id: int, data: bytes) -> Version:
        self.requests.append((ledger_id, bytes(data)))
        match self.script.pop(0) if self.script else "":
            case "away":
                raise MetadataUnavailableError("no connection")
            case "lost":
                raise MetadataOutcomeUnknownError("the answer was lost")
            case "applied":
                super().create_ledger(ledger_id, data)
                raise MetadataOutcomeUnknownError("the answer was lost")
            case "fenced":
                version = super().create_ledger(ledger_id, data)
                self.write_ledger(ledger_id, metadata_codec.encode(metadata_codec.decode(data).in_recovery()), version)
                raise MetadataOutcomeUnknownError("the answer was lost")
            case "foreign":
                super().create_ledger(ledger_id, self._foreign(data))
            case "deleted":
                super().create_ledger(ledger_id, data)
                self.deleted_before_read = ledger_id
            case "dies before":
                raise Dies
            case "dies after":
                super().create_ledger(ledger_id, data)
                raise Dies
        return super().create_ledger(ledger_id, data)

    def read_ledger(self, ledger_id: int) -> bk_core.metadata.Versioned:
        if self.deleted_before_read == ledger_id:
            self.delete_ledger(ledger_id)
        return super().read_ledger(ledger_id)

    def _foreign(self, data: bytes) -> bytes:
        if self.foreign_format == 0:
            return b"from the future"
        other = replace(metadata_codec.decode(data), format_version=self.foreign_format)
        return metadata_codec.encode(replace(other, creator_token=1 if self.foreign_format == 3 else None))


@pytest.fixture
def store() -> Iterator[LossyStore]:
    made = LossyStore()
    made.initialize_cluster()
    for number in range(4):
        made.register_bookie(f"b{number}", "127.0.0.1", 3181 + number)
    yield made


@pytest.fixture
def bk(store: LossyStore) -> Iterator[BookKeeper]:
    with bk_core.connect("memory://given", store=store, limits=Limits(metadata_retry_ns=1)) as client:
        yield client


def create(bk: BookKeeper, ledger_id: int | None = None) -> int:
    ledger = bk.create_ledger(ensemble_size=E, write_quorum_size=QW, ack_quorum_size=QA, ledger_id=ledger_id)
    try:
        return ledger.ledger_id
    finally:
        ledger.close()


def stored(store: MemoryStore, ledger_id: int) -> LedgerMetadata:
    return metadata_codec.decode(store.read_ledger(ledger_id).data)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ensemble_size": 2, "write_quorum_size": 3},
        {"write_quorum_size": 1},
        {"ack_quorum_size": 0},
        {"ledger_id": -1},
        {"ledger_id": 1 << 63},
        {"digest_type": "MD5"},
        {"password": "text"},
        {"ensemble_size": "3"},
        {"ledger_id": "7"},
        {"custom": {"owner": "text"}},
        {"custom": {7: b"x"}},
        {"custom": {"gwq": b"1"}},
        {"guaranteed_write_quorum": True, "deferred_sync": True},
    ],
)
def test_arguments_that_can_never_work_are_refused_before_any_request(
    bk: BookKeeper, store: LossyStore, wrong: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CR-1."""
    monkeypatch.setattr(bk._session.placement, "writable", list)  # picking would fail, and so would look at the store again
    looks: list[int] = []
    monkeypatch.setattr(store, "bookies", lambda: looks.append(1))
    arguments = {"ensemble_size": E, "write_quorum_size": QW, "ack_quorum_size": QA, **wrong}
    with pytest.raises(InvalidArgumentError):
        bk.create_ledger(**arguments)
    assert store.requests == [] and looks == []


def test_what_a_new_ledger_looks_like(bk: BookKeeper, store: LossyStore) -> None:
    """META-2, CR-2: one fragment at 0 with E distinct writable bookies, OPEN. CR-7: a handle with nothing in it."""
    with bk.create_ledger(ensemble_size=E, write_quorum_size=QW, ack_quorum_size=QA) as ledger:
        metadata = stored(store, ledger.ledger_id)
        assert metadata.state is LedgerState.OPEN
        assert [fragment.first_entry_id for fragment in metadata.fragments] == [0]
        assert len(set(metadata.fragments[0].ensemble)) == E == metadata.ensemble_size
        assert set(metadata.fragments[0].ensemble) <= {f"b{n}" for n in range(4)}
        assert ledger.last_add_confirmed == -1
        assert metadata.creator_token


def test_creating_contacts_no_bookie(bk: BookKeeper) -> None:
    """CR-6: nobody listens at the registered addresses, and no connection is even tried."""
    create(bk)
    assert bk._session._links == {}


def test_read_only_bookies_are_never_chosen_and_a_shortage_is_an_error(bk: BookKeeper, store: LossyStore) -> None:
    """CR-2."""
    store.register_bookie("ro", "127.0.0.1", 4000, readonly=True)
    for _ in range(10):
        assert "ro" not in stored(store, create(bk)).fragments[0].ensemble
    with pytest.raises(NotEnoughBookiesError, match="5 writable bookies, 4 are registered"):
        bk.create_ledger(ensemble_size=5, write_quorum_size=2, ack_quorum_size=2)


def test_opportunistic_striping_records_the_size_it_used(store: LossyStore) -> None:
    """CR-2: E goes down to what there is, never below Qw."""
    with bk_core.connect("memory://given", store=store, opportunistic_striping=True) as bk:
        with bk.create_ledger(ensemble_size=6, write_quorum_size=3, ack_quorum_size=2) as ledger:
            metadata = stored(store, ledger.ledger_id)
        assert (metadata.ensemble_size, metadata.write_quorum_size, len(metadata.fragments[0].ensemble)) == (4, 3, 4)
        with pytest.raises(NotEnoughBookiesError):
            bk.create_ledger(ensemble_size=6, write_quorum_size=5, ack_quorum_size=2)


def test_a_deleted_ledgers_id_is_not_given_again(bk: BookKeeper) -> None:
    """CR-3: a bookie may still hold entries or a fence mark under it."""
    first = create(bk)
    bk.delete_ledger(first)
    assert create(bk) > first


@pytest.mark.parametrize("wanted", [None, 77])
@pytest.mark.parametrize("script", [["applied"], ["lost"], ["away"], ["lost", "away", "applied", "lost"]])
def test_a_lost_answer_is_repeated_with_the_same_token_until_it_is_definite(
    bk: BookKeeper, store: LossyStore, script: list[str], wanted: int | None
) -> None:
    """CR-4, META-12: the identical request; EXISTS with our token is our own earlier attempt. Exactly one ledger is made."""
    store.script = list(script)
    ledger_id = create(bk, wanted)
    assert list(store.list_ledgers()) == [ledger_id]
    assert set(store.requests) == {(ledger_id, store.requests[0][1])}
    assert len(store.requests) == len(script) + 1
    assert wanted in (None, ledger_id)


def test_a_generated_id_that_another_client_took_leads_to_another_id(bk: BookKeeper, store: LossyStore) -> None:
    """CR-4: the token differs, the id was generated: try the next; the other ledger is left alone."""
    store.script = ["foreign", "foreign"]
    ledger_id = create(bk)
    assert [number for number, _ in store.requests] == [0, 1, 2] and ledger_id == 2
    assert stored(store, 0).creator_token == 1


@pytest.mark.parametrize("script", [["foreign"], ["lost", "foreign"]])
def test_a_given_id_that_another_client_took_is_an_error(bk: BookKeeper, store: LossyStore, script: list[str]) -> None:
    """CR-4."""
    store.script = script
    with pytest.raises(LedgerExistsError) as caught:
        create(bk, 5)
    assert caught.value.context["ledger"] == 5
    assert stored(store, 5).creator_token == 1


def test_created_and_deleted_meanwhile_is_never_created_again(bk: BookKeeper, store: LossyStore) -> None:
    """CR-4: EXISTS, then the read says absent. A given id is an error; a generated one leads to another."""
    store.script = ["deleted"]
    with pytest.raises(LedgerExistsError):
        create(bk, 5)
    assert len(store.requests) == 1 and list(store.list_ledgers()) == []
    store.script = ["deleted"]
    assert list(store.list_ledgers()) == [] and create(bk) == 1
    assert list(store.list_ledgers()) == [1]


@pytest.mark.parametrize("stored_format", [2, 0])
def test_formats_without_a_token_belong_to_somebody_else(bk: BookKeeper, store: LossyStore, stored_format: int) -> None:
    """CR-5: after a lost answer too; a generated id leads to a new one, a given one is an error. 0: bytes nobody can read."""
    store.foreign_format = stored_format
    store.script = ["lost", "foreign"]
    assert create(bk) == 1
    assert list(store.list_ledgers()) == [0, 1]
    store.script = ["foreign"]
    with pytest.raises(LedgerExistsError):
        create(bk, 9)


def test_an_own_ledger_that_somebody_fenced_already_is_not_written_to(bk: BookKeeper, store: LossyStore) -> None:
    """META-11: what the handle starts from is what is stored. A ledger in recovery has no writer any more."""
    store.script = ["fenced"]
    assert create(bk) == 1
    assert stored(store, 0).state is LedgerState.IN_RECOVERY
    store.script = ["fenced"]
    with pytest.raises(LedgerExistsError):
        create(bk, 9)


@pytest.mark.parametrize(("script", "left"), [("dies before", []), ("dies after", [0])])
def test_a_client_that_dies_leaves_nothing_or_an_empty_open_ledger(bk: BookKeeper, store: LossyStore, script: str, left: list[int]) -> None:
    """CR-8."""
    store.script = [script]
    with pytest.raises(Dies):
        create(bk)
    assert list(store.list_ledgers()) == left
    for ledger_id in left:
        assert stored(store, ledger_id).state is LedgerState.OPEN
    assert bk._session._links == {}


def test_a_bookie_that_failed_is_avoided_while_there_are_others(bk: BookKeeper, store: LossyStore) -> None:
    """CR-2: first without quarantined bookies, then with them."""
    bk._session.note_answer("b2", Status.TIMEOUT)
    bk._session.note_answer("b1", Status.FENCED)  # says nothing about the bookie
    chosen = {bookie for _ in range(10) for bookie in stored(store, create(bk)).fragments[0].ensemble}
    assert chosen == {"b0", "b1", "b3"}
    with bk.create_ledger(ensemble_size=4, write_quorum_size=2, ack_quorum_size=2) as ledger:
        assert "b2" in stored(store, ledger.ledger_id).fragments[0].ensemble


def test_an_unreachable_store_is_an_error_in_the_end(store: LossyStore) -> None:
    """META-12: within the operation timeout; the error says that the outcome is open."""
    with bk_core.connect("memory://given", store=store, limits=Limits(metadata_retry_ns=1), operation_timeout_s=0.05) as bk:
        store.script = ["lost"] * 1_000_000
        with pytest.raises(MetadataOutcomeUnknownError) as caught:
            create(bk)
        assert caught.value.outcome_unknown


def test_the_time_of_creation_is_stored(bk: BookKeeper, store: LossyStore) -> None:
    """It is what the Java client stores when it is told to, and what it shows then (metadata.md 3.6)."""
    before = time.time_ns() // 1_000_000
    made = stored(store, create(bk)).ctime_ms
    assert made is not None and before <= made <= time.time_ns() // 1_000_000
