"""The snippets of bk_core/README.md do what they show."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bk_core.bookie.local_cluster import LocalCluster

README = Path(__file__).resolve().parents[2] / "bk_core" / "README.md"


def test_every_snippet_runs(running_clusters: Callable[[str], LocalCluster]) -> None:
    """In their order, in one program: later ones use what earlier ones made."""
    snippets = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    assert len(snippets) == 6
    names: dict[str, Any] = {"uri": running_clusters("embedded").uri}
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"{README.name}, snippet {number}", "exec"), names)
