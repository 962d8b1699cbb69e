"""Shared by all tests: what the header says, when a skip is a failure, and a mark that tells of a test run that crashed."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from bk_core import kernels
from bk_core.client.doctor import bookies as doctor_of_bookies
from bk_core.errors import ZooKeeperProcessError
from bk_core.metadata.uri import RACK_SCRIPT_VARIABLE
from tests.quick_java import hasten_spark, hasten_zookeeper, ready_spark

# A busy machine is no failure; a test that hangs meets pytest's own timeout.
EXAMPLES = int(os.environ.get("BK_EXAMPLES", "40"))  # of each test of Hypothesis that names no number of its own
settings.register_profile("no-deadline", deadline=None, max_examples=EXAMPLES)
settings.load_profile("no-deadline")
hasten_spark()
hasten_zookeeper()

os.environ.pop(RACK_SCRIPT_VARIABLE, None)  # the script of whoever runs the tests is about his own bookies

NEARLY_FULL = doctor_of_bookies.NEARLY_FULL
FORCE = os.environ.get("BK_TEST_FORCE") == "1"
_FLAG = Path(".cache") / "tests-running"


def pytest_report_header(config: pytest.Config) -> list[str]:
    lines = [f"bk_core kernels: {kernels.IMPLEMENTATION} ({kernels.CRC32C_KERNEL})"]
    if FORCE:
        lines.append("BK_TEST_FORCE=1: a skipped test counts as failed")
    return lines


def pytest_sessionstart(session: pytest.Session) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to what it starts in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    wanted = os.environ.get("BK_CORE_KERNELS")
    if wanted and wanted != kernels.IMPLEMENTATION:
        raise pytest.UsageError(f"BK_CORE_KERNELS={wanted}, but the kernels in use are {kernels.IMPLEMENTATION}: make setup")
    flag = session.config.rootpath / _FLAG
    flag.parent.mkdir(exist_ok=True)
    if flag.exists() and not _is_alive(flag.read_text()):
        # a crash of the extension ends the process without a report, and the next run would look as if nothing had happened
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(
                f"note: the test run with process id {flag.read_text()} ended without a report; it may have crashed", yellow=True
            )
    flag.write_text(str(os.getpid()))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """The half million objects that thousands of tests and their modules are live until the end: nobody looks for garbage among them,
    neither while they are made nor in each ``gc.collect()`` of a test, which costs 0.3 s otherwise."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("spark") is not None:
        with suppress(ZooKeeperProcessError):  # no Java: the test skips, or fails with the reason
            ready_spark()


@pytest.fixture(scope="session", autouse=True)
def disk_of_the_machine() -> Iterator[None]:
    """All bookies of a test share the disk of the machine that runs it. How full it is says nothing of the cluster, so the doctor passes
    over it; a test of that finding asks for ``limits_of_disks``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor_of_bookies, "NEARLY_FULL", float("inf"))
        yield


@pytest.fixture
def limits_of_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor judges disks, as it does for users."""
    monkeypatch.setattr(doctor_of_bookies, "NEARLY_FULL", NEARLY_FULL)


def pytest_sessionfinish(session: pytest.Session) -> None:
    (session.config.rootpath / _FLAG).unlink(missing_ok=True)


def _is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if FORCE and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"BK_TEST_FORCE=1 allows no skip: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    if FORCE and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"BK_TEST_FORCE=1 allows no skip: {report.longrepr}"
    return report
