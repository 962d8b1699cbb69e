"""The usual port of ZooKeeper is taken where it can be had; who listens on a port is known."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from bk_core import cli
from bk_core.bookie import ports


def test_the_usual_port_is_left_to_who_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(ports, "USUAL_PORT", other.getsockname()[1])
        assert not ports.is_free(ports.USUAL_PORT) and ports.usual_port(None) is None
        with socket.create_connection(other.getsockname()) as client:
            other.accept()[0].close()
            assert client.recv(1) == b""  # its end of the connection stays for a while, on the port
    assert ports.usual_port(None) == ports.usual_port(tmp_path) == ports.USUAL_PORT
    (tmp_path / "cluster.json").write_text('{"zookeeper_port": null}')
    assert ports.usual_port(tmp_path) == ports.USUAL_PORT
    (tmp_path / "cluster.json").write_text('{"zookeeper_port": 4711}')
    assert ports.usual_port(tmp_path) is None


def test_a_program_on_all_addresses_has_the_port() -> None:
    with socket.create_server(("0.0.0.0", 0)) as other:
        assert not ports.is_free(other.getsockname()[1])


def test_who_listens_is_told_by_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert ports.listens(os.getpid(), port)
        assert not ports.listens(os.getppid(), port)
    assert not ports.listens(os.getpid(), port)


def test_a_port_of_a_zookeeper_that_runs_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["local", "--port", "2181", "--zookeeper", "127.0.0.1:2181"]) == 2
    assert "leave one of them out" in capsys.readouterr().err
