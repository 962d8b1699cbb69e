"""Messages of file stores in the words of checkpoints. Each comes from the code that tells it: one that is worded otherwise fails here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

import bk_core
from bk_core.client.files.reading import ContentReader
from bk_core.client.files.store import FileStore
from bk_core.client.files.upkeep import own_file_store
from bk_core.client.files.words import insisted_by, of_checkpoint
from bk_core.client.log.check import release_log
from bk_core.errors import BkError, FileStoreError, LogWriterAliveError, insisting
from bk_core.protocol.files.content import Extent
from bk_spark.checkpoint.answers import refusal
from bk_spark.checkpoint.location import _with_its_name


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
        text = str(of_checkpoint(raised.value, "other" if which == "closed" else "q", password=b"", password_given_by="", flags=flags))
        assert said in text and told.said not in text


ODD = "/my file stores/file store 'q'/log 'files.q'/even_if_alive=True (--even-if-alive)"  # the words that are replaced, as a user's own


@pytest.mark.parametrize("path", [ODD, f'{ODD} "x" ', f"{ODD}/{'y' * 250}"])
def test_a_path_of_the_user_stays_as_it_was_given(client: bk_core.BookKeeper, path: str) -> None:
    """Errors of every call of a store, of the machine below it, and those of too long a wait."""
    with FileStore.open(client, "paths", take_over=True) as store:
        store.mkdirs("/full/of")
        store.put("/a", b"")
        store.put(f"{ODD} a file", b"", parents=True)
        late = {"timeout_s": 0.0}
        calls: dict[str, Callable[[], object]] = {
            "read": lambda: store.read(path),
            "list": lambda: store.listing(path),
            "put": lambda: store.put(path, b"", parents=False),
            "put below a file": lambda: store.put(f"/a{path}", b"", parents=True),
            "rename": lambda: store.rename(path, "/b"),
            "rename into itself": lambda: store.rename("/full", f"/full{path}"),
            "rename to nowhere": lambda: store.rename("/full", path),
            "rename a file to a directory": lambda: store.rename(f"{ODD} a file", "/full", overwrite=True),
            "replace": lambda: store.replace_all(path),
            "no path": lambda: store.put(f"{path}/../x", b""),
            "no path either": lambda: store.put(f"{path}//", b""),
            "late put": lambda: store.put(path, b"", **late),
            "late folder": lambda: store.mkdirs(path, **late),
            "late rename": lambda: store.rename("/a", path, **late),
            "late deletion": lambda: store.delete(path, recursive=True, **late),
            "late replacement": lambda: store.replace_all(path, **late),
        }
        told = 0
        for call in calls.values():
            try:
                call()
            except BkError as error:
                told += 1
                for flags in (False, True):
                    assert of_checkpoint(error, "q", password=b"", password_given_by="", flags=flags).args == error.args
        assert told >= 10  # some of the late ones may have been in time


def test_a_store_is_named_anew_beside_a_path_that_reads_alike() -> None:
    error = FileStoreError("'/my file stores/x' does not exist in file store 'c'", path="/my file stores/x", store="c")
    told = of_checkpoint(error, "c", password=b"", password_given_by="", flags=True)
    assert told.args[0] == "'/my file stores/x' does not exist in checkpoint 'c'"


def test_an_error_that_speaks_of_a_checkpoint_is_left_as_it_is() -> None:
    error = FileStoreError("/a/file store 'c' was changed", checkpoint="c")
    assert of_checkpoint(error, "c", password=b"", password_given_by="", flags=True).args == error.args


def test_an_error_that_names_the_checkpoint_says_so_in_its_context() -> None:
    """Whoever tells it puts the name before it otherwise."""

    def told(text: str, **context: str) -> BkError:
        return of_checkpoint(FileStoreError(text, **context), "c", password=b"", password_given_by="", flags=True)

    assert told("file store 'c' is closed").context == {"checkpoint": "c"}
    assert told("the path 'c' is away", path="'c'").context == {"path": "'c'"}
    assert "checkpoint 'c' cannot be opened" in str(_with_its_name(told("the path 'c' is away"), "c"))
    assert "cannot be opened" not in str(_with_its_name(told("file store 'c' is closed"), "c"))
    assert str(refusal(FileStoreError("'c' is away"), "c")).endswith("'c' is away (checkpoint 'c')")


def test_how_to_insist_is_told_in_the_words_of_the_caller(client: bk_core.BookKeeper) -> None:
    with pytest.raises(LogWriterAliveError, match="fence it: even_if_alive=True") as raised:
        own_file_store(client, "q")
    both = "{} ({})".format(*insisting(raised.value.context["insist"]))
    assert raised.value.args[0].endswith(both)
    assert insisted_by(raised.value, "take_over=True").args[0] == raised.value.args[0].replace(both, "take_over=True")
    other = FileStoreError(f"a text of somebody else's that ends with {both}")
    assert insisted_by(other, "take_over=True") is other
