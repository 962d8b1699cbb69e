"""The question if bookies admit this client (RR-19): who is asked, and what is told of those that do not answer any more."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bk_core
from bk_core.bookie.door import Door
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.client.doctor import admission
from bk_core.client.doctor.admission import check_admitted, refusal_told
from bk_core.client.doctor.probe import NOT_ADMITTED, BookieProbe
from bk_core.config import ClientConfig
from bk_core.errors import BookieAuthError, BookieSecurityError
from bk_core.metadata import open_store
from bk_core.metadata.store import BookieView


@dataclass
class World:
    """A client without a password, two bookies that ask for one, and one that does not."""

    client: bk_core.BookKeeper
    refusing: list[EmbeddedBookie]
    open: EmbeddedBookie


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The bookies that refuse are asked first, one at a time."""
    (tmp_path / "users").write_text("ann:moss-3310\n")
    uri = f"memory://{tmp_path.name}"
    with ExitStack() as stack:
        store = open_store(uri)
        stack.callback(store.close)
        store.initialize_cluster()
        asks = BookieOptions(door=Door(users_file=str(tmp_path / "users")))

        def bookie(index: int, options: BookieOptions) -> EmbeddedBookie:
            return stack.enter_context(EmbeddedBookie(tmp_path / str(index), "127.0.0.1", 0, store, options))

        refusing = [bookie(0, asks), bookie(1, asks)]
        there = bookie(2, BookieOptions())
        order = [*(one.bookie_id for one in refusing), there.bookie_id]

        def shuffle(bookies: list[Any]) -> None:
            bookies.sort(key=order.index)

        monkeypatch.setattr(random, "shuffle", shuffle)
        monkeypatch.setattr(admission, "ASKED_MAX", 1)
        yield World(stack.enter_context(bk_core.connect(uri)), refusing, there)


def test_the_others_are_asked_before_a_client_is_refused(world: World) -> None:
    check_admitted(world.client, "auto-recovery")
    world.open.close()
    with pytest.raises(BookieAuthError, match="auto-recovery does not begin: 2 of 2 bookies do not admit this client"):
        check_admitted(world.client, "auto-recovery")
    for bookie in world.refusing:
        bookie.close()
    check_admitted(world.client, "auto-recovery")  # there is no bookie, so none refuses


def test_a_bookie_that_is_down_admits_nobody(world: World) -> None:
    first, second = (bookie.bookie_id for bookie in world.refusing)
    assert "2 bookies do not admit this client (" in refusal_told(world.client, {first, second})
    assert refusal_told(world.client, {world.open.bookie_id}) == "1 bookie refused this client, and admits it now: look again"
    world.open.close()
    told = refusal_told(world.client, {world.open.bookie_id})
    assert told.startswith(f"1 bookie refused this client, and {world.open.bookie_id} does not answer now (nothing listens there)")
    assert "2 bookies do not admit this client (" in refusal_told(world.client, {world.open.bookie_id, second})


def test_silent_bookies_do_not_end_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """RR-19: the first round of bookies is silent, and all that answer refuse."""
    bookies = [f"b{number}:1" for number in range(3 * admission.ASKED_MAX)]
    silent = set(bookies[: admission.ASKED_MAX])

    def probed(_client: object, asked: list[str]) -> dict[str, BookieProbe]:
        return {one: BookieProbe(one, "silent" if one in silent else NOT_ADMITTED, "no") for one in asked}

    monkeypatch.setattr(admission, "probe_bookies", probed)
    monkeypatch.setattr(random, "shuffle", lambda order: order.sort(key=lambda one: one not in silent))
    stranger: Any = SimpleNamespace(bookies=lambda: BookieView(tuple(bookies), ()), config=ClientConfig("memory://x"))
    with pytest.raises(BookieSecurityError, match="auto-recovery does not begin: 32 of 48 bookies do not admit this client"):
        check_admitted(stranger, "auto-recovery")
