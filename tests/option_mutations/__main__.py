"""``python -m tests.option_mutations [option ...]``: ignore one option at a time; do its tests notice? Exit status 1 if one does not.

A mutant is killed by a test that fails. One that errs in a fixture, is skipped, never runs or never ends tells nothing, and its mutant
counts as a survivor.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.option_mutations.table import OPTION_TESTS

ROOT = Path(__file__).resolve().parents[2]
IGNORE = Path(__file__).resolve().with_name("ignore")
VARIABLE = "BK_IGNORED_OPTION"
PYTEST = ["-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", "--timeout-method=signal"]
LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a test: "passed", "failed", or why it tells nothing. ``why`` is the first line of the failure."""

    word: str
    why: str = ""


def run(tests: Sequence[str], ignored: str = "") -> tuple[dict[str, Outcome], float]:
    """The tests in one pytest process with an option ignored in it and in all its children ("": none). Outcomes by test, seconds."""
    paths = os.pathsep.join([str(IGNORE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, VARIABLE: ignored}
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="bk-option-mutations-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, *PYTEST, f"--junitxml={report}", *tests]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
        found = _outcomes(report, tests)
    if not all(outcome.word in ("passed", "failed") for outcome in found.values()):
        print(done.stdout[-3000:] + done.stderr[-1000:], file=sys.stderr)
    return found, time.perf_counter() - begun


def _outcomes(report: Path, tests: Sequence[str]) -> dict[str, Outcome]:
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    return {test: _outcome([case for case in cases if _is_of(case, test)]) for test in tests}


def _is_of(case: ElementTree.Element, test: str) -> bool:
    path, function = test.split("::")
    module = path.removesuffix(".py").replace("/", ".")
    return case.get("classname") == module and function in (case.get("name"), (case.get("name") or "").split("[")[0])


def _outcome(cases: Sequence[ElementTree.Element]) -> Outcome:
    """Return the outcome of a test with any number of parameters: failed if one of them fails, else passed if every one passes."""
    if not cases:
        return Outcome("did not run")
    for failure in (found for case in cases for found in case.iter("failure")):
        why = " ".join((failure.get("message") or "").split())[:100]
        return Outcome("timed out" if "from pytest-timeout" in why else "failed", why)
    for word in ("error", "skipped"):
        if any(True for case in cases for _ in case.iter(word)):
            return Outcome(word)
    return Outcome("passed")


def play(option: str) -> list[tuple[str, Outcome]]:
    outcomes, seconds = run(OPTION_TESTS[option], option)
    for test, outcome in outcomes.items():
        word = {"failed": "killed", "passed": "SURVIVED"}.get(outcome.word, f"SURVIVED ({outcome.word})")
        print(f"{option:34} {word:9} {seconds:5.1f} s  {test}")
        if outcome.why:
            print(f"{'':34} {outcome.why}")
    sys.stdout.flush()
    return list(outcomes.items())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.option_mutations")
    parser.add_argument("options", nargs="*", help="options to ignore, one at a time; all if none")
    chosen = parser.parse_args().options or list(OPTION_TESTS)
    if unknown := [name for name in chosen if name not in OPTION_TESTS]:
        parser.error(f"no such option: {', '.join(unknown)}")
    tests = list(dict.fromkeys(test for name in chosen for test in OPTION_TESTS[name]))
    before, seconds = run(tests)
    print(f"nothing ignored: {len(tests)} tests in {seconds:.1f} s", flush=True)
    if failing := {test: outcome for test, outcome in before.items() if outcome.word != "passed"}:
        for test, outcome in failing.items():
            print(f"{outcome.word} although nothing is ignored: {test} {outcome.why}")
        return 1
    begun = time.perf_counter()
    played = {option: play(option) for option in chosen}
    survivors = [option for option, found in played.items() if any(outcome.word != "failed" for _, outcome in found)]
    print(f"{len(played)} options ignored, {len(played) - len(survivors)} noticed, in {time.perf_counter() - begun:.0f} s", end="")
    print(f"; not noticed by every test: {', '.join(survivors)}" if survivors else "")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
