"""The board and the alerts name what exists: every metric, with a suffix that its kind has, and labels that it has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bk_core.metrics.table import ALL

ROOT = Path(__file__).resolve().parents[3]
BOARD: dict[str, Any] = json.loads((ROOT / "docs/metrics/board.json").read_text())
RULES = [rule for group in yaml.safe_load((ROOT / "docs/metrics/alerts.yml").read_text())["groups"] for rule in group["rules"]]
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
NAME = re.compile(r"\bbookkeeper_\w+")
SERIES = re.compile(r"\b(bookkeeper_\w+)(?:\{([^}]*)\})?")
BY = re.compile(r"\bby \(([^)]*)\)")
OF_HISTOGRAMS = ("_bucket", "_count", "_sum")


def wrong(expression: str) -> Iterator[str]:
    """Return the names by which Prometheus would find nothing."""
    known: set[str] = {"client"}
    for found in SERIES.finditer(expression):
        name, matchers = found[1], found[2] or ""
        base = next((name.removesuffix(end) for end in OF_HISTOGRAMS if name.endswith(end) and name.removesuffix(end) in ALL), name)
        if base not in ALL:
            yield f"there is no {name}"
            continue
        metric = ALL[base]
        if (metric.kind == "histogram") != (base != name):
            yield f"{name} is of kind {metric.kind}"
        labels = {*metric.labels, "bookie" if base.startswith("bookkeeper_bookie_") else "client"}
        known |= {*labels, *(["le"] if name.endswith("_bucket") else [])}
        yield from (f"{name} has no label {label}" for label in re.findall(r"(\w+)\s*(?:=~|=|!=)", matchers) if label not in labels)
        if metric.kind == "counter" and not re.search(rf"(?:rate|increase)\({name}", expression):
            yield f"{name} is a counter and asked for without its rate"
    for group in BY.findall(expression):
        yield from (f"nothing here has the label {label}" for label in re.split(r",\s*", group) if label not in known)


def expressions() -> list[tuple[str, str]]:
    of_board = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
    return of_board + [(rule["alert"], rule["expr"]) for rule in RULES]


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_every_expression_names_what_there_is(title: str, expression: str) -> None:
    assert not list(wrong(expression)), title
    assert NAME.search(expression)


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("rate(bookkeeper_client_nothing_total[5m])", "there is no bookkeeper_client_nothing_total"),
        ("bookkeeper_client_add_entry_seconds", "is of kind histogram"),
        ("bookkeeper_client_add_entry_total", "without its rate"),
        ('rate(bookkeeper_client_add_entry_total{bookie="x"}[5m])', "has no label bookie"),
        ("sum by (query) (rate(bookkeeper_client_add_entry_total[5m]))", "the label query"),
    ],
)
def test_what_is_not_there_is_noticed(expression: str, told: str) -> None:
    assert any(told in problem for problem in wrong(expression))


def test_the_board_is_one_that_grafana_takes() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids)) and BOARD["schemaVersion"] >= 36 and BOARD["uid"] and BOARD["title"]
    variables = {variable["name"] for variable in BOARD["templating"]["list"]}
    assert variables == {"datasource", "client", "bookie"}
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    for panel in PANELS:
        assert panel["description"] and panel["datasource"]["uid"] == "${datasource}", panel["title"]
        used = set(re.findall(r"\$(\w+)", " ".join(target["expr"] for target in panel["targets"])))
        assert used <= variables | {"__rate_interval"}
    assert str(ROOT) not in json.dumps(BOARD)


def test_every_alert_says_why_and_what_then() -> None:
    assert len(RULES) == len({rule["alert"] for rule in RULES}) >= 10
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert all(rule["annotations"][part].endswith(".") for part in ("why", "then")), rule["alert"]


def test_the_page_has_every_metric_and_every_alert() -> None:
    from docs.site import reference

    page = reference.pages()["metrics.md"]
    for metric in ALL.values():
        assert f"| `{metric.name}` | {metric.kind}, {metric.unit}" in page and metric.meaning in page
    for rule in RULES:
        assert f"### {rule['alert']}\n" in page and rule["expr"] in page


def test_a_variable_has_values_of_all_metrics_that_it_filters() -> None:
    """ "All" of a variable stands for the values that its query finds: a panel of other metrics would stay empty."""
    for variable in (one for one in BOARD["templating"]["list"] if one["type"] == "query"):
        families = {name.split("_")[1] for name in NAME.findall(variable["definition"])}
        filtered = [target["expr"] for panel in PANELS for target in panel["targets"] if f'=~"${variable["name"]}"' in target["expr"]]
        assert filtered and variable["query"]["query"] == variable["definition"]
        assert {name.split("_")[1] for expression in filtered for name in NAME.findall(expression)} <= families, variable["name"]
