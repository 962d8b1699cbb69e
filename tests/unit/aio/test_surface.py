"""Whatever the synchronous client can do, the asyncio client can, or its README says why not and what to do instead."""

from __future__ import annotations

import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import aio
from tests.unit.aio.loops import run

README = Path(aio.__file__).with_name("README.md").read_text(encoding="utf-8").partition("## What stays synchronous")[2]
TWINS = ("BookKeeper", "Log", "LogReader", "LogWriter", "ReadHandle", "WriteHandle")
OF_BOTH = {
    *("BkError", "ClientConfig", "DigestType", "EntryRun", "LedgerMetadata", "LedgerState", "LogProperties", "Position", "__version__"),
    *("BatchTrace", "BookieView", "DecommissionReport", "Diagnosis", "EntryTrace", "Fragment", "GcReport", "LedgerReport", "Limits"),
    *("LogCheck", "LogEntries", "LogInfo", "LogSpan", "ReadMode", "ReadOptions", "RepairReport", "ReplicaDiff", "Segment", "WrittenRows"),
    *(
        "AuthExchange",
        "BookieAuth",
        "BookieKerberos",
        "BookieSasl",
        "BookieTls",
        "MetadataTls",
        "SecretFile",
        "SecretVariable",
        "Security",
        "ZooKeeperAuth",
    ),
    *("EtcdAuth", "LogVerification", "Xray"),
    *("aio", "errors", "kernels"),
}
"""Values, settings and modules, which both clients use."""


def names_of(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def synchronous() -> set[str]:
    """The names in the first column of the table."""
    return {name for row in re.findall(r"^\| (`.*?) \|", README, re.M) for name in re.findall(r"`([\w.]+)`", row)}


def missing() -> set[str]:
    """Return the names that bk_core has and bk_core.aio has not."""
    found = {name for name in bk_core.__all__ if name not in OF_BOTH and name not in aio.__all__}
    for cls in TWINS:
        found |= {f"{cls}.{name}" for name in names_of(getattr(bk_core, cls)) - names_of(getattr(aio, cls))}
    return found


def test_all_that_is_not_awaited_is_listed_with_its_reason() -> None:
    assert set(TWINS) <= set(bk_core.__all__) & set(aio.__all__)
    assert missing() == synchronous()


def shape(value: Any) -> Any:
    """Return what a caller sees of a name: its arguments, or if it may be set."""
    if isinstance(value, property):
        return "read", value.fset is not None
    return [(name, one.kind, one.default) for name, one in inspect.signature(value).parameters.items()]


@pytest.mark.parametrize("cls", TWINS)
def test_what_both_have_takes_the_same_arguments(cls: str) -> None:
    first, second = getattr(bk_core, cls), getattr(aio, cls)
    both = names_of(first) & names_of(second)
    assert len(both) >= 4
    differing = {
        f"{cls}.{name}" for name in both if shape(inspect.getattr_static(first, name)) != shape(inspect.getattr_static(second, name))
    }
    last = README.rpartition("\n\n")[2]
    assert differing == {name for name in re.findall(r"`(\w+\.\w+)`", last) if name.startswith(f"{cls}.")}
    assert shape(bk_core.connect) == shape(aio.connect)


def test_calls_of_the_synchronous_client_go_on_threads(uri: str) -> None:
    """As the README says."""

    async def main() -> None:
        async with aio.connect(uri) as client:
            await client.await_bookies(3, 3)
            async with client.create_ledger() as ledger:
                await ledger.append(b"x")
            report = await asyncio.to_thread(client.sync.repair_ledger, ledger.ledger_id)
            assert report.ledger_id == ledger.ledger_id
            store = await asyncio.to_thread(bk_core.FileStore.open, client.sync, "notes")
            await asyncio.to_thread(store.close)
            assert await asyncio.to_thread(bk_core.file_stores, client.sync) == ["notes"]

    run(main)
