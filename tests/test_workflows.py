"""The forge's workflow can be read, does what the Makefile can, and tries what pyproject.toml claims. It has run on no forge yet."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.test_makefile import TARGETS

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def jobs() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = {}
    for path in FILES:
        loaded = yaml.safe_load(path.read_text())
        assert set(loaded) == {"name", True, "permissions", "concurrency", "jobs"}, path  # YAML takes `on` for a truth value
        assert loaded["permissions"] == {"contents": "read"}
        found.update(loaded["jobs"])
    return found


def steps() -> list[dict[str, Any]]:
    return [step for job in jobs().values() for step in job["steps"]]


def test_every_job_has_steps_and_a_bound() -> None:
    assert set(jobs()) == {"test", "sdist", "wheels", "matrix"}
    for name, job in jobs().items():
        assert set(job) <= {"strategy", "runs-on", "timeout-minutes", "steps"}, name
        assert 0 < job["timeout-minutes"] <= 120, name
        for step in job["steps"]:
            assert set(step) <= {"uses", "with", "run", "env", "if"} and len({"uses", "run"} & set(step)) == 1, step


def test_what_it_runs_is_there() -> None:
    commands = " ".join(step.get("run", "") + " " + " ".join(step.get("env", {}).values()) for step in steps())
    assert {"matrix", "test"} == set(re.findall(r"make ([a-z][a-z0-9-]*)", commands)) <= TARGETS
    files = re.findall(r"(?:bash |\{project\}/)(\S+)", commands)
    assert files == [".ci/run", "tests/wheel/first_lines.py"] and all((ROOT / name).is_file() for name in files)
    assert {step["uses"].partition("/")[0] for step in steps() if "uses" in step} == {"actions"}


def test_it_names_no_host() -> None:
    for path in FILES:
        assert not re.search(r"https?:|\b[\w-]+\.(com|org|net|io|dev|internal|local)\b|\d+\.\d+\.\d+\.\d+", path.read_text()), path


def test_each_claimed_python_and_both_processors_are_tried() -> None:
    matrix = jobs()["matrix"]["strategy"]["matrix"]
    claimed = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if line.startswith("Programming Language :: Python :: 3.")]
    assert matrix["python"] == claimed and matrix["runner"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]
    wheels = jobs()["wheels"]["strategy"]["matrix"]["include"]
    assert {one["machine"]: one["runner"] for one in wheels} == dict(zip(("x86_64", "aarch64"), matrix["runner"], strict=True))
    build = next(step["env"]["CIBW_BUILD"] for step in jobs()["wheels"]["steps"] if "env" in step)
    tag = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["distutils"]["bdist_wheel"]["py-limited-api"]
    assert build == f"{tag}-manylinux_*" and tag == "cp" + PROJECT["requires-python"].removeprefix(">=").replace(".", "")
