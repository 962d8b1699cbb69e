"""The entries that one client has under way, over all of its ledgers."""

import random
from collections import defaultdict

from bk_core.client.ledger.add_window import PIECE_ENTRIES_MAX, PIECE_ENTRIES_MIN, AddWindow, Place, Share


class Window(AddWindow):
    """Shares by name."""

    def __init__(self, entries_max: int) -> None:
        super().__init__(entries_max)
        self.shares: defaultdict[object, Share] = defaultdict(Share)

    def room(self, ledger: object, count: int) -> bool:
        return self.has_room(self.shares[ledger], count)

    def took(self, ledger: object, count: int) -> None:
        self.hand_in(self.shares[ledger], lambda _: None, count, 10 * count)

    def let_go(self, ledger: object, count: int) -> None:
        self.released(self.shares[ledger], count)


def test_one_ledger_has_all_of_the_window() -> None:
    window = Window(100)
    assert window.room("a", 60)
    window.took("a", 60)
    assert window.room("a", 40)
    assert not window.room("a", 41)
    window.let_go("a", 1)
    assert window.room("a", 41)


def test_who_has_nothing_under_way_is_never_held_up() -> None:
    """However long the run: else it could never be sent."""
    window = Window(100)
    assert window.room("a", 1000)
    window.took("a", 1000)
    assert window.room("b", 1000)
    assert not window.room("a", 1)


def test_ledgers_share_the_window() -> None:
    window = Window(100)
    window.took("a", 60)
    window.took("b", 10)
    assert window.room("b", 30)
    assert not window.room("b", 31)  # there is no more
    assert window.room("a", 5)
    assert not window.room("a", 6)  # it has its share, and the last quarter is b's
    window.let_go("b", 10)
    assert window.room("a", 40)  # nobody else needs it
    assert not window.room("a", 41)


def test_a_ledger_that_is_stuck_does_not_stop_the_others() -> None:
    """Its entries stay under way; another one may still have some behind those that are not answered yet."""
    window = Window(8000)
    window.took("stuck", 8000)
    piece = 500
    for _ in range(2):
        assert window.room("b", piece)
        window.took("b", piece)
    assert window.piece_entries() == piece
    assert not window.room("b", piece)


def test_what_is_released_leaves_nothing_behind() -> None:
    window = Window(100)
    window.took("a", 30)
    window.took("b", 70)
    window.let_go("a", 30)
    window.let_go("b", 70)
    assert window.piece_entries() == AddWindow(100).piece_entries()
    assert window.room("c", 100)


def test_the_more_ledgers_the_smaller_the_pieces_of_a_run() -> None:
    window = Window(8000)
    assert window.piece_entries() == PIECE_ENTRIES_MAX
    for ledger in range(10):
        window.took(ledger, 1)
    assert window.piece_entries() == 100
    for ledger in range(10, 1000):
        window.took(ledger, 1)
    assert window.piece_entries() == PIECE_ENTRIES_MIN


def test_however_ledgers_are_fed_they_stay_near_the_bound() -> None:
    """Entries come by pieces, as from write handles: at most a quarter above the bound, for those that begin."""
    for seed in range(50):
        rng = random.Random(seed)
        window, under_way = Window(8000), dict.fromkeys(range(rng.randrange(1, 30)), 0)
        most = 0
        for _ in range(2000):
            ledger = rng.choice(list(under_way))
            count = min(window.piece_entries(), rng.randrange(1, 3000))
            if window.room(ledger, count):
                window.took(ledger, count)
                under_way[ledger] += count
            elif rng.random() < 0.2:
                window.let_go(ledger, under_way[ledger])
                under_way[ledger] = 0
            most = max(most, sum(under_way.values()))
        assert 7000 < most <= 10_000, seed


def test_what_is_handed_in_is_counted_until_it_is_answered() -> None:
    window, share = AddWindow(100), Share()
    done: list[int] = []
    window.hand_in(share, lambda _: done.append(1), 3, 50)
    window.hand_in(share, lambda _: done.append(2))
    assert (share.runs, share.bytes, share.entries) == (2, 50, 3)
    while share.inbox:
        item, batch = share.inbox.popleft()
        item(batch)
    assert done == [1, 2]
    window.answered(share, 50, share.batch)
    assert not share.batch.is_done
    window.answered(share, 0, share.batch)
    assert share.batch.is_done
    window.released(share, 3)
    assert (share.runs, share.bytes, share.entries) == (0, 0, 0)


