"""Replaying a log: bases, what is before them, what is left of bases whose writers died, and damage."""

from __future__ import annotations

import random
import time

import pytest

from bk_core.errors import FileStoreFormatError
from bk_core.protocol.files.base import encode_base
from bk_core.protocol.files.content import Content
from bk_core.protocol.files.records import (
    RECORD_MAX,
    BaseBegin,
    BaseEnd,
    BaseNode,
    BasePart,
    Delete,
    Mkdirs,
    Put,
    Record,
    Rename,
    decode,
    encode,
)
from bk_core.protocol.files.replay import FileReplay
from bk_core.protocol.files.state import FileLimits
from bk_core.protocol.files.tree import FileTree
from bk_core.protocol.log.position import Position
from tests.unit.files.store_world import Entry, World, inline, large, new_store, replayed, shape


def log_of(*records: bytes | Record, seq: int = 0) -> list[Entry]:
    stored = [record if isinstance(record, bytes) else encode(record) for record in records]
    return [(Position(seq, entry), record) for entry, record in enumerate(stored)]


EMPTY = encode_base(FileTree(), 1000)


@pytest.fixture
def tree() -> FileTree:
    tree = FileTree()
    for n in range(20):
        tree.apply(Put(f"/a/b{n % 3}/{n}", large(n) if n % 2 else inline("x" * n), n, tree.next_id, [2, 1, 1, *[0] * 17][n]))
    tree.apply(Delete("/a/b0", 30))
    tree.apply(Mkdirs("/c/d", 40, tree.next_id, 2))
    return tree


@pytest.mark.parametrize("part_bytes", [1, 100, 1 << 20])
def test_fs_5_a_base_says_all_of_a_tree(tree: FileTree, part_bytes: int) -> None:
    """FS-5, FS-6: with the next file id, although the files that had the last ones are gone."""
    tree.apply(Put("/last", inline("x"), 1, tree.next_id))
    tree.apply(Delete("/last", 50))
    records = encode_base(tree, part_bytes)
    assert len(records) == 2 + {1: tree.count, 1 << 20: 1}.get(part_bytes, len(records) - 2)
    replay = replayed(log_of(*records))
    assert shape(replay.tree) == shape(tree) and replay.complete
    assert (replay.tree.next_id, replay.tree.count, replay.tree.ledgers) == (tree.next_id, tree.count, tree.ledgers)
    assert replay.tree.longest == tree.longest_below("/") <= tree.longest
    assert encode_base(replay.tree, part_bytes) == records, "the same tree is the same bytes"
    assert replay.base_bytes == sum(map(len, records)) and replay.bytes_since_base == 0


def test_a_base_of_large_contents_has_no_record_that_is_too_large() -> None:
    tree = FileTree()
    for n in range(8):
        tree.apply(Put(f"/{n}", Content(bytes([n]) * (490 << 10 if n % 2 else 100 << 10)), 1, tree.next_id))
    records = encode_base(tree, FileLimits().part_bytes)
    assert max(map(len, records)) <= RECORD_MAX
    assert shape(replayed(log_of(*records)).tree) == shape(tree)


def test_fs_7_nothing_counts_before_the_first_complete_base(tree: FileTree) -> None:
    """FS-7: the log may begin anywhere, in the middle of a base as well; what is left there may not even fit."""
    records = encode_base(tree, 100)
    history = [Put("/x", inline("x"), 1, 2), Delete("/nothing/at/all", 1), Rename("/q", "/r", 1)]
    put = Put("/new", inline("new"), 60, tree.next_id)
    wanted = shape(replayed(log_of(*records, put)).tree)
    for kept in range(1, len(records) + 1):
        replay = replayed(log_of(*history, *records[kept:], *history, *records, put))
        assert shape(replay.tree) == wanted
        assert replay.base_position == Position(0, 6 + len(records) - kept)
    for kept in range(1, len(records)):
        replay = replayed(log_of(*history, *records[kept:]))
        assert not replay.complete and replay.passed_over and shape(replay.tree) == shape(FileTree())


def test_fs_7_a_base_without_its_end_counts_for_nothing(tree: FileTree) -> None:
    """FS-7: the records around it count."""
    records = encode_base(tree, 100)
    wanted = replayed(log_of(*records)).tree
    wanted.apply(Put("/one", inline("1"), 1, wanted.next_id))
    wanted.apply(Put("/two", inline("2"), 2, wanted.next_id))
    one, two = Put("/one", inline("1"), 1, tree.next_id), Put("/two", inline("2"), 2, tree.next_id + 1)
    for kept in range(len(records)):
        cut = records[:kept]
        for log in (log_of(*records, one, *cut, two), log_of(*cut, *records, one, two), log_of(*records, one, *cut, *cut, two, *cut)):
            replay = replayed(log)
            assert shape(replay.tree) == shape(wanted)
        assert replay.bytes_since_base == sum(len(record) for _, record in log[len(records) :])


def test_fs_7_a_base_with_a_change_in_it_counts_for_nothing(tree: FileTree) -> None:
    """FS-7: it would say what was before the change, and stand behind it."""
    records = encode_base(tree, 100)
    put = Put("/new", inline("new"), 60, tree.next_id)
    wanted = shape(replayed(log_of(*records, put)).tree)
    for kept in range(1, len(records)):
        replay = replayed(log_of(*records, *records[:kept], put, *records[kept:]))
        assert shape(replay.tree) == wanted and replay.base_position == Position(0, 0)


