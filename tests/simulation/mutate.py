"""``python -m tests.simulation.mutate [rule ...]``: break one rule at a time; which invariant notices, after how many seeds."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from dataclasses import dataclass

from tests.simulation.invariants import InvariantViolated
from tests.simulation.mutations import MUTATIONS, Mutation, applied
from tests.simulation.runs import run_of
from tests.simulation.unit_mutations import hunt_all


@dataclass(frozen=True, slots=True)
class Catch:
    """``rule``: the expected invariant that fired first, None if none did within the budget. ``others`` fired before it."""

    rule: str | None
    seeds: int
    seconds: float
    detail: str = ""
    others: tuple[str, ...] = ()


def hunt(mutation: Mutation, *, first: int = 0, seconds: float = 1e9) -> Catch:
    """Seeds first, first + 1, ... until an expected invariant fires."""
    begun = time.perf_counter()
    others: Counter[str] = Counter()
    with applied(mutation):
        for seed in range(first, first + mutation.seeds):
            rule, detail = _play(seed, mutation)
            if rule in mutation.expected:
                return Catch(rule, seed - first + 1, time.perf_counter() - begun, detail, tuple(others))
            if rule:
                others[rule] += 1
            if time.perf_counter() - begun > seconds:
                break
    return Catch(None, mutation.seeds, time.perf_counter() - begun, "", tuple(others))


def _play(seed: int, mutation: Mutation) -> tuple[str, str]:
    try:
        run_of(seed, mutation.forced).play()
    except InvariantViolated as error:
        return error.rule, error.detail
    except Exception as error:  # a machine's own assertion
        return "crash", f"{type(error).__name__}: {error}"
    return "", ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutate")
    parser.add_argument("rules", nargs="*", help="rules, or the beginning of their names; all if none")
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each mutation")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # production links say what they meet; here that is the weather
    missed = 0
    for mutation in MUTATIONS:
        if options.rules and not any(mutation.rule.startswith(rule) for rule in options.rules):
            continue
        catch = hunt(mutation, first=options.first, seconds=options.seconds)
        missed += catch.rule is None
        before = f" (unexpected before: {', '.join(catch.others)})" if catch.others else ""
        by = catch.rule or "NOT CAUGHT"
        print(f"{mutation.rule:18} {by:10} after {catch.seeds:6} seeds, {catch.seconds:6.1f} s  {mutation.what}{before}")
        if catch.detail:
            print(f"{'':18} {catch.detail.splitlines()[0][:150]}")
        sys.stdout.flush()
    missed += hunt_all(options.rules)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
