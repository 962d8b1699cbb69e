"""Marks and locks of re-replication: paths and texts as Apache writes them, and the store in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bk_core.errors import MetadataFormatError, MetadataOutcomeUnknownError, MetadataUnavailableError
from bk_core.metadata import open_store
from bk_core.metadata import underreplication as nodes
from bk_core.metadata.tree.underreplication import TreeUnderreplication
from bk_core.metadata.underreplication import Mark, MemoryUnderreplication, MemoryUnderreplicationState


@pytest.mark.parametrize(
    ("ledger_id", "mark", "lock"),
    [
        (0, "0000/0000/0000/0000/urL0000000000", "urL0000000000"),
        (0xDEADBEEF, "0000/0000/dead/beef/urL3735928559", "urL3735928559"),
        (2**63 - 1, "7fff/ffff/ffff/ffff/urL9223372036854775807", "urL9223372036854775807"),
    ],
)
def test_paths(ledger_id: int, mark: str, lock: str) -> None:
    """metadata.md 1.4: directories in lower case hexadecimal, the leaf in decimal, padded to ten digits."""
    assert nodes.mark_path(ledger_id) == f"underreplication/ledgers/{mark}"
    assert nodes.lock_path(ledger_id) == f"underreplication/locks/{lock}"
    assert nodes.ledger_of_leaf(lock) == ledger_id


@pytest.mark.parametrize("name", ["urL1", "urL", "L0000000001", "urL000000000x", "0000"])
def test_other_names_are_no_leaves(name: str) -> None:
    assert nodes.ledger_of_leaf(name) is None


def test_levels() -> None:
    assert nodes.is_level("00ff") and not nodes.is_level("00FF") and not nodes.is_level("000") and not nodes.is_level("urL0000000001")


def test_mark_text() -> None:
    """Protobuf's text format, as Apache's worker reads and writes it."""
    data = nodes.encode_mark(["127.0.0.1:3181", "bk-2:3181"], 1700000000000)
    assert data == b'replica: "127.0.0.1:3181"\nreplica: "bk-2:3181"\nctime: 1700000000000\n'
    assert nodes.decode_mark(data, 5, 2) == Mark(5, ("127.0.0.1:3181", "bk-2:3181"), 1700000000000, 2)
    assert nodes.decode_mark(b'replica: "a\\\\b\\"c"\n\n  other : 3\nlater: "x"\n', 5, 0).replicas == ('a\\b"c',)
    assert nodes.decode_mark(b"", 5, 0) == Mark(5, (), None, 0)
    with pytest.raises(MetadataFormatError):
        nodes.decode_mark(b"\x0a\x03abc", 5, 0)


def test_lock_text() -> None:
    assert nodes.encode_lock("host-1") == b'bookieId: "host-1"\n'
    assert nodes.decode_lock(b'bookieId: "host-1"\n') == "host-1"
    assert nodes.decode_lock(b"whoever") == "whoever"


def test_marks_merge_and_go_only_at_their_version() -> None:
    """metadata.md 1.4: whoever marks again while a repair runs keeps the mark alive."""
    store = MemoryUnderreplication(MemoryUnderreplicationState())
    store.mark(7, ["a"], 1)
    before = store.mark_of(7)
    assert before is not None
    store.mark(7, ["b", "a"], 2)
    assert not store.unmark(before)
    now = store.mark_of(7)
    assert now is not None and now.replicas == ("a", "b")
    store.mark(3, [], 1)
    assert list(store.marked_ledgers()) == [3, 7]
    assert store.unmark(now) and store.unmark(now)  # absent is success
    assert list(store.marked_ledgers()) == [3]


def test_a_mark_of_which_nobody_knows_if_it_is_gone_is_not_taken_away_again() -> None:
    """Versions begin anew, so a second try might take away the mark of somebody who marked meanwhile."""
    tries: list[object] = []

    def remove(*arguments: object) -> None:
        tries.append(arguments)
        raise MetadataOutcomeUnknownError("the answer was lost")

    assert not TreeUnderreplication(SimpleNamespace(remove=remove), "/ledgers").unmark(Mark(7, (), None, 3))  # type: ignore[arg-type]
    assert tries == [("/ledgers/underreplication/ledgers/0000/0000/0000/0007/urL0000000007", 3)]


def test_rr11_one_replicator_at_a_time() -> None:
    """RR-11: the lock excludes others, itself too, and goes with the session."""
    state = MemoryUnderreplicationState()
    one, two = MemoryUnderreplication(state), MemoryUnderreplication(state)
    lock = one.lock(7, "host-1")
    assert lock is not None and lock.is_held()
    assert two.lock(7, "host-2") is None and one.lock(7, "host-1") is None
    assert two.lock_holder(7) == "host-1" and two.lock_holder(8) is None
    lock.release()
    lock.release()
    assert not lock.is_held()
    other = two.lock(7, "host-2")
    assert other is not None
    two.release_all()
    assert not other.is_held() and one.lock(7, "host-1") is not None


def test_stores_share_locks_and_closing_one_ends_its_own() -> None:
    one, two = open_store("memory://underreplication"), open_store("memory://underreplication")
    assert one.underreplication().lock(1, "one") is not None
    assert two.underreplication().lock(1, "two") is None
    one.close()
    assert two.underreplication().lock(1, "two") is not None
    assert not two.underreplication().is_disabled()
    two.close()


class Votes:
    """One session's view of the nodes of votes. The answer to the creation of one is lost if so asked, and so many lists fail behind it."""

    def __init__(self, nodes: dict[str, tuple[bytes, int]], session: int) -> None:
        self._of_all, self._session = nodes, session
        self.is_lost, self.fail, self.hide = False, 0, 0

    def session_id(self) -> int:
        return self._session

    def create_numbered(self, path: str, data: bytes) -> str:
        made = f"{path}{sum(1 for _ in self._of_all):010d}"
        self._of_all[made] = data, self._session
        if self.is_lost:
            self.is_lost = False
            raise MetadataOutcomeUnknownError("the answer was lost")
        return made

    def children(self, _path: str) -> list[str]:
        if self.fail:
            self.fail -= 1
            raise MetadataUnavailableError("nobody answers")
        there = sorted(path.rpartition("/")[2] for path, (data, _) in self._of_all.items() if data)
        if self.hide:
            self.hide -= 1
            return there[:-1]  # the server is behind
        return there

    def stat(self, path: str) -> Any:
        data, session = self._of_all[path]
        return SimpleNamespace(owner=session) if data else None

    def get(self, path: str) -> Any:
        return SimpleNamespace(data=self._of_all[path][0])

    def remove_own(self, path: str) -> None:
        self._of_all[path] = b"", 0


