"""The three sizes of a ledger, E >= Qw >= Qa >= 1 (CR-1), and the error for sizes that break this rule. Pure."""

from __future__ import annotations

from collections.abc import Callable

from bk_core.errors import InvalidArgumentError

DEFAULT_SIZES = (3, 3, 2)  # E, Qw, Qa of a ledger, and of a log's ledgers, by default
_NAMES = ("ensemble_size", "write_quorum_size", "ack_quorum_size")
_WHY = ("an entry cannot go to more bookies than there are", "no more bookies can acknowledge an entry than store it")


def check_sizes(ensemble_size: int, write_quorum_size: int, ack_quorum_size: int, spelled: Callable[[str], str] = str) -> None:
    """Raise InvalidArgumentError that names the pair for which the rule does not hold. ``spelled`` maps this function's arguments to the
    names to use."""
    sizes = (ensemble_size, write_quorum_size, ack_quorum_size)
    for larger, why in enumerate(_WHY):
        if sizes[larger + 1] > sizes[larger]:
            told = f"{_told(larger + 1, sizes, spelled)} is above {_told(larger, sizes, spelled)}: {why}"
            given = all(size != usual for size, usual in zip(sizes[1:], DEFAULT_SIZES[1:], strict=True))
            raise InvalidArgumentError(told if given else f"{told}. Give all three, which are {_either()} by default")
    if ack_quorum_size < 1:
        raise InvalidArgumentError(f"{spelled(_NAMES[2])} must be at least 1, not {ack_quorum_size}")


def _told(index: int, sizes: tuple[int, int, int], spelled: Callable[[str], str]) -> str:
    return f"{spelled(_NAMES[index])} {sizes[index]}"


def _either() -> str:
    *first, last = map(str, DEFAULT_SIZES)
    return f"{', '.join(first)} and {last}"
