"""Ports for servers that listen later: nobody is given one that somebody else was given before."""

from __future__ import annotations

import pytest

from bk_core.bookie import children


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_PORTS", range(20_000, 20_040))
    monkeypatch.setattr(children, "_drawn", set())
    given = [children.free_port() for _ in range(20)]
    assert len(set(given)) == 20 and set(given) <= set(range(20_000, 20_040))


def test_processes_look_at_different_ports_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_drawn", set())
    first: list[int] = []
    for pid in (160, 161):
        monkeypatch.setattr(children.os, "getpid", lambda pid=pid: pid)
        first += [children.free_port() % 16 for _ in range(10)]
    assert first == [0] * 10 + [1] * 10
