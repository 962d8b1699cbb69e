"""Notebooks are stored without outputs, run from top to bottom, and their cells may be run again."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
OF_SPARK = {"stream_with_a_dying_bookie"}
# What they show, other tests show too.
LONG = {*OF_SPARK, "explore_ledgers", "guaranteed_write_quorum", "measure_cluster", "watch_recovery"}
RUN_AGAIN = ("explore_ledgers", "explore_log", "watch_recovery")
CELL_S = 120


def _all() -> list[Any]:
    return [
        pytest.param(path, marks=[pytest.mark.spark] * (path.stem in OF_SPARK) + [pytest.mark.deep] * (path.stem in LONG), id=path.stem)
        for path in NOTEBOOKS
    ]


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 7 and OF_SPARK | {*RUN_AGAIN} <= {path.stem for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_readme_lists_it(path: Path) -> None:
    assert f"| `{path.name}` |" in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_it_imports_is_there(path: Path) -> None:
    """This holds of notebooks, too, that only ``make deep-tests`` runs."""
    codes = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    trees = [ast.parse("\n".join(line for line in code.splitlines() if not line.lstrip().startswith(("%", "!")))) for code in codes]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    found: dict[str, Any] = {}
    exec(compile(ast.Module(imports, []), path.name, "exec"), found)
    assert "bk_core" in found
    used = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is(node.value, "bk_core")}
    assert not {name for name in used if not hasattr(found["bk_core"], name)}


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run in, which must be empty in the end."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(FOLDER.parent), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.delenv("BOOKKEEPER_METADATA_SERVICE_URI", raising=False)
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def run(notebook: Any, place: Path) -> list[Any]:
    """The outputs of all cells."""
    from nbclient import NotebookClient

    NotebookClient(notebook, timeout=CELL_S, kernel_name="python3", resources={"metadata": {"path": str(place)}}).execute()
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the kernel's client libraries warn about themselves
@pytest.mark.parametrize("path", _all())
def test_runs_from_top_to_bottom(path: Path, place: Path) -> None:
    """Each cell of those of RUN_AGAIN runs twice in a row, also the last, which ends the cluster."""
    notebook = nbformat.read(path, as_version=4)
    if path.stem in RUN_AGAIN:
        codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
        notebook.cells = [twin for cell in codes for twin in (cell, nbformat.v4.new_code_cell(cell.source))]
    outputs = run(notebook, place)
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert list(place.iterdir()) == []


INTERRUPTED = """
import os, signal, threading
log = client.create_log("interrupted", exist_ok=True)
reading = log.reader()
over = threading.Event()
def press():  # the stop button, until the cell ends: Python drops an interrupt that it meets in the callback of a weak reference
    while not over.wait(1.0):
        os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=press).start()
try:
    {wait}
finally:
    over.set()
"""
WAITS = {
    "a follower": "for run in reading.follow(): pass",
    "a table": "while True: client.ledgers().to_pandas()",
    "a picture": "while True: ledger.plot_fragments(ax=axes.cla() or axes)",
    "a trace": "with client.trace() as trace:\n        while True: client.ledger(ledger.ledger_id).refresh()",
}
MADE = """
from matplotlib.figure import Figure
axes = Figure().add_subplot()
with client.create_ledger() as writer:
    writer.append(b"x")
ledger = client.ledger(writer.ledger_id)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_an_interrupted_cell_leaves_a_working_notebook(place: Path) -> None:
    """Its own handles go on after it, and the next cells work. After an end that left the names behind, the first cell begins anew."""
    notebook = nbformat.read(FOLDER / "explore_ledgers.ipynb", as_version=4)
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    cells = [codes[0], nbformat.v4.new_code_cell(MADE)]
    for wait in WAITS.values():
        cell = nbformat.v4.new_code_cell(INTERRUPTED.format(wait=wait), metadata={"tags": ["raises-exception"]})
        check = nbformat.v4.new_code_cell(
            "assert client.ledger(ledger.ledger_id).refresh().length == 1; ledger.plot_fragments(); client.ledgers()"
        )
        cells += [cell, check]
    end = "client.close(); cluster.close()"
    anew = [end, codes[0].source, "writer = client.create_ledger(); assert writer.append(b'x') == 0; writer.close()", end]
    notebook.cells = [*cells, *map(nbformat.v4.new_code_cell, anew)]
    errors = [output.ename for output in run(notebook, place) if output.output_type == "error"]
    assert errors == ["KeyboardInterrupt"] * len(WAITS)
