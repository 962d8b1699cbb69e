"""Measures the commands on a cluster of 100,000 ledgers: ``python -m tests.benchmarks.many_ledgers [--ledgers 100000] [--bookies 4]``.

Real are ZooKeeper, the embedded bookies, twenty ledgers with entries on them, and a log. The metadata of all other ledgers is written into
ZooKeeper in the layout and the bytes of a client's own. They are closed, and their fragments name the registered bookies, which have never
seen an entry of them; every thousandth names one that is gone, so that the doctor has something to find. No command that is measured here
asks a bookie for an entry.

Each command is a process of its own. Printed are its seconds, its CPU seconds, the MiB of its largest resident set, and what it printed.
The figures are never asserted on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from html.parser import HTMLParser
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any, Self
from urllib.parse import urljoin

from kazoo.client import KazooClient

import bk_core
from bk_core.metadata.paths import ledger_path
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from tests.benchmarks.measure import usage_of

BK = (sys.executable, "-m", "bk_core.cli")
RUN = Path(__file__).with_name("run_measured.py")
FIRST_ID = 1_000_000  # of the ledgers that are metadata alone; those of the client begin at 0
IN_FLIGHT = 500
REAL_LEDGERS = 20
GONE_EVERY = 1000
GONE = "127.0.0.9:3181"
IDLE_S = 20.0
LOOKED = "Looking at the cluster for the first time"
LISTED = "Listing all ledgers"


@dataclass(frozen=True, slots=True)
class Figure:
    """The cost of one command, or of one page. ``said`` is a line about what came of it."""

    what: str
    seconds: float
    cpu_s: float | None = None
    peak_mib: float | None = None
    said: str = ""

    def __str__(self) -> str:
        cpu, peak = ("-" if value is None else f"{value:.1f}" for value in (self.cpu_s, self.peak_mib))
        return f"{self.what:<52} {self.seconds:8.2f} {cpu:>7} {peak:>8}   {self.said}"


# --- the cluster ---------------------------------------------------------------------------------------------------------


def fill(cluster: Any, client: bk_core.BookKeeper, ledgers: int) -> None:
    """Write the metadata of the ledgers, and some that are real."""
    for _ in range(REAL_LEDGERS):
        with client.create_ledger() as ledger:
            ledger.append_many([b"entry"] * 100)
        metadata = ledger.metadata
    with client.create_log("events").writer() as writer:
        writer.append(b"hello")
    hosts, _, root = cluster.uri.partition("://")[2].partition("/")
    zookeeper = KazooClient(hosts)
    zookeeper.start()
    try:
        bookies = client.bookies().writable
        under_way: deque[Any] = deque()
        for number in range(ledgers):
            path = f"/{root}{ledger_path('hierarchical', FIRST_ID + number)}"
            made = metadata_of(metadata, number, bookies)
            under_way.append(zookeeper.create_async(path, metadata_codec.encode(made), makepath=True))
            if len(under_way) > IN_FLIGHT:
                under_way.popleft().get()
        for one in under_way:
            one.get()
    finally:
        zookeeper.stop()
        zookeeper.close()


def metadata_of(like: LedgerMetadata, number: int, bookies: Sequence[str]) -> LedgerMetadata:
    """Return the metadata of a closed ledger: one to three fragments, turning over the bookies."""
    size = like.ensemble_size
    fragments = []
    for index in range(1 + (number % 10 == 0) + (number % 50 == 0)):
        ensemble = [bookies[(number + index + at) % len(bookies)] for at in range(size)]
        if number % GONE_EVERY == 0:
            ensemble[0] = GONE
        fragments.append(Fragment(index * 400, tuple(ensemble)))
    last = 1000 + number % 5000
    return replace(
        like, state=LedgerState.CLOSED, fragments=tuple(fragments), last_entry_id=last, length=(last + 1) * 1024, ctime_ms=_now_ms()
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- commands ------------------------------------------------------------------------------------------------------------


class Measured:
    """A command as a process, whose output is read here or goes to a file. ``pid`` is the command's own."""

    def __init__(self, arguments: Sequence[str], output: int, cwd: Path) -> None:
        self._told, telling = os.pipe()
        self._began = time.perf_counter()
        try:
            command = [sys.executable, "-S", "-E", str(RUN), str(telling), *BK, *arguments]
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, cwd=cwd, pass_fds=[telling])
        finally:
            os.close(telling)
        self._lines = os.fdopen(self._told)
        self.pid = int(self._lines.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait()
        self._lines.close()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def ended(self, what: str, said: str = "") -> Figure:
        """Wait for the end, and return what it took."""
        status, cpu_s, peak_kib = self._lines.readline().split()
        seconds = time.perf_counter() - self._began
        assert self.process.stderr is not None
        errors = self.process.stderr.read().decode().strip()
        self.process.wait()
        more = "" if status == "0" else f" [exit {status}] {errors.splitlines()[-1] if errors else ''}"
        return Figure(what, seconds, float(cpu_s), int(peak_kib) / 1024, said + more)


def command(arguments: Sequence[str], cwd: Path) -> Figure:
    """Run a command with its output to a file."""
    told = cwd / "output"
    with told.open("wb") as file, Measured(arguments, file.fileno(), cwd) as run:
        figure = run.ended(f"bk {' '.join(arguments)}")
    with told.open(errors="replace") as found:
        lines = list(deque(_counting(found), maxlen=1))
    count, last = lines[0] if lines else (0, "")
    return replace(figure, said=f"{count:,} lines, the last {last.strip()[:60]!r}{figure.said}")


def _counting(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    return enumerate((line for line in lines if line.strip()), 1)


def head(arguments: Sequence[str], lines: int, cwd: Path) -> Figure:
    """Run a command whose reader takes a few lines and goes, as ``head`` does."""
    with Measured(arguments, subprocess.PIPE, cwd) as run:
        output = run.process.stdout
        assert output is not None
        for _ in range(lines):
            output.readline()
        output.close()
        return run.ended(f"bk {' '.join(arguments)} | head -{lines}")


# --- the page ------------------------------------------------------------------------------------------------------------


class Links(HTMLParser):
    """The addresses of a page's links by their ``rel``."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "a" and attributes.get("rel"):
            self.found[str(attributes["rel"])] = str(attributes["href"])


class Browser:
    """Asks for pages as a browser does, with the cookie that the first address brought."""

    def __init__(self, url: str) -> None:
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        self._base = url
        self.page(url)

    def page(self, place: str) -> tuple[float, str]:
        """Return the seconds that a page took, and the page."""
        began = time.perf_counter()
        with self._opener.open(urljoin(self._base, place), timeout=60) as answer:
            text = answer.read().decode()
        return time.perf_counter() - began, text


def live_page(cwd: Path, bookie: str, ledgers: int) -> Iterator[Figure]:
    """Yield what the live page takes: until it is there, page by page, until all ledgers are read, and when nobody looks."""
    began = time.perf_counter()
    with Measured(["ui", "--no-open", "--json"], subprocess.PIPE, cwd) as run:
        assert run.process.stdout is not None
        browser = Browser(json.loads(run.process.stdout.readline())["url"])
        yield Figure("bk ui: until the address answers", time.perf_counter() - began)
        while LOOKED in browser.page("/")[1]:
            time.sleep(0.05)
        yield Figure("until the first page shows the cluster", time.perf_counter() - began)
        while (text := browser.page("/ledgers")[1]) and (LOOKED in text or LISTED in text):
            time.sleep(0.05)
        yield Figure("until all ledgers are known by id", time.perf_counter() - began)
        yield from _pages(browser, bookie, "all ledgers are known by id", ledgers)
        while (left := re.search(r"\(([\d,]+) not read yet\)", browser.page("/")[1])) is not None:
            print(f"   {left[1]} not read yet", file=sys.stderr, flush=True)
            time.sleep(5)
        yield Figure("until the watcher has read all of them", time.perf_counter() - began)
        yield from _pages(browser, bookie, "all are read", ledgers)
        before = usage_of(run.pid)
        time.sleep(IDLE_S)
        after = usage_of(run.pid)
        assert before is not None and after is not None
        yield Figure(f"watching for {IDLE_S:.0f} s, no browser", IDLE_S, after.cpu - before.cpu, after.rss / 1024**2)
        os.kill(run.pid, signal.SIGTERM)
        yield run.ended("bk ui, all of it")


def _pages(browser: Browser, bookie: str, when: str, ledgers: int) -> Iterator[Figure]:
    places = {"/": "first page", "/ledgers": "ledgers"}
    for place, name in places.items():
        took, page = browser.page(place)
        yield Figure(f"{name} ({when})", took, said=f"{len(page) / 1024:.0f} KiB")
    following = Links(page).found.get("next")
    if following is not None:
        took, page = browser.page(following)
        yield Figure(f"ledgers, the next part ({when})", took, said=f"{len(page) / 1024:.0f} KiB")
    deep = f"/ledgers?before={FIRST_ID + ledgers // 2}"
    for place in (deep, f"/ledgers?bookie={bookie}", "/ledgers?state=OPEN", f"/ledgers?bookie={GONE}&before={FIRST_ID + ledgers // 10}"):
        took, page = browser.page(place)
        yield Figure(f"{place} ({when})"[:80], took, said=f"{len(page) / 1024:.0f} KiB")


# --- all of it -----------------------------------------------------------------------------------------------------------


@contextmanager
def surroundings(uri: str) -> Iterator[Path]:
    """A directory for output, and the cluster in the environment of commands."""
    os.environ["BOOKKEEPER_METADATA_SERVICE_URI"] = uri
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    with tempfile.TemporaryDirectory(prefix="bk-many-") as directory:
        yield Path(directory)


def figures(cwd: Path, bookie: str, ledgers: int) -> Iterator[Figure]:
    """Yield one figure after another."""
    yield command(["cluster", "info", "--json"], cwd)
    yield command(["ledger", "ls"], cwd)
    yield command(["ledger", "ls", "--json"], cwd)
    yield head(["ledger", "ls"], 5, cwd)
    yield head(["ledger", "ls", "--json"], 5, cwd)
    yield command(["ledger", "ls", "--limit", "20"], cwd)
    yield command(["ledger", "ls", "--bookie", bookie], cwd)
    yield command(["ledger", "ls", "--bookie", bookie, "--limit", "20"], cwd)
    yield command(["bookie", "show", bookie], cwd)
    yield command(["cluster", "doctor"], cwd)
    yield command(["cluster", "doctor", "--json"], cwd)
    yield from live_page(cwd, bookie, ledgers)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.many_ledgers", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--bookies", type=int, default=4)
    parser.add_argument("--page", action="store_true", help="the live page alone")
    parser.add_argument("--json", dest="to", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    found = []
    with bk_core.local_cluster(options.bookies) as cluster, bk_core.connect(cluster.uri) as client, surroundings(cluster.uri) as cwd:
        began = time.perf_counter()
        fill(cluster, client, options.ledgers)
        print(f"{options.ledgers:,} ledgers written in {time.perf_counter() - began:.1f} s", flush=True)
        print(f"{'':<52} {'seconds':>8} {'CPU s':>7} {'MiB':>8}", flush=True)
        measured = live_page if options.page else figures
        for figure in measured(cwd, client.bookies().writable[0], options.ledgers):
            print(figure, flush=True)
            found.append(asdict(figure))
    if options.to is not None:
        options.to.write_text(json.dumps({"ledgers": options.ledgers, "figures": found}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
