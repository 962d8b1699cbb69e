"""The payloads that can be appended, and the mistakes: the same on ledgers and logs, blocking and awaited, over bookies on sockets."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import bk_core
from bk_core import aio
from bk_core.client.payloads import PayloadCheck, Payloads, payload_bytes_max
from bk_core.errors import ArgumentTypeError, InvalidArgumentError
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.protocol.limits import Limits
from tests.unit.aio.loops import run as run_loop
from tests.unit.client.raw_log import run_of

LIMITS = Limits(explicit_lac_ns=5_000_000)
LARGE = bytes(LIMITS.frame_bytes_max)
KINDS = ("ledger", "log")


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri, limits=LIMITS) as bk:
        bk.create_log("a", entry_format="raw")
        yield bk


def numbers(*offsets: int) -> array[int]:
    return array("q", offsets)


# (what is called, its arguments, the class of the error, its text); TARGET stands for the ledger or the log
MISTAKES: list[tuple[str, tuple[Any, ...], type[Exception], str]] = [
    ("append", ("text",), ArgumentTypeError, "payload must be bytes or another contiguous buffer, not str"),
    ("append", (None,), ArgumentTypeError, "payload must be bytes or another contiguous buffer, not NoneType"),
    ("append", (memoryview(b"abcd")[::2],), ArgumentTypeError, "payload must be bytes or another contiguous buffer, not memoryview"),
    ("append", (LARGE,), InvalidArgumentError, "a payload of 5242880 bytes is too large for TARGET: at most MOST bytes fit into one frame"),
    ("append_many", (b"abc",), ArgumentTypeError, "payloads must be a sequence of bytes, one for each entry, not bytes"),
    ("append_many", (5,), ArgumentTypeError, "payloads must be a sequence of bytes, one for each entry, not int"),
    ("append_many", (["a"],), ArgumentTypeError, "payloads[0] must be bytes or another contiguous buffer, not str"),
    ("append_many", ([b"a", 1],), ArgumentTypeError, "payloads[1] must be bytes or another contiguous buffer, not int"),
    ("append_many", ([],), InvalidArgumentError, "payloads is empty: give at least one entry"),
    ("append_many", ([b"a", LARGE],), InvalidArgumentError,
     "a payload of 5242880 bytes is too large for TARGET: at most MOST bytes fit into one frame"),
    ("append_run", ("ab", numbers(0, 2)), ArgumentTypeError, "payloads must be bytes or another contiguous buffer, not str"),
    ("append_run", (b"ab", [0, 2]), ArgumentTypeError, "offsets must be int64 numbers in a buffer, such as array('q', ...), not list"),
    ("append_run", (b"ab", array("i", (0, 2))), ArgumentTypeError,
     "offsets must be int64 numbers in a buffer, such as array('q', ...), not array"),
    ("append_run", (b"ab", b"123"), ArgumentTypeError, "offsets must be int64 numbers in a buffer, such as array('q', ...), not bytes"),
    ("append_run", (b"ab", numbers(0)), InvalidArgumentError,
     "an empty run cannot be appended: offsets must have two numbers at least"),
    ("append_run", (b"ab", numbers(-1, 2)), InvalidArgumentError,
     "offsets of a run must rise within the 2 bytes of its payloads: offset 0 is -1, below 0"),
    ("append_run", (b"ab", numbers(0, 2, 1)), InvalidArgumentError,
     "offsets of a run must rise within the 2 bytes of its payloads: offset 2 is 1, below the one before it"),
    ("append_run", (b"ab", numbers(0, 3)), InvalidArgumentError,
     "offsets of a run must rise within the 2 bytes of its payloads: they end at 3"),
    ("append_run", (LARGE, numbers(0, len(LARGE))), InvalidArgumentError,
     "a payload of 5242880 bytes is too large for TARGET: at most MOST bytes fit into one frame"),
]  # fmt: skip


def told(text: str, kind: str, writer: Any) -> str:
    if kind == "ledger":
        return text.replace("TARGET", f"ledger {writer.ledger_id}").replace("MOST", str(payload_bytes_max(LIMITS, DigestType.CRC32C)))
    return text.replace("TARGET", "log 'a'").replace("MOST", str(payload_bytes_max(LIMITS)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_mistake_is_the_same_error_on_ledgers_and_logs(client: bk_core.BookKeeper, kind: str) -> None:
    with client.create_ledger() if kind == "ledger" else client.log("a").writer() as writer:
        for method, arguments, error, text in MISTAKES:
            for name in (method, f"{method}_future"):
                with pytest.raises(error) as caught:
                    getattr(writer, name)(*arguments)
                assert type(caught.value) is error and caught.value.args[0] == told(text, kind, writer), (name, arguments)
                assert caught.value.context == ({"ledger": writer.ledger_id} if kind == "ledger" else {"log": "a"})
        first = writer.append(b"fine")
        assert first == 0 if kind == "ledger" else first.entry == 0


@pytest.mark.parametrize("kind", KINDS)
def test_and_where_it_is_awaited(client: bk_core.BookKeeper, kind: str) -> None:
    async def main() -> None:
        async with aio.connect(client.config.uri, limits=LIMITS) as bk:
            log = await bk.log("a")
            async with await bk.create_ledger() if kind == "ledger" else await log.writer() as writer:
                for method, arguments, error, text in MISTAKES:
                    for name in (method, f"{method}_future"):
                        with pytest.raises(error) as caught:
                            await getattr(writer, name)(*arguments)
                        assert type(caught.value) is error and caught.value.args[0] == told(text, kind, writer), (name, arguments)
                first = await asyncio.wait_for(writer.append(b"fine"), 30)
                assert first == 0 if kind == "ledger" else first.entry == 0

    run_loop(main)


@pytest.mark.parametrize("kind", KINDS)
def test_any_contiguous_buffer_is_a_payload(client: bk_core.BookKeeper, kind: str) -> None:
    wide = (1).to_bytes(8, "little")
    with client.create_ledger() if kind == "ledger" else client.log("a").writer() as writer:
        writer.append(bytearray(b"one"))
        writer.append(array("q"))  # nothing in it
        writer.append_many([memoryview(b"two"), array("q", [1]), array("d")])
        writer.append_run(memoryview(b"xthree").toreadonly(), numbers(1, 6).tobytes())
    expected = [b"one", b"", b"two", wide, b"", b"three"]
    if kind == "ledger":
        with client.open_ledger(writer.ledger_id) as reader:
            assert reader.read(0, 5) == expected
    else:
        assert [payload for run in client.log("a").reader() for payload in run.payloads()] == expected


CHECK = PayloadCheck("log 'a'", 10, log="a")


@pytest.mark.parametrize("take", [CHECK.one, lambda payload: CHECK.run(payload, numbers(0, 3)), lambda payload: CHECK.many([payload])])
def test_what_the_caller_may_change_is_copied(take: Callable[[Any], Payloads]) -> None:
    """It is packaged later, on another thread."""
    payload = bytearray(b"abc")
    taken = take(payload)
    payload[:] = b"xyz"
    assert list(taken) == [b"abc"]


def test_what_is_read_only_is_not_copied() -> None:
    payload = memoryview(b"abc")
    assert CHECK.one(payload).data.obj is payload.obj  # type: ignore[union-attr]
    assert CHECK.run(payload, numbers(0, 3)).data.obj is payload.obj  # type: ignore[union-attr]
    assert CHECK.one(payload.obj).data is payload.obj


def test_a_payload_of_exactly_the_limit_fits() -> None:
    assert CHECK.one(bytes(10)).size == CHECK.many([bytes(10)]).size == CHECK.run(bytes(10), numbers(0, 10)).size == 10
    for take in (CHECK.one, lambda payload: CHECK.many([payload]), lambda payload: CHECK.run(payload, numbers(0, 11))):
        with pytest.raises(InvalidArgumentError, match="a payload of 11 bytes"):
            take(bytes(11))


def test_a_run_of_payloads_is_sliced_without_copying() -> None:
    run = CHECK.run(*run_of(b"a", b"bb", b"", b"ccc"))
    assert (len(run), run.size, list(run)) == (4, 6, [b"a", b"bb", b"", b"ccc"])
    rest = run[1:]
    assert isinstance(rest, Payloads) and rest.data is run.data
    assert (list(rest), rest.size, rest.entries, list(rest[2:])) == ([b"bb", b"", b"ccc"], 5, 3, [b"ccc"])
    assert run[-1] == b"ccc" and len(run[4:]) == 0
    with pytest.raises(IndexError):
        run[4]
