"""The checker on histories made by hand: good ones pass, and each rule is seen to fail on a broken one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.soak.checker import BESIDE_JAVA, LEDGER_RULES, LOG_RULES, check, lost, views_of
from tests.soak.history import Op, digest, digests
from tests.soak.workload import payload


class Story:
    """A history made by hand: operations follow each other in time unless they are told otherwise."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.now = 0

    def add(self, kind: str, value: dict[str, Any] | None, ledger: int | None = 5, actor: str = "a", **args: Any) -> Op:
        """``value`` None: it was asked for and never answered."""
        self.now += 10
        op = Op(str(len(self.ops)), actor, kind, self.now, ledger, args)
        if value is not None:
            self.now += 10
            op.end_ns, op.outcome, op.value, op.ends, op.order = self.now, "ok", value, 1, self.now
        self.ops.append(op)
        return op

    def fails(self, op: Op, error: str = "BK-FENCED") -> Op:
        op.outcome, op.error, op.value = "unknown", error, {}
        return op

    def append(self, first: int, count: int = 1, **more: Any) -> Op:
        joined = digests(payload(5, entry) for entry in range(first, first + count))
        return self.add("append", {"last": first + count - 1}, first=first, count=count, digests=joined, **more)

    def read(self, first: int, last: int, kind: str = "read") -> Op:
        payloads = [payload(5, entry) for entry in range(first, last + 1)]
        value = {"digests": digests(payloads), "bytes": sum(map(len, payloads))}
        return self.add(kind, value, first=first, last=last, handle="r")

    def tail(self, first: int, last: int) -> Op:
        found = digests(payload(5, entry) for entry in range(first, last + 1))
        return self.add("tail", {"first": first, "last": last, "digests": found}, handle="t")

    def closed(self, kind: str, last: int, **args: Any) -> Op:
        size = sum(len(payload(5, entry)) for entry in range(last + 1))
        value = {"last": last, "length": size, "state": "CLOSED"}
        if kind == "final":
            value |= {"fragments": [[0, ["b1", "b2", "b3"]], [3, ["b1", "b2", "b4"]]], "ensemble_size": 3}
        return self.add(kind, value, **args)

    def lac(self, value: int, handle: str = "r") -> Op:
        return self.add("lac", {"lac": value}, handle=handle)

    def log_append(self, text: bytes, ledger: int, entry: int, actor: str = "leader") -> Op:
        return self.add("log_append", {"ledger": ledger, "entry": entry}, None, actor, log="l", leader=actor, digest=digest(text))

    def log_read(self, runs: list[tuple[int, int, int, list[bytes]]], reader: str = "r") -> Op:
        return self.add("log_read", {"runs": self._runs(runs)}, None, log="l", reader=reader)

    def log_final(self, runs: list[tuple[int, int, int, list[bytes]]], ends: dict[str, int]) -> Op:
        return self.add("log_final", {"runs": self._runs(runs), "ends": ends}, None, log="l")

    @staticmethod
    def _runs(runs: list[tuple[int, int, int, list[bytes]]]) -> list[list[Any]]:
        return [[seq, ledger, first, digests(texts)] for seq, ledger, first, texts in runs]


def good_ledger() -> Story:
    """Six entries acknowledged, a reader in between, a seventh begun when a rival recovered; it is part of the ledger."""
    story = Story()
    story.add("open", {"last": -1, "length": 0, "state": "OPEN"})
    story.append(0, 3)
    story.lac(1)
    story.append(3, 3)
    story.add("wait_for", {"reached": True, "lac": 5, "closed": False}, handle="r", entry=4)
    story.read(0, 5)
    story.tail(0, 3)
    story.tail(4, 5)
    story.fails(story.append(6))
    story.add("give_up", {}, lac=5)
    story.closed("recover", 6, by="python")
    story.closed("open", 6)
    story.closed("final", 6)
    story.read(0, 6, "final_read")
    story.add("copies", {"sealed": False, "missing": [[6, 1]], "unknown": 0}, w=3, a=2)
    return story


