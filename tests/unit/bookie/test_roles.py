"""The role of a client in its certificate, as Apache's bookies read it, and what a gate makes of it (wire-protocol.md 10.4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bk_core.bookie.server import bookie_options, parse_options
from bk_core.protocol.bookie.gate import Gate, GateAnswer, Then
from bk_core.protocol.bookie.roles import role_of
from bk_core.protocol.wire.messages import AuthRequest, AuthResponse, ReadRequest, ReadResponse, StartTlsRequest, StartTlsResponse, Status


@pytest.mark.parametrize(
    ("unit", "role"),
    [
        ("0:writer", "writer"),
        ("0: writer , reader;1:cluster", "writer"),
        ("1:cluster;0:writer", "writer"),
        ("0:first;0:second", "second"),
        ("0:a:b", "a:b"),
        ("writer", ""),
        ("role:writer", ""),
        ("1:writer", ""),
        ("0:", ""),
        ("0:,writer", ""),
        (" 0:writer", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_it_is_the_first_of_those_behind_zero(unit: str | None, role: str) -> None:
    assert role_of(unit) == role


def test_a_client_without_the_role_is_told_so_unasked_and_never_served() -> None:
    gate = Gate(tls=True, users=None, nonce=lambda: "", roles=("writer",))
    assert gate.asked(StartTlsRequest(7), is_v2=False).then is Then.BEGIN_TLS
    assert gate.secured("0:reader") == GateAnswer(StartTlsResponse(7, Status.IO_ERROR))
    assert gate.asked(ReadRequest(8, 1, 2), is_v2=False) == GateAnswer(ReadResponse(8, Status.UNAUTHORIZED, 1, 2))
    assert gate.asked(AuthRequest(9, "sasl", b""), is_v2=False) == GateAnswer(AuthResponse(9, Status.UNAUTHORIZED))
    assert gate.asked(AuthRequest(9, "BookieAuthZFactory", b""), is_v2=False) == GateAnswer(None)
    other = Gate(tls=True, users=None, nonce=lambda: "", roles=("admin", "writer"))
    other.asked(StartTlsRequest(7), is_v2=False)
    assert other.secured("0:writer") == GateAnswer(None, Then.SERVE)


def test_a_server_takes_roles_from_its_command_line(tmp_path: Path) -> None:
    files = ("--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "a")
    options = parse_options(["--uri", "zk://h/l", "--directory", str(tmp_path), *files, "--tls-roles", "admin,writer"])
    door = bookie_options(options).door
    assert door is not None and door.roles == ("admin", "writer")
