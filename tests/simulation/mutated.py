"""Lists which rule is broken by which mutation: ``python -m tests.simulation.mutated [rule ...]`` prints the list, rules without one as
well."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.simulation.mutations import MUTATIONS
from tests.simulation.unit_mutations import UNIT_MUTATIONS

RULES = Path(__file__).resolve().parents[2] / "bk_core" / "protocol" / "RULES.md"

# Why a rule has no mutation. Whoever adds a rule adds a mutation, or a line here.
WITHOUT: dict[str, str] = {
    "older than this list; invariants, scenarios and unit tests that cite it hold it": (
        "SM-1 SM-2 SM-3 SM-4 SM-5 SM-6 "
        "B-1 B-5 B-8 B-9 B-11 B-12 B-13 "
        "META-1 META-2 META-3 META-4 META-5 META-6 META-7 META-8 META-9 META-10 META-13 META-14 "
        "CR-1 CR-2 CR-3 CR-4 CR-5 CR-6 CR-7 CR-8 "
        "WR-1 WR-3 WR-4 WR-5 WR-6 WR-9 WR-10 WR-11 WR-12 WR-13 WR-14 WR-15 WR-16 "
        "EC-1 EC-2 EC-3 EC-4 EC-5 EC-9 EC-12 EC-13 EC-14 EC-15 EC-16 EC-17 "
        "CL-2 CL-3 CL-5 CL-6 CL-7 "
        "OP-1 OP-2 OP-3 OP-4 OP-5 OP-6 "
        "RD-1 RD-2 RD-3 RD-4 RD-5 RD-6 RD-7 RD-8 RD-9 RD-10 RD-11 RD-12 "
        "LC-1 LC-2 LC-3 LC-4 LC-5 LC-6 LC-7 LC-8 "
        "RC-1 RC-3 RC-4 RC-9 RC-11a RC-12 RC-13 RC-14 RC-17 RC-20 RC-21 RC-22 RC-23 RC-24 RC-25 RC-26 RC-27 "
        "Q-1 Q-2 Q-3 Q-4 Q-5 Q-6 Q-7 Q-8 Q-9 Q-10 "
        "G-0 G-1 G-2 G-3 G-5 G-7 G-9 G-10 G-13 G-14 G-15 G-16 G-20 G-21 G-22 G-23 G-24 G-25 G-26 G-27 G-28 "
        "LOG-2 LOG-3 LOG-4 LOG-5 LOG-8 LOG-9 LOG-10 LOG-14 LOG-I1 LOG-I2 LOG-I3 LOG-I4 LOG-I5 "
        "RR-1 RR-3 RR-4 RR-6 RR-8 RR-9 RR-10 RR-11 RR-12 RR-13 "
    ),
    "the walks of the simulator hold it (I-L2), and the unit tests that cite it": "LOG-21",
}


def rules() -> list[str]:
    """Ids of RULES.md, in its order."""
    return re.findall(r"^\| ([A-Z]+-I?\d+a?) \| ", RULES.read_text(), flags=re.M)


def mutations() -> dict[str, list[str]]:
    """Return the mutations of each rule, as the tables name them."""
    found: dict[str, list[str]] = {}
    for name in (*(one.rule for one in MUTATIONS), *(one.rule for one in UNIT_MUTATIONS)):
        found.setdefault(name.split(" ")[0], []).append(name)
    return found


def reasons() -> dict[str, str]:
    """Return the reason of each rule that has no mutation."""
    return {rule: why for why, named in WITHOUT.items() for rule in named.split()}


def main(wanted: list[str]) -> None:
    broken, why = mutations(), reasons()
    for rule in rules():
        if not wanted or any(rule.startswith(one) for one in wanted):
            print(f"{rule:8} {', '.join(broken.get(rule, ())) or '-- ' + why.get(rule, 'NOTHING')}")


if __name__ == "__main__":
    main(sys.argv[1:])
