"""The table of ``tests/option_mutations`` is whole, and what it runs under really ignores an option and nothing else."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from bk_core.errors import InvalidArgumentError
from bk_spark.options.table import OPTIONS, URI_ENVIRONMENT, Option, Options, parse_options
from tests.option_mutations.table import OPTION_TESTS

ROOT = Path(__file__).resolve().parents[3]
IGNORE = ROOT / "tests" / "option_mutations" / "ignore"
URI = "zk://h/ledgers"
VALUES = {
    "bookkeeper.metadataServiceUri": URI,
    "bookkeeper.protocol": "v3",
    "ledgers": "7",
    "entryFormat": "raw",
    "compression": "zstd",
    "digestType": "MAC",
    "startingOffsets": "latest",
    "startingOffsetsByTimestamp": '{"a":1}',
    "startingOffsetsByTimestampStrategy": "latest",
    "endingOffsets": "latest",
    "endingOffsetsByTimestamp": '{"a":1}',
    "openLedgers": "lac",
    "metadata": "logs",
    "failOnDataLoss": "false",
    "failOnNewColumns": "false",
    "waitForLog": "true",
    "createLogs": "false",
    "exactlyOnce": "false",
    "minPartitions": "2",
}
TOGETHER = {
    "startingOffsetsByTimestampStrategy": {"startingTimestamp": "0"},
    "maxTriggerDelay": {"minOffsetsPerTrigger": "9"},
    "txnAppId": {"txnVersion": "1"},
    "txnVersion": {"txnAppId": "1"},
}


def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_option_has_tests_that_exist() -> None:
    assert list(OPTION_TESTS) == [option.name for option in OPTIONS]
    asked = sorted({test for tests in OPTION_TESTS.values() for test in tests})
    there = {path: functions(path) for path in {test.split("::")[0] for test in asked}}
    assert [test for test in asked if test.split("::")[1].split("[")[0] not in there[test.split("::")[0]]] == []
    assert all(OPTION_TESTS.values())
    assert not any(path.endswith("test_options.py") for path in there)  # a parsed value that nobody uses would pass there


@cache
def mutation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ignoring_an_option", IGNORE / "sitecustomize.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_ignored_option_keeps_its_default_and_was_not_given(option: Option) -> None:
    """Under each of its names."""
    parse = mutation().ignoring(parse_options, option)
    without = {"bookkeeper.metadataserviceuri": URI}
    others = {**without, **TOGETHER.get(option.name, {})}
    for spelling in (option.name.lower(), *option.aliases):
        given = {**others, spelling: VALUES.get(option.name, "1" if _takes(option, "1") else "true")}
        if option.field == "uri":
            assert parse({spelling: URI}, {URI_ENVIRONMENT: "zk://e/l"}).uri == "zk://e/l"
            continue
        meant, ignored = parse_options(given), parse(given)
        assert getattr(meant, option.field) != option.default == getattr(ignored, option.field)
        assert meant.given - ignored.given == {option.field} and parse(without) == parse_options(without)
        assert [f for f in Options.__dataclass_fields__ if getattr(meant, f) != getattr(ignored, f)] == [option.field, "given"]


def test_an_ignored_option_is_still_checked() -> None:
    for option, value in ((OPTIONS[2], {"logs": "a", "log": "b"}), (OPTIONS[1], {"bookkeeper.protocol": "v4"})):
        with pytest.raises(InvalidArgumentError, match=option.name):
            mutation().ignoring(parse_options, option)({"metadataServiceUri": URI, **value})


def _takes(option: Option, text: str) -> bool:
    try:
        option.parse(text)
    except ValueError:
        return False
    return True


def test_processes_inherit_it() -> None:
    """A process imports by PYTHONPATH alone, as Spark's planners and workers do."""
    program = "from bk_spark.options.table import parse_options as p; print(p({'metadataServiceUri': 'zk://h/l', 'topic': 'a'}).log)"
    paths = os.pathsep.join([str(IGNORE), str(ROOT)])
    for ignored, log in (("log", "None"), ("logs", "a"), ("", "a")):
        environment = {**os.environ, "PYTHONPATH": paths, "BK_IGNORED_OPTION": ignored}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == log
