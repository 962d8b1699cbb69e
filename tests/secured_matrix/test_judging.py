"""The matrix argues only a failure that is known, and finds a secret that a log shows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from bk_core.bookie.apache import KNOWN_VERSIONS
from tests.secured_matrix import operations, play
from tests.secured_matrix.logs import client_log, shown_secrets
from tests.secured_matrix.operations import Sides, java_comes_in
from tests.secured_matrix.table import EMBEDDED, JAVA, JAVA_STAYS_OUT, NO_FRAME, NOT_TLS, UNDECODED, Place, Row, rows_of, signs_outside
from tests.soak.java_side import JavaFailedError

BOTH = (NOT_TLS, UNDECODED)


class Java:
    """A Java side with these answers to an entry, which writes ``told`` into a log before it answers."""

    def __init__(self, answers: list[list[str]], log: Path | None = None, told: str = "") -> None:
        self._answers, self._log, self._told = answers, log, told

    def ask(self, command: str, each: Callable[[list[str]], None]) -> Future[list[str]]:
        done: Future[list[str]] = Future()
        if command.startswith("create"):
            done.set_result(["created", "7"])
            return done
        assert command == "write 7 1"
        if self._log is not None:
            with self._log.open("a") as log:
                log.write(self._told)
        for answer in self._answers:
            each(answer)
        if self._answers:
            done.set_result(["wrote"])
        else:
            done.set_exception(JavaFailedError("", "the Java side ended"))
        return done


def sides(java: Any) -> Sides:
    nothing: Any = None
    return Sides(nothing, java, nothing, "", "v2")


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(operations, "_LOGGED_S", 0.05)
    (tmp_path / "bookie-0").mkdir()
    for name in ("java.log", "bookie-0/bookie.log"):
        (tmp_path / name).write_text("of another row: NotSslRecordException, unknown response : op code = 6\n")
    return tmp_path


def test_java_may_stay_out_where_the_document_says_so_and_nowhere_else() -> None:
    found = {row.name: signs_outside(row.place, row.protocol) for row in rows_of()}
    expected: dict[str, Any] = {}
    for release in KNOWN_VERSIONS:
        for way in ("tls", "mutual"):
            for auth in ("digest", "gssapi"):
                expected[f"{release} {way} {auth} v2"] = (NO_FRAME,) if release == "4.14.7" else (UNDECODED,)
                if release == "4.14.7":
                    expected[f"{release} {way} {auth} v3"] = (NOT_TLS,)
    assert {name: signs for name, signs in found.items() if signs} == expected


def test_java_that_writes_comes_in(logs: Path) -> None:
    assert java_comes_in(sides(Java([["ack", "0"]])), BOTH, logs)


@pytest.mark.parametrize(
    ("name", "told"), [("java.log", "Received unknown response : op code = 6"), ("bookie-0/bookie.log", "netty.NotSslRecordException: x")]
)
def test_java_stays_out_if_the_logs_say_why(logs: Path, name: str, told: str) -> None:
    assert not java_comes_in(sides(Java([["nack", "0", "-6"]], logs / name, told)), BOTH, logs)


@pytest.mark.parametrize(
    ("java", "error"),
    [
        (Java([["nack", "0", "-6"]]), "Java failed without 'NotSslRecordException' in bookie"),
        (Java([["nack", "0", "-102"]]), "did not fail as it may"),
        (Java([["ack", "1"]]), "did not fail as it may"),
        (Java([]), "the Java side ended"),
    ],
)
def test_any_other_failure_of_java_is_one(logs: Path, java: Java, error: str) -> None:
    with pytest.raises((AssertionError, JavaFailedError), match=error):
        java_comes_in(sides(java), BOTH, logs)


def test_a_sign_in_another_log_is_none(logs: Path) -> None:
    with pytest.raises(AssertionError, match="Java failed without"):
        java_comes_in(sides(Java([["nack", "0", "-6"]], logs / "java.log", "NotSslRecordException")), (NOT_TLS,), logs)


@pytest.mark.parametrize(
    ("place", "java", "state"),
    [
        (Place("4.18.0", "tls", "digest"), Java([["nack", "0", "-102"]]), "failed"),
        (Place("4.18.0", "tls", "digest"), Java([["ack", "0"]]), None),
        (Place("4.18.0", "tls", "none"), Java([]), None),
        (Place(EMBEDDED, "tls", "digest"), Java([]), None),
    ],
)
def test_a_row_fails_or_goes_on(logs: Path, place: Place, java: Java, state: str | None) -> None:
    world: Any = type("World", (), {"cluster": type("Cluster", (), {"directory": logs})})
    cell = play._java_outside(Row(place, "v2"), world, sides(java))
    assert (None if cell is None else cell.state) == state


def test_the_known_failure_is_argued(logs: Path) -> None:
    world: Any = type("World", (), {"cluster": type("Cluster", (), {"directory": logs})})
    java = Java([["nack", "0", "-6"]], logs / "java.log", UNDECODED.text)
    cell = play._java_outside(Row(Place("4.18.0", "tls", "digest"), "v2"), world, sides(java))
    assert cell is not None and (cell.state, cell.note) == ("argued", JAVA_STAYS_OUT) and len(JAVA) == 3


def test_a_secret_in_any_log_is_found_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "4.18.0-tls-digest" / "bookie-0").mkdir(parents=True)
    (tmp_path / "4.18.0-tls-digest" / "bookie-0" / "bookie.log").write_bytes(b"\xffuser=ann password=moss-3310\n")
    (tmp_path / "java.log").write_text("nothing\n")
    (tmp_path / "keys").write_text("moss-3310")
    with client_log(tmp_path / "client.log"):
        logging.getLogger("bk_core.net").debug("told another-5512")
    assert shown_secrets(tmp_path, ("moss-3310", "another-5512")) == [
        "secret 0 in 4.18.0-tls-digest/bookie-0/bookie.log",
        "secret 1 in client.log",
    ]
    assert shown_secrets(tmp_path, ("fern-4421",)) == []