@pytest.mark.parametrize("trouble", ["fail", "hide"])
def test_a_vote_whose_answer_was_lost_is_taken_when_it_is_seen(trouble: str) -> None:
    """It stood before all others, and nobody had it: no host was elected until its session ended."""
    nodes: dict[str, tuple[bytes, int]] = {}
    mine, other = Votes(nodes, 11), Votes(nodes, 22)
    first = TreeUnderreplication(mine, "/ledgers").candidate("host-1")  # type: ignore[arg-type]
    second = TreeUnderreplication(other, "/ledgers").candidate("host-2")  # type: ignore[arg-type]
    mine.is_lost = True
    setattr(mine, trouble, 1)
    if trouble == "fail":
        with pytest.raises(MetadataUnavailableError):
            first.is_elected()
    assert [first.is_elected() for _ in range(2)] == [True, True] and not second.is_elected()
    assert sum(1 for data, _ in nodes.values() if data) == 2  # one of each host
    first.withdraw()
    assert second.is_elected() and TreeUnderreplication(other, "/ledgers").auditor() == "host-2"  # type: ignore[arg-type]


def test_a_vote_that_nobody_has_goes_with_the_candidate() -> None:
    nodes: dict[str, tuple[bytes, int]] = {}
    mine, other = Votes(nodes, 11), Votes(nodes, 22)
    assert TreeUnderreplication(other, "/ledgers").candidate("host-2").is_elected()  # type: ignore[arg-type]
    first = TreeUnderreplication(mine, "/ledgers").candidate("host-1")  # type: ignore[arg-type]
    mine.is_lost, mine.fail = True, 1
    with pytest.raises(MetadataUnavailableError):
        first.is_elected()
    assert not first.is_elected() and sum(1 for data, _ in nodes.values() if data) == 3
    first.withdraw()
    assert [session for data, session in nodes.values() if data] == [22]


def test_two_candidates_of_one_session_have_a_vote_each() -> None:
    mine = Votes({}, 11)
    store = TreeUnderreplication(mine, "/ledgers")  # type: ignore[arg-type]
    first, second = store.candidate("host-1"), store.candidate("host-1")
    assert [first.is_elected(), second.is_elected(), first.is_elected()] == [True, False, True]
    first.withdraw()
    assert second.is_elected()
