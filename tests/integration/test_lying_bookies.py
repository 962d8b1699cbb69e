"""One bookie of three lies, as one in the hands of somebody else may: which lies a reader and a recovery notice, and which not.

The table in docs/site/pages/guides/secrets.md says the same. Answers that are broken at random are in tests/fuzz.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core.bookie.embedded import EmbeddedBookie
from bk_core.errors import ReadError, RecoveryFailedError
from bk_core.metadata import open_store
from bk_core.protocol.entry.digests import hmac_key, master_key
from bk_core.protocol.entry.layout import decode_body, encode_body
from bk_core.protocol.ledger.metadata import DigestType, LedgerState
from bk_core.protocol.ledger.read.options import ReadOptions
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import Status
from tests.integration.embedded import peer_of
from tests.integration.patience import PATIENT

PASSWORD = b"fern-2806"
HONEST = [b"zero", b"one", b"two", b"three"]
NOTHING = object()
Lie = Callable[[Any, int, DigestType], Any]


class LyingBookie(EmbeddedBookie):
    """A bookie that answers reads with what ``lies`` has for an entry, if it has something. Its machine is that of an honest one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lies: dict[tuple[int, int], Any] = {}
        self.told = 0

    def start(self) -> LyingBookie:
        super().start()
        assert self._server is not None
        storage: Any = self._server.storage
        honest = storage.entry

        def entry(ledger_id: int, entry_id: int) -> bytes | None:
            lie = self.lies.get((ledger_id, entry_id))
            self.told += lie is not None
            return honest(ledger_id, entry_id) if lie is None else None if lie is NOTHING else lie

        storage.entry, storage.entries = entry, lambda *_: (0, b"")
        return self


