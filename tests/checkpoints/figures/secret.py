"""The places where the gateway's secrets can be found: in nothing that an application shows, and by nobody else on the host.

An application that says all it can (``exposed.py``) runs a query; then somebody else opens the checkpoint, so that the query ends with an
error. Everything that was written or shown is searched for both secrets. While the gateway listens, a process of another user asks it, and
reads all files of the last minutes that it may read (``outsider.py``); that needs to be started by root.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

import bk_core
from bk_core.client.files.store import FileStore
from tests.checkpoints.figures.cost import ask
from tests.checkpoints.figures.drivers import told
from tests.checkpoints.figures.numbers import table
from tests.faults.harness import Driver

MASTER = "local-cluster[2,1,1024]"
MODULE = "tests.checkpoints.figures.exposed"
STORE = "exposed"
OTHER_USER = "nobody"
BATCHES = 5
LIMIT_S = 900.0
REFUSED = "401"
PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")  # that other users can run
KINDS = {
    "events": "event log",
    "executor": "logs of the executors, at DEBUG",
    "driver-": "log of the driver, at DEBUG",
    "shown": "web pages, REST, settings, plans, Python's objects, /proc of the driver",
    "more": "more pages and REST, progress, /proc of all its processes",
    "exception": "what the query's exception says",
}


@dataclass
class Found:
    """The counts of one kind of what was searched."""

    files: int = 0
    bytes: int = 0
    hits: int = 0


@dataclass
class Verdict:
    """``outsider``: the answers of ``outsider.py``; None if nobody could be asked."""

    kinds: dict[str, Found] = field(default_factory=dict)
    outsider: dict[str, Any] | None = None
    error: str = ""

    @property
    def good(self) -> bool:
        """Everything was looked at, and nothing was found or answered."""
        complete = set(KINDS.values()) <= {kind for kind, found in self.kinds.items() if found.bytes}
        outside = self.outsider is None or (not self.outsider["hits"] and all(key.endswith(REFUSED) for key in self.outsider["answers"]))
        return complete and outside and not any(found.hits for found in self.kinds.values()) and "BK-FILES-TAKEN-OVER" in self.error


def search(files: Iterable[Path], secrets: Iterable[str], root: Path) -> dict[str, Found]:
    """Return the finds by kind, which the first part of the path below ``root`` tells."""
    texts = [secret.encode() for secret in secrets]
    kinds: dict[str, Found] = {}
    for path in files:
        first = path.relative_to(root).parts[0]
        kind = next((kind for start, kind in KINDS.items() if first.startswith(start)), "other files of the application")
        found = kinds.setdefault(kind, Found())
        data = path.read_bytes()
        found.files += 1
        found.bytes += len(data)
        found.hits += sum(data.count(text) for text in texts)
    return kinds


def measure(directory: Path, say: Callable[[str], None]) -> Verdict:
    verdict = Verdict()
    since = time.time()
    directory.chmod(0o755)  # so that the other user may look at what is in it
    work = directory / "application"
    with bk_core.local_cluster(3) as cluster, bk_core.connect(cluster.uri) as client:
        driver = Driver(work, MASTER, module=MODULE)
        try:
            begun = ask(driver, {"do": "begin", "uri": cluster.uri, "checkpoint": STORE, "batches": BATCHES}, LIMIT_S)
            say("the query runs")
            ask(driver, {"do": "show", "pids": driver.members()}, LIMIT_S)
            verdict.outsider = ask_outside(begun, [str(directory), str(cluster.directory), tempfile.gettempdir(), "/dev/shm"], since, say)
            FileStore.open(client, STORE).close()
            verdict.error = ask(driver, {"do": "end", "limit": LIMIT_S}, LIMIT_S)["error"]
        finally:
            driver.kill()
            keep_executors(work)
    verdict.kinds = search((path for path in work.rglob("*") if path.is_file()), begun["secrets"], work)
    return verdict


def keep_executors(work: Path) -> None:
    """Move the logs of this application's executors to ``work``: Spark keeps them within its own package."""
    application = next((path.name.partition("_")[2] for path in work.glob("events/*/appstatus_*")), "").removesuffix(".inprogress")
    executors = Path(pyspark.__file__).with_name("work") / application
    if application and executors.exists():
        shutil.copytree(executors, work / "executors")
        shutil.rmtree(executors)


def ask_outside(begun: dict[str, Any], directories: list[str], since: float, say: Callable[[str], None]) -> dict[str, Any] | None:
    """As ``OTHER_USER``."""
    python = next((path for path in PYTHONS if Path(path).exists()), None)
    if os.getuid() or python is None:
        say("nobody else was asked: that takes root, and a Python that others may run")
        return None
    other = pwd.getpwnam(OTHER_USER)
    program = Path(__file__).with_name("outsider.py").read_text()
    task = {**begun, "directories": directories, "since": since}
    done = subprocess.run(
        [python, "-I", "-c", program], input=json.dumps(task), capture_output=True, text=True, check=True, cwd="/",
        user=other.pw_uid, group=other.pw_gid, extra_groups=[], env={}, timeout=LIMIT_S,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def summary(verdict: Verdict) -> str:
    rows = [[kind, found.files, f"{found.bytes:,}", found.hits] for kind, found in sorted(verdict.kinds.items())]
    totals = [sum(getattr(found, what) for found in verdict.kinds.values()) for what in ("files", "bytes", "hits")]
    rows.append(["all", totals[0], f"{totals[1]:,}", totals[2]])
    parts = [table(["searched", "files", "bytes", "hits"], rows), f"the query ended with {told(verdict.error)}"]
    outside = verdict.outsider
    if outside is not None:
        parts.append(table([f"the gateway, asked by another user (uid {outside['uid']})", "times"], sorted(outside["answers"].items())))
        readable = f"{outside['files']:,} files with {outside['bytes']:,} bytes were readable by that user, {outside['refused']:,} were not"
        parts.append(f"{readable}; with a secret in them: {len(outside['hits'])} {outside['hits'][:5] or ''}")
    return "\n\n".join(parts)