def place(size: int, first: int | None = None, turn: object = None) -> Place:
    return Place(lambda _: None, 1, size, first, turn, 0)


def full() -> tuple[AddWindow, Share]:
    window, share = AddWindow(100), Share()
    assert window.admit(share, lambda _: None, 1, 10, 10, object())
    return window, share


def test_who_waits_is_let_in_in_the_order_of_arrival() -> None:
    """The large one first, though the small one would fit before; and nobody passes them, but who cannot wait."""
    window, share = full()
    large, small = place(10, turn=object()), place(1, turn=object())
    for one in (large, small):
        window.stand_in_line(share, one)
    assert window.next_in(share, -1, 10) is None
    window.answered(share, 5, share.batch)
    assert window.next_in(share, -1, 10) is None
    assert not window.admit(share, lambda _: None, 1, 1, 10, object())
    assert window.admit(share, lambda _: None, 1, 1, 10, object(), passing=True)
    window.answered(share, 6, share.batch)
    assert window.next_in(share, -1, None) is None  # the ledger's bytes are too many on a slow bookie
    assert window.next_in(share, -1, 10) is large and window.leave(large)
    assert window.next_in(share, -1, 10) is None and share.bytes == 10
    window.answered(share, 10, share.batch)
    assert window.next_in(share, -1, 10) is small and not share.line


def test_who_leaves_the_line_holds_nobody_up() -> None:
    window, share = full()
    window.answered(share, 5, share.batch)
    large, small = place(10, turn=object()), place(1, turn=object())
    for one in (large, small):
        window.stand_in_line(share, one)
    assert not window.leave(large) and large.item is None  # its payload
    assert window.next_in(share, -1, 10) is small and share.bytes == 6


def test_a_ledger_that_waits_for_others_is_nudged_as_soon_as_they_have_made_room() -> None:
    nudged: list[int] = []
    window, other = AddWindow(16), Share()
    shares = [Share(lambda number=number: nudged.append(number)) for number in range(2)]  # type: ignore[misc]
    for share in shares:
        window.hand_in(share, lambda _: None, 1)
        window.stand_in_line(share, Place(lambda _: None, 4, 1, None, object(), 0))
    window.hand_in(other, lambda _: None, 14)
    for share in shares:
        assert window.next_in(share, -1, 10) is None
    window.released(other, 1)
    assert not nudged  # there is no room yet
    window.released(other, 3)
    assert sorted(nudged) == [0, 1]
    assert window.next_in(shares[0], -1, 10) is not None
    nudged.clear()
    window.released(other, 1)
    assert not nudged  # a ledger that was nudged is nudged again once it has looked in vain


def test_a_turn_is_given_in_line_and_never_to_who_has_gone() -> None:
    window, share = AddWindow(100), Share()
    first, gone, second = object(), object(), object()
    assert window.take_turn(share, first, 1)
    left, waits = (Place(None, 0, 0, None, turn, 2) for turn in (gone, second))
    for one in (left, waits):
        window.stand_in_line(share, one)
    piece, single = place(1, turn=first), place(1, turn=object())
    for one in (single, piece):
        window.stand_in_line(share, one)
    assert window.next_in(share, -1, 10) is piece  # of who has the turn, before all others
    assert window.next_in(share, -1, 10) is None
    left.gone = True
    share.turn = None
    assert window.next_in(share, -1, 10) is waits and share.turn is second and share.turn_of == 2
    assert window.next_in(share, -1, 10) is None
    share.turn = None
    assert window.next_in(share, -1, 10) is single


def test_with_ids_of_the_callers_the_lowest_is_next() -> None:
    """An entry below those already handed in needs no room: only it can make some."""
    window, share = full()
    above, below = place(5, first=7), place(5, first=3)
    for one in (above, below):
        window.stand_in_line(share, one)
    assert window.next_in(share, 2, 10) is None
    assert window.next_in(share, 4, 10) is below
    assert window.next_in(share, 4, 10) is None


def test_all_who_stand_in_line_are_dismissed_at_once() -> None:
    window, share = full()
    places = [place(10, turn=object()) for _ in range(3)]
    for one in places:
        window.stand_in_line(share, one)
    assert window.dismiss(share) == places and not share.line and not any(window.leave(one) for one in places)