class World:
    """A liar, which is the first to be read of each ledger, and ``honest`` bookies beside it."""

    def __init__(self, directory: Path, honest: int) -> None:
        self.uri = f"memory://{uuid.uuid4()}"
        self.store = open_store(self.uri)
        self.store.initialize_cluster()
        self.liar = LyingBookie(directory / "0", store=self.store).start()
        self.honest = [EmbeddedBookie(directory / str(index), store=self.store).start() for index in range(1, honest + 1)]
        self.client = bk_core.connect(self.uri, limits=PATIENT)

    def close(self) -> None:
        self.client.close()
        for bookie in (self.liar, *self.honest):
            bookie.close()
        self.store.close()

    def written(self, digest: DigestType, *, closed: bool = True, spare: int = 0) -> int:
        """Write ``HONEST`` to all bookies. ``spare``: the number of bookies whose acknowledgement the writer does not need."""
        size = 1 + len(self.honest)
        how: Any = {"ensemble_size": size, "write_quorum_size": size, "ack_quorum_size": size - spare, "digest_type": digest}
        ledger: Any = self.client.create_ledger(**how, password=PASSWORD)
        for payload in HONEST:
            ledger.append(payload)
        if closed:
            ledger.close()
        else:
            self.left = ledger  # a writer that is there no more is not closed; it ends with its client
        self._await_copies(int(ledger.ledger_id))
        return int(ledger.ledger_id)

    def _await_copies(self, ledger_id: int) -> None:
        deadline = time.monotonic() + 60
        for bookie in (self.liar, *self.honest):
            server: Any = bookie._server
            while server.storage.entry(ledger_id, len(HONEST) - 1) is None:
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def body(self, ledger_id: int, entry_id: int) -> bytes:
        assert self.honest[0]._server is not None
        found = self.honest[0]._server.storage.entry(ledger_id, entry_id)
        assert found is not None
        return bytes(found)

    def liar_first(self, ledger_id: int) -> ReadOptions:
        (fragment,) = self.client.ledger_metadata(ledger_id).fragments
        return ReadOptions(rotation=fragment.ensemble.index(self.liar.bookie_id), speculative=False)

    def read(self, ledger_id: int) -> list[bytes]:
        with self.client.open_ledger(ledger_id, password=PASSWORD, options=self.liar_first(ledger_id)) as ledger:
            return [bytes(one) for one in ledger.read(0, ledger.last_add_confirmed)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with closing(World(tmp_path_factory.mktemp("lying"), honest=2)) as made:
        yield made


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The liar has the only copy, so what it says decides, in whatever order answers come."""
    with closing(World(tmp_path_factory.mktemp("alone"), honest=0)) as made:
        yield made


def forged(ledger_id: int, entry_id: int, digest: DigestType, *, lac: int | None = None, payload: bytes = b"forged") -> bytes:
    """An entry of somebody who has all that a bookie has: the master key, but not the password, of which the key of MAC is made."""
    guess = hmac_key(master_key(PASSWORD))
    return encode_body(ledger_id, entry_id, entry_id - 1 if lac is None else lac, 99, payload, digest, guess)


LIES: dict[str, tuple[Lie, bool]] = {
    "a forged payload": (lambda world, ledger, digest: forged(ledger, 1, digest), True),
    "the entry of another ledger": (lambda world, ledger, digest: world.body(world.written(digest), 1), False),
    "another entry of the ledger": (lambda world, ledger, digest: world.body(ledger, 2), False),
    "an entry cut off": (lambda world, ledger, digest: world.body(ledger, 1)[:-1], False),
    "no such entry": (lambda world, ledger, digest: NOTHING, False),
}
"""Each lie about entry 1, and whether a reader of CRC32C believes it."""


@pytest.mark.parametrize("digest", [DigestType.CRC32C, DigestType.MAC])
@pytest.mark.parametrize("lie", LIES)
def test_what_a_reader_believes_of_one_that_lies_about_an_entry(world: World, lie: str, digest: DigestType) -> None:
    make, fools_crc = LIES[lie]
    ledger = world.written(digest)
    world.liar.lies[ledger, 1] = make(world, ledger, digest)
    world.liar.told = 0
    expected = [b"zero", b"forged", b"two", b"three"] if fools_crc and digest is DigestType.CRC32C else HONEST
    assert world.read(ledger) == expected
    assert world.liar.told, "the liar was asked"


def test_a_last_add_confirmed_that_is_too_high_is_believed_without_mac(world: World, alone: World) -> None:
    def told(by: World, digest: DigestType) -> int:
        ledger = by.written(digest, closed=False)
        by.liar.lies[ledger, 3] = forged(ledger, 3, digest, lac=1_000_000)
        with by.client.open_ledger(ledger, password=PASSWORD) as opened:
            return int(opened.read_last_add_confirmed())

    assert told(alone, DigestType.CRC32C) == 1_000_000
    assert told(world, DigestType.MAC) == 2
    with pytest.raises(ReadError, match="corrupt"):
        told(alone, DigestType.MAC)


def test_an_old_last_add_confirmed_hides_nothing(world: World) -> None:
    """No digest can tell that an entry is old. The highest answer counts, of two at least where two of three acknowledge, so an honest one
    is among them. Where all three acknowledge the first answer counts, whoever gives it."""
    ledger = world.written(DigestType.MAC, closed=False, spare=1)
    world.liar.lies[ledger, 3] = world.body(ledger, 0)
    with world.client.open_ledger(ledger, password=PASSWORD) as opened:
        assert opened.read_last_add_confirmed() == 2


def with_one_more(world: World, digest: DigestType) -> int:
    """A ledger without an end, to which the liar has added an entry of its own."""
    ledger = world.written(digest, closed=False)
    with peer_of(world.liar) as peer:
        request = m.AddRequest(1, ledger, 4, master_key(PASSWORD), forged(ledger, 4, digest, lac=3))
        assert peer.ask(request).status is Status.OK
    return ledger


def test_a_recovery_keeps_an_entry_that_nobody_wrote_without_mac(world: World, alone: World) -> None:
    for by, digest, more in ((alone, DigestType.CRC32C, [b"forged"]), (world, DigestType.MAC, [])):
        ledger = with_one_more(by, digest)
        by.client.recover_ledger(ledger, password=PASSWORD).close()
        assert by.read(ledger) == [*HONEST, *more]
    ledger = with_one_more(alone, DigestType.MAC)
    with pytest.raises(RecoveryFailedError):
        alone.client.recover_ledger(ledger, password=PASSWORD)
    assert alone.client.ledger_metadata(ledger).state is not LedgerState.CLOSED, "nobody has said where it ends"


def test_a_recovery_loses_nothing_to_one_that_denies_what_it_has(world: World) -> None:
    """The end is where so many deny an entry that it cannot have been acknowledged: two of three, where two acknowledge. Where three must,
    one is enough, and what the liar denies may be lost."""
    ledger = world.written(DigestType.MAC, closed=False, spare=1)
    for entry_id in range(4):
        world.liar.lies[ledger, entry_id] = NOTHING
    with world.client.recover_ledger(ledger, password=PASSWORD) as ended:
        assert ended.last_add_confirmed == 3
    assert world.read(ledger) == HONEST


def test_who_acknowledges_and_keeps_nothing_is_found_by_a_check(world: World) -> None:
    ledger = world.written(DigestType.MAC)
    for entry_id in range(4):
        world.liar.lies[ledger, entry_id] = NOTHING
    report = world.client.check_ledger(ledger, password=PASSWORD)
    assert not report.is_good
    assert world.liar.bookie_id in repr(report.fragments)


def test_a_mac_without_a_password_is_anybodys(world: World) -> None:
    """The key of MAC is made of the password alone, and everybody knows the empty one."""
    body = encode_body(7, 0, -1, 6, b"forged", DigestType.MAC, hmac_key(b""))
    assert decode_body(body, 7, 0, DigestType.MAC, hmac_key(b"")).payload == b"forged"
