"""Ledgers whose metadata stores no digest type and no password: what their caller names is used (META-15). Bookies in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import bk_core
from bk_core import cli
from bk_core.bookie.server import EmbeddedBookie
from bk_core.client.client import BookKeeper
from bk_core.client.repair import jobs as replication
from bk_core.errors import ReadError, RecoveryFailedError, UnauthorizedError, WrongDigestTypeError
from bk_core.metadata import open_store
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import DigestType, LedgerMetadata, LedgerState
from bk_core.protocol.limits import Limits

PASSWORD = b"secret"
PAYLOADS = [b"%d" % n for n in range(20)]
LIMITS = Limits(replication_retry_ns=1_000_000, replication_retries_max=1)


@pytest.fixture
def uri(tmp_path: Path) -> Iterator[str]:
    """Four bookies: one more than an ensemble, so that a lost one can be replaced."""
    name = f"memory://{tmp_path.name}"
    store = open_store(name)
    store.initialize_cluster()
    bookies = [EmbeddedBookie(tmp_path / str(n), "127.0.0.1", 0, store).start() for n in range(4)]
    yield name
    for bookie in bookies:
        bookie.close()


@pytest.fixture
def client(uri: str) -> Iterator[BookKeeper]:
    with bk_core.connect(uri, limits=LIMITS) as made:
        yield made


def aged(metadata: LedgerMetadata, version: int) -> LedgerMetadata:
    """As an old release would have stored it: no digest, no password, no time, no token."""
    quorum = metadata.write_quorum_size
    access = {"has_digest": False, "stores_password": False, "password": b"", "digest_type": DigestType.CRC32}
    form = {"format_version": version, "creator_token": None, "ctime_ms": None}
    return replace(metadata, ack_quorum_size=quorum, **form, **access)  # type: ignore[arg-type]


def old_ledger(client: BookKeeper, version: int, digest: str, *, closed: bool) -> int:
    writer = client.create_ledger(write_quorum_size=2, ack_quorum_size=2, digest_type=digest, password=PASSWORD)
    writer.append_many(PAYLOADS[:10])
    writer.append_many(PAYLOADS[10:])
    if closed:
        writer.close()
    else:
        writer.abandon()
    stored = client.store.read_ledger(writer.ledger_id)
    data = metadata_codec.encode(aged(metadata_codec.decode(stored.data), version))
    client.store.write_ledger(writer.ledger_id, data, stored.version)
    return writer.ledger_id


@pytest.mark.parametrize("digest", ["CRC32", "MAC", "CRC32C"])
@pytest.mark.parametrize("version", [1, 2])
def test_an_old_ledger_is_recovered_and_read(client: BookKeeper, version: int, digest: str) -> None:
    """META-15: from fencing (the key of the password) to the last digest; the format stays what it was."""
    ledger_id = old_ledger(client, version, digest, closed=False)
    with client.recover_ledger(ledger_id, password=PASSWORD, digest_type=digest) as handle:
        assert handle.is_closed and handle.read(0, 19) == PAYLOADS
    stored = client.ledger_metadata(ledger_id)
    assert (stored.state, stored.last_entry_id, stored.length) == (LedgerState.CLOSED, 19, sum(map(len, PAYLOADS)))
    assert (stored.format_version, stored.has_digest, stored.stores_password) == (version, False, False)
    with client.open_ledger(ledger_id, password=PASSWORD, digest_type=digest) as handle:
        handle.refresh()
        assert handle.read(0, 19) == PAYLOADS


def test_an_old_ledger_that_is_open_is_read_and_followed(client: BookKeeper) -> None:
    """META-15: the LAC packets and the entries; what the watch brings is read with the same access."""
    ledger_id = old_ledger(client, 1, "MAC", closed=False)
    with client.open_ledger(ledger_id, password=PASSWORD, digest_type="MAC") as reader:
        last = reader.last_add_confirmed
        assert last >= 9 and reader.read(0, last) == PAYLOADS[: last + 1]
        client.recover_ledger(ledger_id, password=PASSWORD, digest_type="MAC").close()
        assert [p for run in reader.tail(timeout_s=10) for p in run.payloads()] == PAYLOADS


def test_a_wrong_guess_says_what_was_guessed(client: BookKeeper) -> None:
    """Nothing is closed on a guess, and the password stays out of the message."""
    ledger_id = old_ledger(client, 1, "MAC", closed=False)
    hint = r"its metadata \(format 1\) stores no digest type and no password, and CRC32 with a password was used"
    with pytest.raises(ReadError, match=hint):
        client.open_ledger(ledger_id, password=PASSWORD)
    with pytest.raises(RecoveryFailedError, match=hint) as failure:
        client.recover_ledger(ledger_id, password=PASSWORD)
    assert "secret" not in str(failure.value)
    with pytest.raises(UnauthorizedError):
        client.recover_ledger(ledger_id, password=b"other", digest_type="MAC")
    assert client.ledger_metadata(ledger_id).state is LedgerState.IN_RECOVERY
    client.recover_ledger(ledger_id, password=PASSWORD, digest_type="MAC").close()
    with client.open_ledger(ledger_id) as reader, pytest.raises(ReadError, match="CRC32 without a password was used"):
        reader.read(0, 19)


def test_half_of_it_stored(client: BookKeeper) -> None:
    """META-15: what is stored is compared, what is not is taken."""
    ledger_id = old_ledger(client, 2, "MAC", closed=True)
    stored = client.store.read_ledger(ledger_id)
    half = replace(metadata_codec.decode(stored.data), stores_password=True, password=PASSWORD)
    client.store.write_ledger(ledger_id, metadata_codec.encode(half), stored.version)
    assert not client.ledger_metadata(ledger_id).has_digest
    with client.open_ledger(ledger_id, password=PASSWORD, digest_type="MAC") as reader:
        assert reader.read(0, 19) == PAYLOADS
    full = client.create_ledger(digest_type="CRC32C")
    with pytest.raises(WrongDigestTypeError):
        client.open_ledger(full.ledger_id, digest_type="MAC")
    full.close()


@pytest.mark.parametrize("version", [1, 2])
def test_an_old_ledger_is_checked_and_repaired(client: BookKeeper, version: int) -> None:
    """META-15 with RR-4, RR-5, RR-7: sound copies are good, and are copied; without a digest nothing is copied, and it says why."""
    ledger_id = old_ledger(client, version, "MAC", closed=True)
    access = {"password": PASSWORD, "digest_type": "MAC"}
    assert client.check_ledger(ledger_id, full=True, **access).is_good  # type: ignore[arg-type]
    doubtful = client.check_ledger(ledger_id, full=True)
    assert not doubtful.is_good and "stores no digest type and no password, and CRC32 without a password was used" in doubtful.digest_note
    victim = client.ledger_metadata(ledger_id).fragments[0].ensemble[0]
    refused = client.repair_ledger(ledger_id, lost=[victim])
    assert not refused.changed and len(refused.problems) == 1 and "CRC32 without a password was used" in refused.problems[0]
    repaired = client.repair_ledger(ledger_id, lost=[victim], full=True, **access)
    assert repaired.is_complete and repaired.moved[0].old == victim
    assert client.check_ledger(ledger_id, full=True, **access).is_good  # type: ignore[arg-type]
    assert not client.ledger_metadata(ledger_id).has_digest
    with client.open_ledger(ledger_id, **access) as reader:  # type: ignore[arg-type]
        assert reader.read(0, 19) == PAYLOADS


def test_a_repair_recovers_an_old_ledger(client: BookKeeper) -> None:
    """RR-3 with META-15."""
    ledger_id = old_ledger(client, 1, "MAC", closed=False)
    victim = client.ledger_metadata(ledger_id).fragments[0].ensemble[0]
    options = {"lost": [victim], "recover_open": True, "grace_s": 0.0, "password": PASSWORD, "digest_type": "MAC"}
    report = client.repair_ledger(ledger_id, **options)
    assert report.recovered and report.is_complete
    assert victim not in client.ledger_metadata(ledger_id).fragments[0].ensemble


def test_options_of_a_repair_show_no_password() -> None:
    assert "secret" not in repr(replication.RepairOptions(password=PASSWORD))


def test_the_command_line_takes_both(client: BookKeeper, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    ledger_id = str(old_ledger(client, 1, "MAC", closed=False))
    access = ["--digest", "mac", "--password", "secret", "--uri", uri]
    assert cli.run(["ledger", "check", ledger_id, *access]) == 0
    assert cli.run(["ledger", "recover", ledger_id, *access]) == 0
    assert cli.run(["ledger", "read", ledger_id, "--raw", *access]) == 0
    assert cli.run(["ledger", "repair", ledger_id, *access]) == 0
    capsys.readouterr()
    assert cli.run(["ledger", "check", ledger_id, "--uri", uri]) == 1
    assert "CRC32 without a password was used: name those it was written with" in capsys.readouterr().out.replace("\n", " ")
    assert cli.run(["ledger", "show", ledger_id, "--uri", uri, "--json"]) == 0
    assert '"digestType": null' in capsys.readouterr().out
