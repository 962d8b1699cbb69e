"""Every rule of ``bk_core/protocol/RULES.md`` is cited by a test that would fail without it, and no citation is a slip of the pen."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.sources import no_collections, statements, text_of

ROOT = Path(__file__).resolve().parents[1]
RULE = re.compile(r"\b(?:SM|OWN|B|BKE|META|CR|WR|EC|CL|OP|RD|LC|RC|Q|G|LOG|RR|SES|GRD|BAT|JAN|LINK|FS)-I?\d+a?\b")


@cache
def rules() -> dict[str, str]:
    rows = re.findall(r"^\| ([A-Z]+-I?\d+a?) \| (.+) \|$", (ROOT / "bk_core" / "protocol" / "RULES.md").read_text(), flags=re.M)
    return dict(rows)


@cache
def _all_pieces() -> tuple[str, ...]:
    return tuple(piece for path in sorted((ROOT / "tests").rglob("*.py")) if path != Path(__file__) for piece in _pieces(path))


def _pieces(path: Path) -> tuple[str, ...]:
    """Names, decorators, docstrings and comments of test functions, and of the checkers that the simulator runs after every step."""
    lines = text_of(path).splitlines()
    pieces: list[str] = []
    with no_collections():
        nodes = list(statements(ast.parse(text_of(path))))
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and _is_check(node.name):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
            while first > 0 and lines[first - 1].lstrip().startswith("#"):
                first -= 1
            pieces.append("\n".join(lines[first : node.end_lineno]))
    return tuple(pieces)


def _is_check(name: str) -> bool:
    return name.lstrip("_").startswith(("test", "Test", "check", "scenario", "invariant", "require"))


@cache
def cited_by_tests() -> frozenset[str]:
    return frozenset(name for piece in _all_pieces() for name in RULE.findall(piece))


def test_every_rule_is_cited_by_a_test() -> None:
    missing = [rule for rule in rules() if rule not in cited_by_tests()]
    assert not missing, f"{len(missing)} of {len(rules())} rules are cited by no test: {' '.join(missing)}"


def test_every_citation_in_code_and_tests_names_a_rule() -> None:
    wrong = {}
    for folder in ("bk_core", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name in RULE.findall(text_of(path)):
                if name not in rules():
                    wrong[name] = str(path.relative_to(ROOT))
    assert not wrong, wrong


def test_the_list_of_rules_was_read() -> None:
    assert len(rules()) >= 216  # a bound: two who add rules at the same time need not agree on a sum


def _numbers_in_tests(pattern: str) -> set[int]:
    found = (number for piece in _all_pieces() for match in re.finditer(pattern, piece) for number in re.findall(r"\d+", match.group(1)))
    return {int(number) for number in found}


def test_every_scenario_is_told() -> None:
    """The 60 fault scenarios, by the number in the name of their test."""
    assert _numbers_in_tests(r"def test_scenario_(\d+)_") == set(range(1, 61))


def test_every_regression_has_its_test() -> None:
    """The defects of the Java client and bookie: 14 defects present (replication-protocol.md 14.1), 37 mended ones (R1..R37)."""
    present = _numbers_in_tests(r"14\.1,? items? ((?:\d+(?:, | and )?)+)") | _numbers_in_tests(r"def test_item_(\d+)_")
    assert present == set(range(1, 15))
    assert _numbers_in_tests(r"\bR(\d+)\b") | _numbers_in_tests(r"def test_r(\d+)_") == set(range(1, 38))
