"""``local_cluster(tls=True, sasl=True)``: whatever takes its URI comes in, and who leaves the options away does not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import BookieTls
from bk_core.bookie import apache, certificates
from bk_core.bookie.certificates import LocalSecurity
from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from bk_core.client.doctor.probe import probe_bookies
from bk_core.client.files.fs import BookKeeperFileSystem
from bk_core.errors import BookieAuthError, BookieTlsError, BookieUnavailableError, MissingPackageError, ReadError, UnauthorizedError
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import LedgerState


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    try:
        apache.find_java()
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    with local_cluster(3, tmp_path_factory.mktemp("secured"), tls=True, sasl=True) as cluster:
        yield cluster


def test_its_uri_is_all_that_a_client_needs(secured: LocalCluster) -> None:
    with bk_core.connect(secured.uri) as client:
        with client.create_ledger() as ledger:
            ledger.append_many([b"x" * 1000] * 100)
        with client.open_ledger(ledger.ledger_id) as reader:
            assert reader.read(0, 99) == [b"x" * 1000] * 100
    with bk_core.connect(secured.uri.partition("?")[0], operation_timeout_s=20) as stranger:
        refused = stranger.create_ledger()
        with pytest.raises(UnauthorizedError):
            refused.append(b"x")
        refused.abandon()
        with (
            stranger.open_ledger(ledger.ledger_id) as reader,
            pytest.raises(ReadError, match="unauthorized .*say who you are with `security`"),
        ):
            reader.read(0, 0)
    with bk_core.connect(secured.uri) as client, client.recover_ledger(refused.ledger_id) as recovered:
        assert recovered.last_add_confirmed == -1  # none of the bookies has it


def test_a_bookie_that_comes_back_asks_for_the_same(secured: LocalCluster) -> None:
    with bk_core.connect(secured.uri) as client, client.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2) as ledger:
        ledger.append(b"x")
        for index in range(3):
            secured.restart(index)
        with client.create_ledger() as later:
            later.append(b"y")
    certificate, password = ("bookie_cert_file", "bookie_key_file"), ("bookie_user", "bookie_password_file")
    for lacks, error in ((certificate, BookieTlsError), (password, BookieAuthError)):
        with bk_core.connect(without(secured.uri, *lacks)) as stranger:
            assert [probe.answers for probe in probe_bookies(stranger, stranger.bookies().writable).values()] == [False] * 3
            refused = stranger.create_ledger()
            with pytest.raises(error):
                refused.append(b"x")
            refused.abandon()


def without(uri: str, *names: str) -> str:
    """Return a URI without some of its options."""
    place, _, query = uri.partition("?")
    kept = [one for one in query.split("&") if one.partition("=")[0] not in names]
    assert len(kept) == query.count("&") + 1 - len(names)
    return f"{place}?{'&'.join(kept)}"


def test_asyncio_and_file_systems_come_in_by_it(secured: LocalCluster) -> None:
    async def main() -> list[bytes]:
        async with await bk_core.aio.connect(secured.uri) as client:
            async with await client.create_ledger() as ledger:
                await ledger.append(b"awaited")
            async with await client.open_ledger(ledger.ledger_id) as reader:
                return await reader.read(0, 0)

    assert asyncio.run(main()) == [b"awaited"]
    with bk_core.connect(secured.uri) as client, bk_core.FileStore.open(client, "shelf") as store:
        store.put("/a.txt", b"in a file")
    files = BookKeeperFileSystem(uri=secured.uri, store="shelf", skip_instance_cache=True)
    assert files.cat_file("/a.txt") == b"in a file"


def test_bk_comes_in_by_it(secured: LocalCluster) -> None:
    environment = {**os.environ, "BOOKKEEPER_METADATA_SERVICE_URI": secured.uri}

    def bk(*arguments: str) -> str:
        command = [sys.executable, "-m", "bk_core.cli", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert bk("bookie", "health", "--uri", secured.uri).count("writable") == 3
    with bk_core.connect(secured.uri) as client, client.create_ledger() as ledger:
        ledger.append(b"read by bk")
    assert "read by bk" in bk("ledger", "read", str(ledger.ledger_id))


def test_files_are_private_and_used_again(tmp_path: Path) -> None:
    made = LocalSecurity(tmp_path / "s", True, True)
    made.make()
    made.door.check()
    before = {path.name: path.read_bytes() for path in made.directory.iterdir()}
    assert all(path.stat().st_mode & 0o077 == 0 for path in made.directory.glob("*.key"))
    assert all((made.directory / name).stat().st_mode & 0o077 == 0 for name in ("password", "users"))
    made.make()
    assert {path.name: path.read_bytes() for path in made.directory.iterdir()} == before
    password = (made.directory / "password").read_text().strip()
    assert password not in made.query() and len(password) >= 20


@pytest.mark.parametrize(
    "left",
    [
        {"users": "", "client.pem": ""},  # as a process leaves them that is killed while it makes them
        {"password": None},
        {"ca.pem": None},
        {"bookie.pem": "-----BEGIN CERTIFICATE-----\nMIIB"},
        {"users": None, "client.pem": None, ".making-x": None},
    ],
)
def test_what_was_left_half_made_is_made_anew(tmp_path: Path, left: dict[str, str | None]) -> None:
    made = LocalSecurity(tmp_path / "s", True, True)
    made.make()
    whole = sorted(path.name for path in made.directory.iterdir())
    for name, text in left.items():
        if name.startswith("."):
            (made.directory / name).mkdir()
            (made.directory / name / "ca.key").write_text("secret")
        elif text is None:
            (made.directory / name).unlink()
        else:
            (made.directory / name).write_text(text)
    made.make()
    assert sorted(path.name for path in made.directory.iterdir()) == whole
    made.door.check()
    files = {name: str(made.directory / name) for name in whole}
    BookieTls(files["ca.pem"], files["client.pem"], files["client.key"]).context()
    for certificate in ("bookie.pem", "client.pem"):
        subprocess.run(["openssl", "verify", "-CAfile", files["ca.pem"], files[certificate]], check=True, capture_output=True, timeout=60)
    password = (made.directory / "password").read_text().strip()
    assert (made.directory / "users").read_text() == f"bookkeeper-local:{password}\n"
    assert all(path.stat().st_mode & 0o077 == 0 for path in made.directory.glob("*.key"))


def test_a_kill_in_between_leaves_what_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each file that is put in its place: no mixture of old and new ones passes for whole."""
    put, count = certificates.write_durably, 0

    def killed_after(path: Path, data: bytes) -> None:
        nonlocal count
        if count == 0:
            raise KeyboardInterrupt
        count -= 1
        put(path, data)

    made = LocalSecurity(tmp_path / "s", True, True)
    made.make()
    for at in range(6):
        (made.directory / "bookie.key").unlink()
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(certificates, "write_durably", killed_after)
            count = at
            made.make()
        made.make()
        command = ["openssl", "verify", "-CAfile", *(str(made.directory / name) for name in ("ca.pem", "bookie.pem", "client.pem"))]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        made.door.check()


