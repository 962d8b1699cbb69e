"""The settings that a program may set by hand stand in one table, and it says what the code does."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from bk_core.config import SET_BY_HAND, ClientConfig
from bk_core.protocol.ledger.read.options import ReadOptions
from bk_core.protocol.limits import Limits

README = Path(__file__).resolve().parents[3] / "bk_core" / "README.md"
UNITS = {"_s": "seconds", "_racks": "racks", "connections_per_bookie": "connections"}
COUNTS = re.compile(r"(?:_(?:s|ns|bytes|entries|errors|racks|max|in_flight|ns_max)|connections_per_bookie|rotation)$|_bytes_in_flight$")


def rows() -> dict[str, list[str]]:
    """Cells of the table by the setting that they are about."""
    section = README.read_text().split("## Settings\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {cells[0].strip("` "): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_the_table_has_the_ten() -> None:
    assert tuple(rows()) == SET_BY_HAND and len(SET_BY_HAND) == 10


@pytest.mark.parametrize("name", SET_BY_HAND)
def test_the_table_tells_unit_default_and_effect(name: str) -> None:
    unit, default, effect = rows()[name]
    (field,) = [one for one in fields(ClientConfig) if one.name == name]
    assert default.strip("`") == str(field.default)
    assert all(unit == told for suffix, told in UNITS.items() if name.endswith(suffix))
    assert len(effect) > 20


@pytest.mark.parametrize("cls", [ClientConfig, Limits, ReadOptions], ids=lambda cls: cls.__name__)
def test_every_number_names_its_unit(cls: Any) -> None:
    """A number of what, or of which unit of time or size: the name says it."""
    numbers = [one.name for one in fields(cls) if str(one.type).startswith(("int", "float"))]
    assert not [name for name in numbers if not COUNTS.search(name)]
