"""The judge of memory."""

from __future__ import annotations

import random
from pathlib import Path

from tests.spark_soak.memory import Series, kind_of, plot, summary


def _series(kind: str, sizes: list[float], step_s: float = 2.0) -> Series:
    return Series(kind, 1, [step_s * i for i in range(len(sizes))], sizes)


def test_a_leak_is_seen_and_a_warm_up_is_none() -> None:
    rng = random.Random(1)
    flat = _series("bookie", [min(80.0, 20.0 + 5 * i) + rng.random() for i in range(200)])
    leak = _series("task worker", [100.0 + 0.5 * i for i in range(200)])
    young = _series("planner worker", [50.0 + 10 * i for i in range(8)])
    heap = _series("driver JVM", [300.0 + 2 * i for i in range(200)])
    found = summary([flat, leak, young, heap], 400.0)
    assert {kind: one["flat"] for kind, one in found.items()} == {
        "bookie": True, "task worker": False, "planner worker": None, "driver JVM": None,
    }  # fmt: skip
    assert found["task worker"]["growth_mb"] == 50.0  # from the middle of the second quarter to that of the last
    assert found["planner worker"]["judged"] == 0 and found["driver JVM"]["growth_mb"] > 0


def test_kinds_are_told_by_command_lines() -> None:
    assert kind_of("python -m pyspark.daemon pyspark.worker", None) == "task worker"
    assert kind_of("python -m pyspark.daemon pyspark.sql.worker.commit_data_source_write", None) == "planner worker"
    assert kind_of("java -cp x org.apache.spark.deploy.worker.Worker", None) is None


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    plot([_series("bookie", [1.0, 2.0]), _series("driver JVM", [3.0])], [{"at_s": 1.0}], "two", tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