def test_without_pure_sasl_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No client of this environment could use such a cluster."""
    monkeypatch.setitem(sys.modules, "puresasl", None)
    with pytest.raises(MissingPackageError, match=r"SASL to bookies needs pure-sasl.*bk-spark\[sasl\]"):
        local_cluster(1, tmp_path / "cluster", sasl=True)
    assert not (tmp_path / "cluster").exists()


def test_without_openssl_it_is_said_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BookieUnavailableError, match="made by the program openssl"):
        LocalSecurity(tmp_path / "s", True, False).make()


@pytest.mark.parametrize(
    ("lacks", "error"),
    [
        (("bookie_user", "bookie_password_file"), BookieAuthError),
        (("bookie_cert_file", "bookie_key_file"), BookieTlsError),
        ((), UnauthorizedError),
    ],
    ids=["no password", "no certificate", "nothing"],
)
def test_a_writer_of_a_log_that_bookies_do_not_admit_is_told(secured: LocalCluster, lacks: tuple[str, ...], error: type[Exception]) -> None:
    """LINK-10: it makes no ledger after the other, which would all stay empty; neither does whoever opens a log that waits for recovery."""
    uri = without(secured.uri, *lacks) if lacks else secured.uri.partition("?")[0]
    name = f"strange-{len(lacks)}-{error.__name__}"
    with bk_core.connect(uri, operation_timeout_s=3600) as stranger:
        writer = stranger.create_log(name, entry_format="raw").writer()
        with pytest.raises(error):
            writer.append(b"x")
        with pytest.raises(error):
            writer.append(b"x")
        assert stranger.log(name).info.segments == 1
        writer.abandon()
    with bk_core.connect(secured.uri) as client:
        left = client.log(name).writer()
        left.append(b"of a client that is admitted")
        left.abandon()
        with bk_core.connect(uri, operation_timeout_s=3600) as stranger, pytest.raises(error):
            stranger.log(name).writer(take_over=True).append(b"x")
        with client.log(name).writer(take_over=True) as writer:
            writer.append(b"and another one")
        read = [bytes(one) for run in client.log(name).reader() for one in run.payloads()]
        assert read == [b"of a client that is admitted", b"and another one"]


def test_a_writer_whose_ledger_is_recovered_before_it_has_closed_it_is_told(secured: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """LINK-10: the ledger is in recovery then, and nobody answers who could end that. It was waited for until the operation's timeout."""
    recovers = threading.Event()
    with bk_core.connect(secured.uri.partition("?")[0], operation_timeout_s=60) as stranger:
        write = type(stranger.store).write_ledger

        def held(store: Any, ledger_id: int, data: bytes, version: int) -> int:
            state = metadata_codec.decode(data).state
            assert state is not LedgerState.CLOSED or recovers.wait(60)
            written = write(store, ledger_id, data, version)
            recovers.set()
            return written

        monkeypatch.setattr(type(stranger.store), "write_ledger", held)
        writer = stranger.create_log("recovered-first", entry_format="raw").writer()
        with pytest.raises(UnauthorizedError):
            writer.append(b"x")
        assert stranger.log("recovered-first").info.segments == 1
        writer.abandon()
