"""Passwords of ZooKeeper, bookies and ledgers, and private keys reach Spark by name, and stand in nothing that Spark writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from bk_core.bookie.certificates import LocalSecurity
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.metadata import open_store
from tests.integration.secured_zookeeper import USERS, SecuredZooKeeper

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]
LEDGER_PASSWORD = "willow-4419"


def written_by(work: Path, uri: str, password_file: Path) -> dict[str, bytes]:
    """Run a batch and a stream, and return all that was written by them, by place."""
    task = {"uri": uri, "password_file": str(password_file), "work": str(work)}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    program = [sys.executable, "-m", "tests.spark.secrets_driver", json.dumps(task)]
    done = subprocess.run(program, cwd=work, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"copied": 7}
    written = {str(path): path.read_bytes() for path in work.rglob("*") if path.is_file()}
    return written | {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}


def test_no_secret_is_in_a_plan_a_log_an_event_or_a_checkpoint(tmp_path: Path) -> None:
    """ZooKeeper asks for a password, the bookie for a certificate and a password, the ledgers for theirs: driver and executors come in by
    the names of the files in the URI and in the options."""
    work, secrets = tmp_path / "work", tmp_path / "secrets"
    work.mkdir()
    secrets.mkdir()
    (secrets / "ledgers").write_text(f"{LEDGER_PASSWORD}\n")
    (secrets / "zookeeper").write_text(f"{USERS['flights']}\n")
    bookies = LocalSecurity(secrets / "bookies", tls=True, sasl=True)
    bookies.make()
    with SecuredZooKeeper(tmp_path / "zookeeper") as zookeeper:
        uri = f"{zookeeper.uri()}?user=flights&password_file={secrets / 'zookeeper'}&acl=creator&{bookies.query()}"
        with closing(open_store(uri)) as store:
            store.initialize_cluster()
            bookie = EmbeddedBookie(tmp_path / "bookie", store=store, options=BookieOptions(door=bookies.door)).start()
            try:
                written = written_by(work, uri, secrets / "ledgers")
            finally:
                bookie.close()
    password, key = (secrets / "bookies" / "password").read_text().strip(), (secrets / "bookies" / "client.key").read_text().splitlines()[1]
    named = [name for name, text in written.items() if b"password_file=" in text or b"passwordFile" in text]
    assert any("/events/" in name for name in named), "what Spark writes names the files, so this would see what they hold"
    for secret in (LEDGER_PASSWORD, USERS["flights"], password, key):
        assert not [name for name, text in written.items() if secret.encode() in text]
