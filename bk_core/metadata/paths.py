"""The paths of all nodes in a ZooKeeper-like tree: ledger ids as paths, LAYOUT, names for generating ids (metadata.md 1.2, 1.3,
2). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bk_core.errors import InvalidArgumentError, MetadataFormatError

LEDGER_ID_MAX = 2**63 - 1
SHORT_ID_END = 2**31 - 1  # short ids and the hierarchical layout's short paths end just below it (metadata.md 2.2)
VALUE_BYTES_MAX = 1_000_000  # ZooKeeper drops the connection of a client that sends more than 1 048 575 bytes

_LEGACY_ID_END = 10**10
_LAYOUT_FORMATS = (1, 2)
_SHORT_NAMES = {"flat": "flat", "hierarchical": "hierarchical"}  # line 2 of layout format 1
_CLASS_PACKAGE = "org.apache.bookkeeper.meta."
_CLASS_NAMES = {
    "flat": "FlatLedgerManagerFactory",
    "legacy": "LegacyHierarchicalLedgerManagerFactory",
    "hierarchical": "HierarchicalLedgerManagerFactory",
    "longhierarchical": "LongHierarchicalLedgerManagerFactory",
}
_MANAGER_VERSION = 1


@dataclass(frozen=True, slots=True)
class Tree:
    """One part of a ledger tree: a pattern for each directory level below the root, then one for the leaves."""

    levels: tuple[re.Pattern[str], ...]


_LEAF = re.compile(r"L[0-9]{4}")
_TWO, _THREE, _FOUR = (re.compile(rf"[0-9]{{{digits}}}") for digits in (2, 3, 4))
_FLAT_TREE = Tree((re.compile(r"L[0-9]{10,19}"),))
_LEGACY_TREE = Tree((_TWO, _FOUR, _LEAF))
_LONG_TREE = Tree((_THREE, _FOUR, _FOUR, _FOUR, _LEAF))
_TREES = {
    "flat": (_FLAT_TREE,),
    "legacy": (_LEGACY_TREE,),
    "hierarchical": (_LEGACY_TREE, _LONG_TREE),  # in this order ids come out ascending (metadata.md 2.3)
    "longhierarchical": (_LONG_TREE,),
}


def trees(manager: str) -> tuple[Tree, ...]:
    """The parts to walk, in order, so that ledger ids come out ascending."""
    return _TREES[manager]


def prunes_parents(manager: str) -> bool:
    """True if deleting a ledger also deletes its empty parents (metadata.md 2.4)."""
    return manager in ("hierarchical", "longhierarchical")


def flat_path(ledger_id: int) -> str:
    return f"/L{_checked(ledger_id):010d}"


def legacy_path(ledger_id: int) -> str:
    if _checked(ledger_id) >= _LEGACY_ID_END:
        raise InvalidArgumentError(f"ledger {ledger_id} has more than ten digits, which the legacy layout would cut off")
    digits = f"{ledger_id:010d}"
    return f"/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"


def long_path(ledger_id: int) -> str:
    digits = f"{_checked(ledger_id):019d}"
    return f"/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def ledger_path(manager: str, ledger_id: int) -> str:
    """Return the path of the ledger's node below the ledgers root, with a leading slash. Raises InvalidArgumentError for an id that has
    none."""
    match manager:
        case "flat":
            return flat_path(ledger_id)
        case "legacy":
            return legacy_path(ledger_id)
        case "hierarchical":
            return legacy_path(ledger_id) if _checked(ledger_id) < SHORT_ID_END else long_path(ledger_id)
        case "longhierarchical":
            return long_path(ledger_id)
    raise InvalidArgumentError(f"unknown ledger manager {manager!r}")


def _checked(ledger_id: int) -> int:
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise InvalidArgumentError(f"ledger id {ledger_id} is outside 0..2^63-1")
    return ledger_id


def layout_bytes(manager: str) -> bytes:
    """Return the content of LAYOUT, without a trailing line feed (metadata.md 1.3)."""
    return f"2\n{_CLASS_PACKAGE}{_CLASS_NAMES[manager]}:{_MANAGER_VERSION}".encode()


def manager_of_layout(data: bytes) -> str:
    """Return the ledger manager that LAYOUT names. Raises MetadataFormatError for one that is unknown or unreadable."""
    lines = data.decode("utf-8", "replace").split("\n")
    if len(lines) < 2 or not lines[0].isdecimal() or int(lines[0]) not in _LAYOUT_FORMATS:
        raise MetadataFormatError("LAYOUT does not start with the layout format 1 or 2")
    name, colon, version = lines[1].partition(":")
    if not colon or version != str(_MANAGER_VERSION):
        raise MetadataFormatError(f"LAYOUT names {lines[1]!r}, not a ledger manager of version {_MANAGER_VERSION}")
    if lines[0] == "1" and name in _SHORT_NAMES:
        return _SHORT_NAMES[name]
    class_name = name.removeprefix("dlshade.").removeprefix(_CLASS_PACKAGE)  # the prefix of shaded jars has no meaning
    for manager, known in _CLASS_NAMES.items():
        if class_name == known:
            return manager
    raise MetadataFormatError(f"LAYOUT names the ledger manager {name!r}, which is not supported")


def sequence_number(name: str) -> int | None:
    """Return the counter at the end of a node name like ``ID-0000000007``, or None if it is no short id (overflow, metadata.md 2.5)."""
    match = re.fullmatch(r".*?ID-(-?[0-9]+)", name)
    number = int(match[1]) if match else -1
    return number if 0 <= number < SHORT_ID_END else None


def high_order(names: list[str]) -> int | None:
    """Return the largest number among nodes ``HOB-%010d``, the upper half of long ids, or None if there are none."""
    numbers = [int(name[4:]) for name in names if re.fullmatch(r"HOB-[0-9]{10}", name)]
    return max(numbers, default=None)


def check_root(path: str, what: str) -> str:
    """Return an absolute path of at least one name without a trailing slash."""
    if not path.startswith("/"):
        raise InvalidArgumentError(f"{what} {path!r} does not start with a slash")
    if not path.strip("/"):
        raise InvalidArgumentError(f"{what} {path!r} names nothing: a slash and a name are the least")
    if path.endswith("/"):
        raise InvalidArgumentError(f"{what} {path!r} ends with a slash: write {path.rstrip('/')!r}")
    check_relative(path[1:], what)
    return path


def check_relative(path: str, what: str = "path") -> str:
    """Return names joined by single slashes, none of them ``.`` or ``..``."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or any(ord(letter) < 0x20 or 0x7F <= ord(letter) <= 0x9F for letter in part) for part in parts):
        raise InvalidArgumentError(f"{what} {path!r} is not a list of names joined by single slashes")
    return path


