"""A name server that never answers, asked by the system's own resolver: a program in a mount namespace with a resolv.conf of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bk_core.bookie.local_cluster import LocalCluster

PATIENCE_S = 240
LOOKUP_S = 30  # each question is repeated no sooner; the resolver takes no more
NAMESERVER = "127.77.53.53"  # a loopback address that nobody else uses

PROGRAM = """
import sys, threading
import bk_core
from bk_core.errors import BkError
from bk_core.metadata import open_store
from tests.soak.cluster import ThroughProxy

uri, slow = sys.argv[1:]

def through(bookie, host, port):
    return ("bookie.somewhere.example", port) if bookie == slow else (host, port)

def lookups():
    return [thread for thread in threading.enumerate() if thread.name.startswith("bookkeeper-name")]

def ledger_on(bk, wanted):
    while True:
        made = bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        if (made.metadata.fragments[0].ensemble[0] == slow) is wanted:
            return made
        made.abandon()

with bk_core.connect(uri) as plain:
    lost = ledger_on(plain, True)
    lost.append(b"x")
    lost.close()

bk = bk_core.connect(uri, store=ThroughProxy(open_store(uri), through))
healthy = ledger_on(bk, False)
ended = []

def read():
    try:
        with bk.open_ledger(lost.ledger_id) as reader:
            ended.append(reader.read(0, 0))
    except BkError as error:
        ended.append(error)

readers = [threading.Thread(target=read) for _ in range(8)]
for reader in readers:
    reader.start()
while not lookups():
    assert not ended, ended
(lookup,) = lookups()
for _ in range(100):
    healthy.append(b"y")
assert lookup.is_alive() and lookups() == [lookup], "appends ended before the first answer of the resolver"
healthy.close()
bk.close()
assert lookup.is_alive() and lookups() == [lookup], "so did close"
for reader in readers:
    reader.join()
assert len(ended) == 8 and all(isinstance(one, BkError) for one in ended), ended
print("well", flush=True)
"""


@pytest.fixture
def resolv_conf(tmp_path: Path) -> Path:
    """For one program, if this machine lets us: it takes the right to mount, and port 53."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces cannot be made here (unshare -m)")
    path = tmp_path / "resolv.conf"
    path.write_text(f"nameserver {NAMESERVER}\noptions timeout:{LOOKUP_S} attempts:1\n")
    return path


def test_a_name_server_that_never_answers_delays_nobody_else(cluster: LocalCluster, resolv_conf: Path) -> None:
    """LINK-8: neither another ledger's appends nor ``close``; eight readers share one look-up, and the process ends while it goes on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        try:
            silent.bind((NAMESERVER, 53))
        except OSError as error:
            pytest.skip(f"no name server can be played at {NAMESERVER}:53 ({error})")
        inside = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", inside, str(resolv_conf), sys.executable, "-X", "faulthandler", "-c", PROGRAM]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        arguments = [cluster.uri, cluster.bookie_ids[0]]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment)
        silent.setblocking(False)
        assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
        assert b"bookie" in silent.recv(512), "the system's resolver asked"