def good_log() -> Story:
    """Two leaders, the second takes over; an entry of the first that was never acknowledged is part of the log."""
    story = Story()
    story.add("log_open", {"ledger": 1}, None, "leader", log="l", leader="leader")
    story.log_append(b"one", 1, 0)
    story.log_append(b"two", 1, 1)
    story.add("log_list", {"ledgers": [1], "unclosed": []}, None, log="l")
    story.log_read([(0, 1, 0, [b"one"])])
    story.fails(story.log_append(b"half", 1, 2))
    story.add("log_open", {"ledger": 2}, None, "rival", log="l", leader="rival")
    story.log_append(b"three", 2, 0, "rival")
    story.log_read([(0, 1, 1, [b"two", b"half"]), (1, 2, 0, [b"three"])])
    story.add("log_list", {"ledgers": [1, 2, 3], "unclosed": []}, None, log="l")
    story.add("log_list", {"ledgers": [2, 3], "unclosed": []}, None, log="l")
    story.log_final([(0, 1, 0, [b"one", b"two", b"half"]), (1, 2, 0, [b"three"])], {"1": 2, "2": 0})
    return story


def test_good_histories_pass() -> None:
    assert check(good_ledger().ops) == []
    assert check(good_log().ops) == []
    assert lost(good_ledger().ops) == []


def _find(story: Story, kind: str, nth: int = 0) -> Op:
    return [op for op in story.ops if op.kind == kind][nth]


def _closes_short(story: Story) -> None:
    for kind in ("recover", "final"):
        _find(story, kind).value["last"] = 4
    _find(story, "open", 1).value["last"] = 4


def _second_closed_value_below(story: Story) -> None:
    _find(story, "open", 1).value["last"] = 4


def _final_read_misses_one(story: Story) -> None:
    op = _find(story, "final_read")
    op.args["last"], op.value["digests"] = 4, op.value["digests"][:40]


def _read_is_short(story: Story) -> None:
    op = _find(story, "read")
    op.value["digests"] = op.value["digests"][:-8]


def _read_finds_no_entry(story: Story) -> None:
    story.fails(_find(story, "read"), "BK-NO-ENTRY").outcome = "fail"


def _read_of_something_else(story: Story) -> None:
    op = _find(story, "read")
    op.value["digests"] = digest(b"other") + op.value["digests"][8:]


def _entry_that_nobody_wrote(story: Story) -> None:
    story.ops = [op for op in story.ops if not (op.kind == "append" and op.args["first"] == 6)]


def _lac_above_the_end(story: Story) -> None:
    _find(story, "lac").value["lac"] = 9


def _lac_before_the_entry(story: Story) -> None:
    _find(story, "lac").value["lac"] = 3


def _read_above_the_end(story: Story) -> None:
    story.append(7).outcome = "unknown"
    story.read(7, 7)


def _lac_goes_back(story: Story) -> None:
    story.lac(2)


def _wait_over_too_early(story: Story) -> None:
    _find(story, "wait_for").value["lac"] = 3


def _two_reads_differ(story: Story) -> None:
    op = story.read(2, 2)
    op.value["digests"] = digest(b"other")


def _two_lengths(story: Story) -> None:
    _find(story, "open", 1).value["length"] += 1


def _two_answers(story: Story) -> None:
    _find(story, "append").ends = 2


def _answered_out_of_order(story: Story) -> None:
    first, second = _find(story, "append"), _find(story, "append", 1)
    first.order, second.order = second.order, first.order


def _gap_in_the_answers(story: Story) -> None:
    story.fails(_find(story, "append")).order = 10_000


def _answer_after_an_error(story: Story) -> None:
    story.fails(_find(story, "append", 0))


def _wrong_entry_acknowledged(story: Story) -> None:
    _find(story, "append").value["last"] = 1


def _lac_is_not_the_last_answer(story: Story) -> None:
    _find(story, "give_up").args["lac"] = 6


def _never_answered(story: Story) -> None:
    op = _find(story, "append", 2)
    op.ends, op.end_ns = 0, None


def _recovered_but_not_closed(story: Story) -> None:
    _find(story, "recover").value["state"] = "IN_RECOVERY"


def _recovered_at_another_end(story: Story) -> None:
    _find(story, "recover").value["last"] = 7


def _writer_closes_elsewhere(story: Story) -> None:
    story.closed("close", 6)


def _open_again(story: Story) -> None:
    story.add("open", {"last": 5, "length": 0, "state": "OPEN"})


def _acknowledged_after_the_close(story: Story) -> None:
    story.append(6)


def _fragments_do_not_rise(story: Story) -> None:
    _find(story, "final").value["fragments"][1][0] = 0


def _small_ensemble(story: Story) -> None:
    _find(story, "final").value["fragments"][1][1].pop()


def _length_is_wrong(story: Story) -> None:
    for op in story.ops:
        if op.value.get("state") == "CLOSED":
            op.value["length"] += 1


def _read_never_answered(story: Story) -> None:
    op = _find(story, "read")
    op.outcome, op.value, op.ends, op.end_ns = "unknown", {}, 0, None


