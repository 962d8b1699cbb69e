"""The same script of racks at Apache's Java client and here, on one ZooKeeper: what each of them gives to it, and where each places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bk_core
from bk_core.bookie import apache
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.errors import BookieUnavailableError
from bk_core.metadata import MetadataStore, open_store
from tests import quick_java
from tests.integration.conftest import APACHE_VERSION
from tests.soak.java_side import JavaProcess

pytestmark = pytest.mark.apache
LEDGERS = 30
NAMED = "localhost:3190"
BY_LAST = """#!/bin/sh
echo "$@" >> {told}
for address in "$@"; do case $address in *.1) echo /alone;; *) echo /shared;; esac; done
"""
TOO_FEW = '#!/bin/sh\necho "$@" >> {told}\n[ $# -eq 0 ] || echo /alone /shared\n'
FAILS = '#!/bin/sh\necho "$@" >> {told}\n[ $# -eq 0 ] || exit 3\n'


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    try:
        apache.resolve(APACHE_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper")) as process:
        yield process


@pytest.fixture(scope="module")
def store(zookeeper: ZooKeeperProcess) -> Iterator[MetadataStore]:
    """A cluster whose bookies are only registered: creating a ledger contacts none, neither here nor in Java. One has a host name."""
    opened = open_store(f"zk://{zookeeper.connect_string}/ledgers")
    opened.initialize_cluster()
    for number in range(2, 7):
        opened.register_bookie(f"10.0.0.{number}:3181", f"10.0.0.{number}", 3181)
    opened.register_bookie(NAMED, "localhost", 3190)
    yield opened
    opened.close()


@pytest.fixture
def run(zookeeper: ZooKeeperProcess, store: MetadataStore, tmp_path: Path) -> Callable[[str], tuple[list[Any], list[Any]]]:
    """Ensembles of new ledgers by Java and by us with a script, and the addresses that each gave to it."""

    def made(text: str) -> tuple[list[Any], list[Any]]:
        uri = f"zk://{zookeeper.connect_string}/ledgers"
        scripts = {}
        for name in ("java", "ours"):
            script = scripts[name] = tmp_path / f"{name}.sh"
            script.write_text(text.format(told=tmp_path / f"{name}.told"))
            script.chmod(0o755)
        place = SimpleNamespace(uri=uri, directory=tmp_path)
        lines = {"networkTopologyScriptFileName": str(scripts["java"])}
        java = JavaProcess(place, APACHE_VERSION, "v2", lines=lines, java=quick_java.java_options(APACHE_VERSION))  # type: ignore[arg-type]
        with bk_core.connect(uri, placement="rack-aware", rack_script=str(scripts["ours"])) as client:

            def ensemble(ledger_id: int) -> set[str]:
                return set(client.ledger_metadata(ledger_id).last_fragment.ensemble)

            try:
                theirs = [ensemble(int(java.ask("create 2 2 2").result(60)[1])) for _ in range(LEDGERS)]
            finally:
                java.close()
            ours = []
            for _ in range(LEDGERS):
                ledger = client.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)
                ours.append(ensemble(ledger.ledger_id))
                ledger.abandon()
        told = [{word for line in (tmp_path / f"{name}.told").read_text().splitlines() for word in line.split()} for name in scripts]
        return [theirs, ours], told

    return made


def test_both_place_by_the_racks_that_it_prints(run: Callable[[str], tuple[list[Any], list[Any]]]) -> None:
    """One bookie is alone in its rack, so each ledger of two needs it. It is registered with a host name, and both give its address."""
    (theirs, ours), (by_java, by_us) = run(BY_LAST)
    assert all(NAMED in one for one in theirs) and all(NAMED in one for one in ours)
    bookies = {f"10.0.0.{number}" for number in range(2, 7)} | {"127.0.0.1"}
    assert by_us == bookies and by_java >= bookies, "Java asks for its own host, too"


@pytest.mark.parametrize("text", [TOO_FEW, FAILS], ids=["too few", "fails"])
def test_both_go_on_with_the_default_rack_where_it_fails(run: Callable[[str], tuple[list[Any], list[Any]]], text: str) -> None:
    (theirs, ours), (by_java, by_us) = run(text)
    assert by_java and by_us
    for placed in (theirs, ours):
        assert any(NAMED not in one for one in placed), "all bookies are in one rack"
