"""One place of the matrix without Spark; all of it: ``make secure-matrix`` (README.md)."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from bk_core.bookie import apache
from bk_core.errors import BookieUnavailableError
from tests.secured_matrix.play import play_all
from tests.secured_matrix.table import (
    BOOKIES,
    EMBEDDED,
    OPERATIONS,
    SPARK,
    Cell,
    Place,
    Row,
    is_good,
    loaded,
    rows_of,
    saved,
    summary,
    table,
)

PLACE = Place(EMBEDDED, "mutual", "digest")


@pytest.mark.apache
@pytest.mark.parametrize("protocol", ["v3", pytest.param("v2", marks=pytest.mark.deep)])
def test_certificates_and_a_password_serve_both_clients_and_refuse_others(tmp_path: Path, protocol: str) -> None:
    try:
        apache.resolve(apache.DEFAULT_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    if shutil.which("javac") is None:
        pytest.skip("no javac to compile the Java side")
    row = Row(PLACE, protocol)
    told: list[str] = []
    assert play_all([row], tmp_path, told.append, with_spark=False) == [], "a log shows a password"
    assert is_good([row]), told
    assert set(row.cells) == set(OPERATIONS) and {row.cells[name].state for name in SPARK} == {"left out"}
    refused = {name for name, cell in row.cells.items() if cell.state == "refused"}
    assert refused == {"wrong secret", "shows nothing", "certificate", "without TLS"}
    assert sum(cell.state == "passed" for cell in row.cells.values()) == 7


def test_every_combination_is_a_row() -> None:
    names = [row.name for row in rows_of()]
    assert len(names) == len(set(names)) == len(BOOKIES) * 3 * 3 * 2
    assert "4.14.7 tls gssapi v2" in names and f"{EMBEDDED} mutual digest v3" in names


def test_tables_tell_reasons_and_failures() -> None:
    rows = [Row(PLACE, protocol, {name: Cell("passed") for name in OPERATIONS}) for protocol in ("v2", "v3")]
    assert is_good(rows) and re.search(r"\| embedded \| mutual \| digest \| v2 \|( ok \|){13}", table(rows))
    rows[1].cells["read"] = Cell("failed", "bytes differ")
    rows[1].cells["without TLS"] = rows[1].cells["shows nothing"] = Cell("argued", "for a reason")
    assert not is_good(rows) and "| v3 | ok | ok | **FAILED** |" in table(rows)
    assert "* a: for a reason." in table(rows) and "* b" not in table(rows)
    assert "23 passed, 2 argued, 1 failed" in table(rows)
    assert "| mutual | digest | 23 passed / 2 argued / 1 failed |" in summary(rows)


def test_a_file_keeps_what_was_played_before(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "matrix.json"
    first, second = (Row(PLACE, protocol, {"read": Cell("failed", "x", 1.5)}) for protocol in ("v3", "v2"))
    assert [row.name for row in saved(path, [first])] == [first.name]
    again = Row(PLACE, "v3", {"read": Cell("passed")})
    assert saved(path, [second]) == loaded(path) == [second, first]
    assert saved(path, [again]) == [second, again]
