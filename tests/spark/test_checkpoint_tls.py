"""A stateful query whose checkpoint is reached over TLS, from driver and executor, with Spark's own client (``swebhdfs:``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.spark.test_checkpoint_tls import certificate

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.deep
def test_a_query_keeps_its_state_over_tls(cluster: Any, tmp_path: Path) -> None:
    """Token, both steps of each upload and of each read: all of it is one connection's TLS or another's. The driver writes offsets and
    commits, the executor the state."""
    files, trusted = certificate(tmp_path, "driver"), str(tmp_path / "trust.p12")
    store = ["-keystore", trusted, "-storetype", "PKCS12", "-storepass", "changeit"]
    subprocess.run(["keytool", "-importcert", "-noprompt", "-alias", "driver", "-file", files[0], *store], check=True, capture_output=True)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"key": "a"}\n{"key": "b"}\n{"key": "a"}\n')
    task = {"uri": cluster.uri, "files": files, "trusted": trusted, "input": str(tmp_path / "in")}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    program = [sys.executable, "-m", "tests.spark.checkpoint_tls_driver", json.dumps(task)]
    done = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"place": "swebhdfs://bookkeeper-checkpoints/secure", "state": {"a": 2, "b": 1}}