def _tail_leaves_one_out(story: Story) -> None:
    op = _find(story, "tail", 1)
    op.value |= {"first": 5, "digests": op.value["digests"][8:]}


def _tail_gives_one_twice(story: Story) -> None:
    story.tail(5, 5)


def _tail_of_something_else(story: Story) -> None:
    op = _find(story, "tail")
    op.value["digests"] = digest(b"other") + op.value["digests"][8:]


def _tail_above_the_end(story: Story) -> None:
    story.append(7).outcome = "unknown"
    story.tail(6, 7)


def _tail_finds_no_entry(story: Story) -> None:
    story.fails(_find(story, "tail", 1), "BK-NO-ENTRY").outcome = "fail"


def _one_copy_only(story: Story) -> None:
    _find(story, "copies").value["missing"] = [[3, 2]]


def _sealed_with_a_copy_missing(story: Story) -> None:
    _find(story, "copies").value["sealed"] = True


def _cannot_be_closed(story: Story) -> None:
    story.fails(_find(story, "final"), "BK-RECOVERY")


@pytest.mark.parametrize(
    ("rule", "damage"),
    [
        ("I-1", _closes_short),
        ("I-1", _second_closed_value_below),
        ("I-2", _final_read_misses_one),
        ("I-2", _read_is_short),
        ("I-2", _read_finds_no_entry),
        ("I-5", _read_of_something_else),
        ("I-5", _entry_that_nobody_wrote),
        ("I-6", _lac_above_the_end),
        ("I-6", _lac_before_the_entry),
        ("I-6", _read_above_the_end),
        ("I-6", _lac_goes_back),
        ("I-6", _wait_over_too_early),
        ("I-2", _tail_finds_no_entry),
        ("I-4", _one_copy_only),
        ("I-5", _tail_of_something_else),
        ("I-6", _tail_above_the_end),
        ("I-7", _tail_leaves_one_out),
        ("I-7", _tail_gives_one_twice),
        ("I-G2", _sealed_with_a_copy_missing),
        ("I-7", _two_reads_differ),
        ("I-7", _second_closed_value_below),
        ("I-7", _two_lengths),
        ("I-8", _fragments_do_not_rise),
        ("I-8", _small_ensemble),
        ("I-13", _acknowledged_after_the_close),
        ("I-14", _two_answers),
        ("I-14", _answered_out_of_order),
        ("I-14", _gap_in_the_answers),
        ("I-14", _answer_after_an_error),
        ("I-14", _wrong_entry_acknowledged),
        ("I-14", _lac_is_not_the_last_answer),
        ("I-15", _recovered_but_not_closed),
        ("I-15", _recovered_at_another_end),
        ("I-15", _writer_closes_elsewhere),
        ("I-15", _open_again),
        ("I-18", _length_is_wrong),
        ("L-1", _never_answered),
        ("L-1", _read_never_answered),
        ("L-4", _cannot_be_closed),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__.strip("_"),
)
def test_a_broken_ledger_history_is_caught(rule: str, damage: Callable[[Story], None]) -> None:
    story = good_ledger()
    damage(story)
    assert rule in {violation.rule for violation in check(story.ops)}


def test_an_entry_above_the_end_beside_a_java_recoverer_is_counted_by_itself() -> None:
    """I-6, RC-7, D1; replication-protocol.md 14.1 items 4 and 8: only what was seen after Apache's client began to recover is excused."""
    story = good_ledger()
    _tail_above_the_end(story)
    recover = _find(story, "recover")
    recover.args["by"] = "java"
    rules = {violation.rule for violation in check(story.ops)}
    assert BESIDE_JAVA in rules
    assert "I-6" not in rules
    recover.begin_ns = story.now + 10
    assert "I-6" in {violation.rule for violation in check(story.ops)}


def _log_entry_lost(story: Story) -> None:
    _find(story, "log_final").value["runs"][0][3] = digests([b"one"])


def _log_entry_twice(story: Story) -> None:
    _find(story, "log_final").value["runs"][1][3] = digests([b"three", b"two"])


def _log_entry_nobody_wrote(story: Story) -> None:
    _find(story, "log_final").value["runs"][1][3] = digests([b"three", b"else"])


def _log_entry_elsewhere(story: Story) -> None:
    _find(story, "log_append", 3).value["entry"] = 1
    _find(story, "log_final").value["ends"]["2"] = 1


def _late_acknowledgement_beyond_the_end(story: Story) -> None:
    story.log_append(b"late", 1, 7)


def _log_order_turned(story: Story) -> None:
    _find(story, "log_final").value["runs"].reverse()


def _log_reader_saw_another_order(story: Story) -> None:
    _find(story, "log_read", 1).value["runs"].reverse()


def _log_reader_left_one_out(story: Story) -> None:
    _find(story, "log_read", 0).value["runs"] = []


def _three_open(story: Story) -> None:
    _find(story, "log_list", 1).value["unclosed"] = [1]


def _list_changed_in_the_middle(story: Story) -> None:
    _find(story, "log_list", 2).value["ledgers"] = [1, 3]


def _list_turned(story: Story) -> None:
    _find(story, "log_list", 2).value["ledgers"] = [3, 2]


def _list_grew_in_front(story: Story) -> None:
    _find(story, "log_list", 2).value["ledgers"] = [0, 1, 2, 3]


def _log_append_answered_twice(story: Story) -> None:
    _find(story, "log_append").ends = 2


def _log_append_never_answered(story: Story) -> None:
    op = _find(story, "log_append", 2)
    op.ends, op.end_ns = 0, None


def _log_cannot_be_read(story: Story) -> None:
    story.fails(_find(story, "log_final"), "BK-READ")


@pytest.mark.parametrize(
    ("rule", "damage"),
    [
        ("LOG-I1", _log_entry_lost),
        ("LOG-I1", _log_entry_twice),
        ("LOG-I1", _log_entry_nobody_wrote),
        ("LOG-I1", _log_entry_elsewhere),
        ("LOG-I2", _log_order_turned),
        ("LOG-I2", _log_reader_saw_another_order),
        ("LOG-I2", _log_reader_left_one_out),
        ("LOG-I3", _three_open),
        ("LOG-I4", _late_acknowledgement_beyond_the_end),
        ("LOG-I5", _list_changed_in_the_middle),
        ("LOG-I5", _list_turned),
        ("LOG-I5", _list_grew_in_front),
        ("I-14", _log_append_answered_twice),
        ("L-1", _log_append_never_answered),
        ("L-4", _log_cannot_be_read),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__.strip("_"),
)
def test_a_broken_log_history_is_caught(rule: str, damage: Callable[[Story], None]) -> None:
    story = good_log()
    damage(story)
    assert rule in {violation.rule for violation in check(story.ops)}


def test_what_is_allowed() -> None:
    """A killed writer's adds stay unanswered; a run may be acknowledged in part before it fails; Java's recovery may store a longer
    length; operations that overlap may have happened in either order."""
    story = good_ledger()
    _never_answered(story)
    story.add("killed", {}, None)
    assert check(story.ops) == []

    story = good_ledger()
    op = _find(story, "append", 2)
    op.args |= {"count": 2, "digests": digests([payload(5, 6), payload(5, 7)])}
    _find(story, "give_up").args["lac"] = 6
    assert check(story.ops) == []
    _closes_short(story)  # what a writer calls confirmed is acknowledged, whatever its run was answered
    assert lost(story.ops) == []
    assert "I-1" in {violation.rule for violation in check(story.ops)}

    story = good_ledger()
    _length_is_wrong(story)
    _find(story, "recover").args["by"] = "java"
    assert check(story.ops) == []

    story = good_log()
    third, first = _find(story, "log_append", 3), _find(story, "log_append", 0)
    _log_order_turned(story)
    third.begin_ns = first.begin_ns = 0
    rules = {str(violation) for violation in check(story.ops) if violation.rule == "LOG-I2" and "begun after" in violation.message}
    assert all("one" not in one for one in rules)


def _damages(test: Any) -> list[Callable[[Story], None]]:
    (mark,) = [mark for mark in test.pytestmark if mark.name == "parametrize"]
    return [damage for _rule, damage in mark.args[1]]


@pytest.mark.parametrize("rule", list(dict.fromkeys((*LEDGER_RULES, *LOG_RULES))), ids=lambda rule: rule.__name__)
def test_every_rule_finds_a_broken_history_by_itself(rule: Callable[[Any], Iterator[tuple[str, str]]]) -> None:
    found = []
    for rules, test, make in (
        (LEDGER_RULES, test_a_broken_ledger_history_is_caught, good_ledger),
        (LOG_RULES, test_a_broken_log_history_is_caught, good_log),
    ):
        for damage in _damages(test) if rule in rules else ():
            story = make()
            damage(story)
            views: list[Any] = [view for group in views_of(story.ops) for view in group.values()]
            found += [one for view in views for one in rule(view)]
    assert found
