"""The arithmetic of the benchmark: rates, ratios by round, CPU by process, what counts as reached. Nothing here is timed."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.benchmarks import __main__
from tests.benchmarks.measure import Comparison, CpuMeter, Reach, Sample, Spread, Steady, descendants, interleave, number, total, usage_of
from tests.benchmarks.plan import STEPS, Cost, Overdue, Step, Took, bounded, chosen
from tests.benchmarks.plots import picture
from tests.benchmarks.report import Report
from tests.benchmarks.settings import Settings
from tests.benchmarks.spark_all import PARTS as SPARK_PARTS


def comparison(*reaches: Reach) -> Comparison:
    ours = [Sample(1.0, 400.0, 4000, {"client": 0.5, "bookies": 0.25}, {"p99_ms": 2.0}), Sample(2.0, 400.0, 4000, {"client": 0.5})]
    theirs = [Sample(1.0, 100.0, 1000, {"client": 1.0}, {"p99_ms": 4.0}), Sample(1.0, 50.0, 500, {"client": 1.0})]
    return Comparison("writes", "entries", {"ours": ours, "theirs": theirs}, "theirs", "made up", reaches)


def test_ratios_are_taken_within_a_round() -> None:
    made = comparison()
    assert made.spread("ours") == Spread(200.0, 300.0, 400.0)
    assert made.ratio("ours") == Spread(4.0, 4.0, 4.0)
    assert made.ratio("ours", "cpu:client") == Spread(8.0, 12.0, 16.0)
    assert made.ratio("ours", "p99_ms") == Spread(0.5, 0.5, 0.5)  # only one round has it


def test_cpu_is_counted_per_million_and_per_gib() -> None:
    million, gib = comparison().cpu_per("ours")["client"]
    assert million == pytest.approx(1.0 / 800 * 1e6)
    assert gib == pytest.approx(1.0 / 8000 * (1 << 30))


@pytest.mark.parametrize(
    ("cpu", "verdict"),
    [
        ({"client": 1.0, "bookies": 0.8}, "the machine is the limit, most of it goes to client"),
        ({"client": 0.95, "bookies": 0.3}, "client is the limit"),
        ({"client": 0.2, "bookies": 0.3}, "it waits"),
        ({}, ""),
    ],
)
def test_the_limit_is_told(cpu: dict[str, float], verdict: str) -> None:
    made = Comparison("", "entries", {"a": [Sample(1.0, 1.0, 0, cpu)]}, "a")
    assert made.limit("a", cores=2).endswith(verdict)


def test_what_should_be_reached() -> None:
    reaches = [
        Reach("ours", 4.0),
        Reach("ours", 4.1),
        Reach("ours", 1.1, "p99_ms", at_most=True),
        Reach("ours", 300.0, against=""),
        Reach("ours", 2.0, "cpu:bookies"),  # the other has none: not told at all
        Reach("absent", 1.0),
    ]
    lines = comparison(*reaches).verdicts()
    assert [line.rsplit(": ")[1] for line in lines] == ["4 yes", "4 NO", "0.5 yes", "300 yes"]


def test_rounds_alternate_and_warm_up_is_not_counted() -> None:
    order: list[str] = []

    def run(name: str) -> Sample:
        order.append(name)
        return Sample(1.0, float(len(order)))

    samples = interleave({"a": lambda: run("a"), "b": lambda: run("b")}, rounds=2, warm_up=1)
    assert order == ["a", "b"] * 3
    assert [sample.amount for sample in samples["b"]] == [4.0, 6.0]


def test_a_sample_may_be_the_sum_of_several() -> None:
    parts = [Sample(1.0, 2.0, 3, {"a": 0.5}, {"peak": 7.0}), Sample(2.0, 4.0, 6, {"a": 0.25, "b": 1.0}, {"peak": 5.0})]
    assert total(parts) == Sample(3.0, 6.0, 9, {"a": 0.75, "b": 1.0}, {"peak": 7.0})


def test_short_work_is_repeated_until_a_sample_is_long_enough() -> None:
    steady = Steady(lambda: Sample(0.1, 5.0), 0.5)
    assert [steady().amount for _ in range(3)] == [5.0, 25.0, 25.0]
    assert Steady(lambda: Sample(9.0, 1.0), 0.5)().amount == 1.0


def test_cpu_and_memory_of_another_process() -> None:
    program = "x = bytearray(64 << 20)\nfor _ in range(3_000_000): pass\nprint('spent', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        with CpuMeter({"child": [child.pid], "below": lambda: descendants(os.getpid()), "gone": [2**22 + 1]}) as meter:
            assert child.stdout is not None
            child.stdout.readline()
        assert child.pid in descendants(os.getpid())
        child.communicate()
    assert meter.cpu["child"] > 0
    assert meter.cpu["gone"] == 0
    assert meter.peak_anonymous["child"] > 64 << 20
    assert meter.peak_rss["below"] >= meter.peak_anonymous["child"]
    assert usage_of(child.pid) is None
    sample = meter.sample(10.0, 20, p99_ms=1.0)
    assert (sample.seconds, sample.amount, sample.bytes, sample.extra["p99_ms"]) == (meter.seconds, 10.0, 20, 1.0)


def test_the_report_prints_keeps_and_draws(tmp_path: Path) -> None:
    out = io.StringIO()
    report = Report(tmp_path / "bench.json", out)
    report.add(comparison(Reach("ours", 4.0)))
    report.print_summary()
    report.took(Took(STEPS[0], 60.0, 61.0))
    report.plot(tmp_path / "bench.html")
    assert "4.00 / 4.00 / 4.00" in out.getvalue()
    assert "== reach: 1 of 1" in out.getvalue()
    kept = json.loads((tmp_path / "bench.json").read_text())
    assert kept["comparisons"][0]["contenders"]["ours"]["ratio"]["median"] == 4.0
    assert kept["steps"] == [{"name": STEPS[0].name, "expectedS": 60, "tookS": 61.0, "failed": False}]
    page = (tmp_path / "bench.html").read_text()
    assert page.count("<img") == 1 and "4.00 / 4.00 / 4.00" in page
    assert picture(report.comparisons)[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("value", "text"), [(1234567, "1.23 M"), (43210, "43.2 k"), (1234, "1,234"), (0.5, "0.5"), (2.5e9, "2,500 M"), (2.5e10, "25 G")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def names(words: str, *, quick: bool = False) -> list[str]:
    return [step.name for step in chosen(words, quick=quick)]


def test_parts_are_chosen_by_name() -> None:
    assert names("client.sinks, kernels") == ["kernels.crc", "kernels.frames", "client.sinks"]
    assert names("spark.flights") == ["spark.flights.some", "spark.flights.all"]
    assert names("spark.flights", quick=True) == ["spark.flights.some"]
    assert names("spark.scale", quick=True) == names("spark.scale")  # the quick run has none of its own
    assert names("") == [step.name for step in STEPS]
    assert set(names("", quick=True)) < set(names(""))
    with pytest.raises(ValueError, match="nothing is called spark.flight"):
        chosen("spark.flight", quick=False)


def test_every_step_of_spark_can_be_run() -> None:
    assert {step.detail for step in STEPS if step.part == "spark"} == set(SPARK_PARTS)


def test_expected_seconds_follow_the_rounds() -> None:
    step = Step("a.b", Cost(10, 5, 3), Cost(2, 1))
    assert step.expected_s(quick=False, rounds=5, asked=False) == 25
    assert step.expected_s(quick=False, rounds=5, asked=True) == 35
    assert step.expected_s(quick=True, rounds=2, asked=False) == 4
    assert Settings.of(quick=False, rounds=None).at_most(1) == 1
    assert Settings.of(quick=False, rounds=4).at_most(1) == 4


def test_a_step_that_hangs_is_ended() -> None:
    with pytest.raises(Overdue, match="this was not done within 0:00"), bounded(0.01, "this"):
        threading.Event().wait(60)
    with bounded(60, "that"):
        pass


class Steps:
    """A part whose first step fails."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run(self, detail: str) -> None:
        self.ran.append(detail)
        if len(self.ran) == 1:
            raise SystemExit("it ended")

    def close(self) -> None:
        self.ran.append("closed")


def test_a_step_that_fails_does_not_stop_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Steps()
    monkeypatch.setattr(__main__, "PARTS", {"kernels": lambda *_: part})
    assert __main__.main(["--only", "kernels", "--json", str(tmp_path / "bench.json")]) == 1
    assert part.ran == ["crc", "closed", "frames", "closed"]
    assert [step["failed"] for step in json.loads((tmp_path / "bench.json").read_text())["steps"]] == [True, False]


class Stopped(Steps):
    def run(self, detail: str) -> None:
        self.ran.append(detail)
        raise KeyboardInterrupt


def test_a_run_that_is_stopped_ends_its_processes_and_no_other_step_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Stopped()
    monkeypatch.setattr(__main__, "PARTS", {"kernels": lambda *_: part})
    with pytest.raises(KeyboardInterrupt):
        __main__.main(["--only", "kernels", "--json", str(tmp_path / "bench.json")])
    assert part.ran == ["crc", "closed"]
