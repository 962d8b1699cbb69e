"""A pod of a StatefulSet starts on another node: the same as in ``test_named_bookies.py``, with networks that drop what is sent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bk_core.bookie import apache
from bk_core.errors import BookieUnavailableError
from tests.integration.conftest import APACHE_VERSION

pytestmark = [pytest.mark.apache, pytest.mark.deep]
ROOT = Path(__file__).resolve().parents[2]
ADD_TIMEOUT_S = 5.0
SLACK_S = 5.0  # of a busy machine


def test_a_pod_starts_on_another_node(tmp_path: Path) -> None:
    """LINK-3, LINK-4, SES-5."""
    try:
        apache.resolve(APACHE_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    unshare = shutil.which("unshare")
    if unshare is None or shutil.which("ip") is None or subprocess.run([unshare, "-n", "-m", "true"], capture_output=True).returncode:
        pytest.skip("networks cannot be made here (unshare -n -m, ip)")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [unshare, "-n", "-m", sys.executable, "-X", "faulthandler", "-m", "tests.integration.pods", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    took_s: dict[str, float] = json.loads(done.stdout)
    print(took_s)
    assert took_s["writer with a spare"] < ADD_TIMEOUT_S + SLACK_S
    assert took_s["writer without"] < SLACK_S
    assert all(seconds < SLACK_S for name, seconds in took_s.items() if name.endswith("after"))