def test_a_later_base_takes_the_place_of_the_tree(tree: FileTree) -> None:
    put = Put("/new", inline("new"), 60, tree.next_id)
    first = encode_base(tree, 1000)
    tree.apply(put)
    second = encode_base(tree, 1000)
    replay = replayed(log_of(*first, put, *second))
    assert shape(replay.tree) == shape(tree) == shape(replayed(log_of(*second)).tree)
    assert replay.base_position == Position(0, len(first) + 1) and replay.trim_before() is None


def test_fs_12_segments_before_the_last_base_are_to_be_trimmed(tree: FileTree) -> None:
    """FS-12."""
    records = encode_base(tree, 1000)
    assert FileReplay("s").trim_before() is None
    assert replayed(log_of(*records)).trim_before() is None
    assert replayed([*log_of(*records), *log_of(*records, seq=3)]).trim_before() == Position(3, 0)
    assert replayed([*log_of(Delete("/x", 1)), *log_of(Delete("/x", 1), *records, seq=3)]).trim_before() == Position(3, 1)
    assert replayed([*log_of(*records), *log_of(*records[:-1], seq=3)]).trim_before() is None


def nodes(*found: BaseNode) -> tuple[BaseBegin, BasePart]:
    return BaseBegin(9, 5), BasePart(found)


@pytest.mark.parametrize(
    "found",
    [
        (BaseNode(2, "a", 3, 0, None),),
        (BaseNode(1, "a", 9, 0, None),),
        (BaseNode(1, "a", 1, 0, None),),
        (BaseNode(1, "a", 2, 0, None), BaseNode(1, "a", 3, 0, inline("x"))),
        (BaseNode(1, "a", 2, 0, inline("x")), BaseNode(2, "b", 3, 0, None)),
        (BaseNode(1, "a", 2, 0, None), BaseNode(2, "b", 2, 0, None)),
    ],
)
def test_fs_3_a_base_whose_nodes_do_not_fit_is_refused(found: tuple[BaseNode, ...]) -> None:
    """FS-3."""
    with pytest.raises(FileStoreFormatError):
        replayed(log_of(*nodes(*found)))


def test_fs_3_a_base_is_believed_with_its_count_and_checksum_only(tree: FileTree) -> None:
    """FS-3: a part that is missing, twice or in another place does not go unseen."""
    records = encode_base(tree, 60)
    assert len(records) > 6
    end = decode(records[-1])
    assert isinstance(end, BaseEnd)
    wrong = [
        (*records[:2], *records[3:]),
        (*records[:-1], encode(BaseEnd(end.count + 1, end.checksum))),
        (*records[:-1], encode(BaseEnd(end.count, end.checksum ^ 1))),
        (encode(BaseBegin(end.count + 1000, 0)), *records[1:]),
        (*records[:-2], records[-1]),
    ]
    for one in wrong:
        with pytest.raises(FileStoreFormatError):
            replayed(log_of(*one))


def test_fs_3_the_message_says_where(tree: FileTree) -> None:
    """FS-3."""
    with pytest.raises(FileStoreFormatError, match="file store 's', segment 4, entry 2: .*'/x'") as caught:
        replayed(log_of(*EMPTY, Delete("/x", 1), seq=4))
    assert caught.value.context["position"] == Position(4, 2)
    stored = bytearray(encode(Delete("/x", 1)))
    stored[-1] ^= 1
    with pytest.raises(FileStoreFormatError, match="entry 2: .*damaged"):
        replayed(log_of(*EMPTY, bytes(stored)))


def test_fs_3_damage_anywhere_in_a_log_is_never_served_as_another_tree() -> None:
    """FS-3: one byte of one record, at random; what is replayed is refused, or what the log without the record's base says."""
    chance = random.Random(3)
    world = new_store()
    for n in range(30):
        world.put(f"/d{n % 4}/{n % 9}", large(n) if n % 3 else None)
        if n % 5 == 0:
            world.delete(f"/d{n % 4}/{n % 9}")
    for _ in range(300):
        at = chance.randrange(len(world.log))
        position, record = world.log[at]
        damaged = bytearray(record)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        with pytest.raises(FileStoreFormatError):
            replayed([*world.log[:at], (position, bytes(damaged)), *world.log[at + 1 :]])


def test_fs_7_a_log_without_a_whole_base_is_not_served() -> None:
    """FS-7: its beginning is lost. A first base without its end is that of an owner who died before anything else."""
    with pytest.raises(FileStoreFormatError, match="beginning is lost"):
        World(log_of(Put("/a", inline("x"), 1, 2)))
    with pytest.raises(FileStoreFormatError, match="beginning is lost"):
        World(log_of(EMPTY[0], Put("/a", inline("x"), 1, 2)))
    world = World(log_of(EMPTY[0]))
    world.settle()
    assert [decode(record) for _, record in world.log[1:]] == [decode(record) for record in EMPTY]
    assert replayed(world.log).complete


def test_a_replay_of_20000_records_takes_less_than_half_a_second() -> None:
    world = new_store(FileLimits(compact_bytes=1 << 40))
    for n in range(20_000):
        world.put(f"/checkpoint/state/{n % 200}/{n % 7}/{n}.delta", inline("x" * 100))
    best = float("inf")
    for _ in range(3):  # the machine may be busy, and a collection may fall into it
        began = time.process_time()
        tree = replayed(world.log).tree
        best = min(best, time.process_time() - began)
    assert tree.count == 20_000 + 1 + 1 + 200 + 1400
    assert best < 0.5