def default_log_root(root: str) -> str:
    """Return the default place of logs, beside and never under the ledgers root, because bookies' garbage collectors walk that one. Each
    cluster has its own (OWN-8)."""
    return f"{root}-logs"


def old_log_root(root: str) -> str:
    """Return the default of earlier versions, which clusters whose roots lie side by side shared."""
    return root.rpartition("/")[0] + "/bk-logs"


def around(root: str) -> list[str]:
    """Return the ledgers roots of clusters to which a root at this place would belong, in their tree or in their logs (OWN-13)."""
    parts = root.split("/")
    above = ["/".join(parts[:count]) for count in range(2, len(parts) + 1)]
    logs = default_log_root("")
    return [*above[:-1], *(path.removesuffix(logs) for path in above if path.endswith(logs) and not path.endswith(f"/{logs}"))]


def rack_map_path(root: str) -> str:
    """Return Pulsar's node with the racks of the bookies, which lies beside the ledgers root (metadata.md 1.5)."""
    return root.rpartition("/")[0] + "/bookies"


def check_log_root(log_root: str, root: str) -> str:
    check_root(log_root, "log root")
    if f"{log_root}/".startswith(f"{root}/"):
        raise InvalidArgumentError(f"log root {log_root!r} must not lie in the ledgers root {root!r}")
    return log_root


def check_value(data: bytes, path: str) -> bytes:
    if len(data) > VALUE_BYTES_MAX:
        raise InvalidArgumentError(f"value of {path} has {len(data)} bytes; a metadata store takes {VALUE_BYTES_MAX}")
    return bytes(data)
