"""The lines of an Apache bookie's bookie.conf."""

from pathlib import Path

import pytest

from bk_core.bookie import apache
from bk_core.bookie.apache import ApacheSettings


def lines(settings: ApacheSettings) -> dict[str, str]:
    text = settings.configuration("zk://127.0.0.1:2181,127.0.0.2:2181/ledgers", 3181, Path("/data"))
    assert text.endswith("\n")
    pairs = [line.partition("=")[::2] for line in text.splitlines()]
    assert len(dict(pairs)) == len(pairs)  # a name stands once
    return dict(pairs)


def test_a_small_bookie() -> None:
    found = lines(ApacheSettings())
    assert found["metadataServiceUri"] == "zk+hierarchical://127.0.0.1:2181;127.0.0.2:2181/ledgers"
    assert found["bookiePort"] == "3181"
    assert found["listeningInterface"] in ("lo", "lo0")
    assert found["journalDirectories"] == "/data/journal"
    assert found["journalMaxSizeMB"] == "64"


def test_a_setting_takes_the_place_of_a_small_bookie_s() -> None:
    small = lines(ApacheSettings())
    assert lines(ApacheSettings(lines={"journalMaxSizeMB": 2048})) == small | {"journalMaxSizeMB": "2048"}


def test_a_setting_that_a_small_bookie_leaves_alone() -> None:
    small = lines(ApacheSettings())
    assert lines(ApacheSettings(lines={"journalSyncData": "false"})) == small | {"journalSyncData": "false"}


def test_options_of_the_jvm_stand_behind_those_of_a_bookie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they hold; they stand before the main class, behind which they would be its arguments."""
    begun: list[list[str]] = []
    monkeypatch.setattr(apache, "find_java", lambda: "java")
    monkeypatch.setattr(apache, "Child", lambda name, command, log, env: begun.append(command))
    settings = ApacheSettings(heap_mb=300, java=("-Xmx200m", "-XX:+UseSerialGC"))
    apache.ApacheBookie(tmp_path, tmp_path / "bookie", "zk://127.0.0.1:2181/ledgers", 3181, lambda bookie_id: False, settings).start()
    (command,) = begun
    main = command.index("org.apache.bookkeeper.server.Main")
    assert command[main - 2 : main] == ["-Xmx200m", "-XX:+UseSerialGC"] and command.index("-Xmx300m") < main - 2


def test_a_setting_that_is_left_out() -> None:
    small = lines(ApacheSettings())
    found = lines(ApacheSettings(lines={"dbStorage_writeCacheMaxSizeMb": None}))
    assert set(small) - set(found) == {"dbStorage_writeCacheMaxSizeMb"}
