"""Messages of file stores in the words of checkpoints. Each comes from the code that tells it: one that is worded otherwise fails here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

import bk_core
from bk_core.client.files.reading import ContentReader
from bk_core.client.files.store import FileStore
from bk_core.client.files.upkeep import own_file_store
from bk_core.client.files.words import of_checkpoint
from bk_core.client.log.check import release_log
from bk_core.errors import BkError
from bk_core.protocol.files.content import Extent


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri) as client, FileStore.open(client, "q"):
        yield client


def lost(client: bk_core.BookKeeper) -> None:
    raise ContentReader(client, "files.q", b"")._lost(Extent(7, 0, 0, 1, 1), "gone")


def closed(client: bk_core.BookKeeper) -> None:
    store = FileStore.open(client, "other")
    store.close()
    store.status("/")


class Told(NamedTuple):
    raises: Callable[[bk_core.BookKeeper], object]
    said: str
    python: str
    command_line: str


BOTH = "fence it: even_if_alive=True (--even-if-alive)"
WORDS = {
    "refused": Told(lambda client: own_file_store(client, "q"), BOTH, "fence it: even_if_alive=True", "fence it: --even-if-alive"),
    "released": Told(lambda client: release_log(client, "files.q"), BOTH, "fence it: even_if_alive=True", "fence it: --even-if-alive"),
    "a store": Told(lambda client: own_file_store(client, "q"), "file store 'q' is open", *2 * ["checkpoint 'q' is open"]),
    "a log": Told(lambda client: release_log(client, "files.q"), "log 'files.q' is being", *2 * ["the log of checkpoint 'q' is being"]),
    "lost": Told(lost, "log 'files.q': the bytes", *2 * ["the log of checkpoint 'q': the bytes"]),
    "closed": Told(closed, "file store 'other' was closed", *2 * ["checkpoint 'other' was closed"]),
}


@pytest.mark.parametrize("which", WORDS)
def test_the_words_that_are_replaced_are_there(client: bk_core.BookKeeper, which: str) -> None:
    told = WORDS[which]
    with pytest.raises(BkError) as raised:
        told.raises(client)
    assert told.said in str(raised.value)
    for flags, said in ((False, told.python), (True, told.command_line)):
        text = str(of_checkpoint(raised.value, "q", password=b"", password_given_by="", flags=flags))
        assert said in text and told.said not in text
