"""A type checker refuses misspelt settings and values at the doors of the client, and accepts the right ones."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

from bk_core.client.client import BookKeeper
from bk_core.client.log.settings import _DURATIONS, LogSettings
from bk_core.client.repair.report import RepairOptions, RepairSettings
from bk_core.config import ClientConfig, ClientSettings
from bk_core.protocol.log.segments import LogProperties

ROOT = Path(__file__).resolve().parents[2]
RIGHT = """
from datetime import timedelta
import bk_core
import bk_spark
from bk_core import LogProperties
client = bk_core.connect("zk://h/l", ensemble_change="delayed", operation_timeout_s=60, protocol="v3")
log = client.create_log("a", entry_format="raw", retention=timedelta(days=7), exist_ok=True)
LogProperties(entry_format="raw")
place: str = bk_spark.checkpoint_location(None, "x", uri="zk://h/l")
version: str = bk_core.__version__
log.set(retention=3600, digest_type="HMAC")
client.create_ledger(digest_type=bk_core.DigestType.MAC)
log.trim(older_than=timedelta(days=7))
client.repair_ledger(3, full=True)
with log.writer(take_over=True, roll_max_time=60) as writer:
    writer.append(b"x")
for run in log.reader(start="earliest"):
    run.payloads()
async def serve() -> bytes:
    async with bk_core.aio.connect("zk://h/l", ensemble_change="delayed") as service, service.create_ledger() as ledger:
        position = await (await service.log("a")).writer()
        async for found in (await service.log("a")).reader().follow():
            await ledger.append(found.payloads()[0])
        return b"%d" % await (await ledger.append_future(b"x"))
"""
WRONG = [
    'bk_core.connect("zk://h/l", ensemble_chang="delayed")',
    'bk_core.connect("zk://h/l", ensemble_change="delay")',
    'bk_core.aio.connect("zk://h/l", ensemble_chang="delayed")',
    'bk_core.connect("zk://h/l", operation_timeout_s="60")',
    'bk_core.connect("zk://h/l", protocol="v4")',
    'LogProperties(entry_format="rwa")',
    'client.create_log("a", entry_fromat="raw")',
    'client.create_log("a", retention="7d")',
    "client.repair_ledger(3, fulll=True)",
    'client.decommission_bookie("h:1", only_lost="yes")',
    "log.set(retension=3600)",
    "log.writer(takeover=True)",
    "log.trim(older_than='7d')",
    "log.reader(start=3)",
    'log.reader(start="begin")',
    'log.to_arrow(end="last")',
    'log.set(entry_format="raw")',
    'log.set(digest_type="MD5")',
    'client.create_ledger(digest_type="MD5")',
    'client.open_ledger(3, digest_type="SHA1")',
    'client.repair_ledger(3, digest_type="MD5")',
    'LogProperties(digest_type="MD5")',
    "bk_core.nonsense",
    "bk_spark.nonsense",
    'bk_spark.checkpoint_location(None, "x", urii="zk://h/l")',
]


def test_a_type_checker_refuses_what_is_misspelt() -> None:
    program = RIGHT + "\n".join(WRONG)
    begin = RIGHT.count("\n") + 1
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", "--no-pretty", "-c", program]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    lines = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert all(line.startswith("<string>:") for line in lines), done.stdout
    refused = {int(line.split(":")[1]) for line in lines}
    assert refused == set(range(begin, begin + len(WRONG))), done.stdout


@pytest.mark.parametrize(
    ("settings", "kind", "other"),
    [
        (ClientSettings, ClientConfig, {"uri", "protocol"}),
        (RepairSettings, RepairOptions, set()),
        (LogSettings, LogProperties, {"extra"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_type_checker_knows_is_what_there_is(settings: type, kind: type, other: set[str]) -> None:
    more = set(_DURATIONS) if settings is LogSettings else set()
    assert set(settings.__annotations__) == {field.name for field in fields(kind)} - other | more


def test_the_kinds_of_settings_are_those_of_the_client() -> None:
    def plain(kind: type) -> dict[str, object]:
        return {name: hint for name, hint in get_type_hints(kind).items() if name not in ("uri", "protocol")}

    assert plain(ClientSettings) == plain(ClientConfig)
    assert BookKeeper.create_log.__annotations__["properties"] == "Unpack[LogSettings]"
