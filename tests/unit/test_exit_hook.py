"""Objects that are open when the process ends are ended, one after the other."""

from __future__ import annotations

import pytest

from bk_core import exit_hook


class Client:
    def __init__(self, ended: list[str]) -> None:
        self._ended = ended

    def end(self) -> None:
        self._ended.append("client")
        raise RuntimeError("this client fails")


def test_one_that_fails_keeps_no_other_from_its_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    def failing() -> None:
        ended.append("closer")
        raise SystemExit("this closer fails")

    living = [Client(ended), Client(ended)]
    monkeypatch.setattr(exit_hook, "_before", [failing, failing])
    monkeypatch.setattr(exit_hook, "_living", living)
    exit_hook._end_all()
    assert ended == ["closer", "closer", "client", "client"]
    failed = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert failed == ["this closer fails"] * 2 + ["this client fails"] * 2
