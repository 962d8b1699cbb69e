"""The command line of an embedded bookie."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bk_core.bookie import embedded_process, server
from bk_core.bookie.collector import CollectorOptions
from bk_core.bookie.door import Door
from bk_core.bookie.embedded import BookieOptions
from bk_core.bookie.embedded_process import EmbeddedBookieProcess
from bk_core.bookie.kerberos_service import KerberosService
from bk_core.protocol.bookie.admission import ConnectionLimits


def test_the_options_of_the_server_reach_the_bookie() -> None:
    given = {"--connections": 7, "--polls-per-connection": 8, "--stalled-s": 9, "--idle-s": 10, "--few": 11, "--few-share": 0.25}
    times = {"--collect-interval-s": 12, "--moved-interval-s": 13, "--tombstone-keep-s": 14, "--refill-interval-s": 15}
    needed = ["--uri", "memory://x", "--directory", "d"]
    parsed = server.parse_options([*needed, *(str(word) for pair in (given | times).items() for word in pair), "--accept-data-loss"])
    options = server.bookie_options(parsed)
    assert options.limits == ConnectionLimits(connections=7, polls_per_connection=8, stalled_s=9.0, idle_s=10.0)
    assert options.collector == CollectorOptions(12.0, 13.0, 14.0, 11, 0.25)
    assert (options.refill_interval_s, options.accept_data_loss) == (15.0, True)
    assert server.bookie_options(server.parse_options(needed)) == BookieOptions()


def test_kerberos_reaches_the_door() -> None:
    words = ["--uri", "memory://x", "--directory", "d", "--kerberos-principal", "bookkeeper/h@R", "--kerberos-keytab", "/k"]
    assert server.bookie_options(server.parse_options(words)).door == Door(
        kerberos=KerberosService("bookkeeper/h@R", "/k", ".*bookkeeper.*")
    )
    options = server.bookie_options(server.parse_options([*words, "--tls-cert", "/c", "--kerberos-clients=-a.*"]))
    assert options.door == Door("/c", kerberos=KerberosService("bookkeeper/h@R", "/k", "-a.*"))


def test_a_process_has_the_options_of_its_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(embedded_process, "Child", lambda _name, command, *_arguments, **_more: commands.append(command))
    door = Door("/c", "/c.key", "/ca", kerberos=KerberosService("bookkeeper/h@R", "/k", "-a.*"))
    process = EmbeddedBookieProcess(tmp_path, "memory://x", 3181, door=door)
    process.start()
    process.kill()
    words = commands[0][commands[0].index("--uri") :]
    assert server.bookie_options(server.parse_options(words)).door == door


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--kerberos-principal", "a"], "--kerberos-principal and --kerberos-keytab need one another"),
        (["--kerberos-keytab", "/k"], "--kerberos-principal and --kerberos-keytab need one another"),
        (["--kerberos-clients", ".*"], "--kerberos-clients means nothing without --kerberos-principal"),
    ],
)
def test_options_of_kerberos_that_mean_nothing_are_refused(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        server.parse_options(["--uri", "memory://x", "--directory", "d", *words])
    assert text in capsys.readouterr().err


def test_without_the_package_a_bookie_says_so_before_it_looks_for_its_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    monkeypatch.setattr(server, "open_store", lambda *_arguments, **_more: pytest.fail("the store is opened"))
    monkeypatch.setattr(server.signal, "signal", lambda *_: None)
    words = [
        "--uri",
        "zk://127.0.0.1:9/ledgers",
        "--directory",
        str(tmp_path / "d"),
        "--kerberos-principal",
        "a",
        "--kerberos-keytab",
        "/k",
    ]
    assert server._run(server.parse_options(words)) == 1
    assert "bookie cannot run: " in (told := capfd.readouterr().err) and "Kerberos needs the package gssapi" in told
    assert not (tmp_path / "d").exists()
