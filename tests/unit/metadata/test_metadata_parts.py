"""Paths, cookies, registrations and store URIs, without a server."""

from __future__ import annotations

import re
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.bookie.zookeeper_process import ZooKeeperProcess, find_java
from bk_core.errors import BookieUnavailableError, InvalidArgumentError, MetadataFormatError, ZooKeeperProcessError
from bk_core.metadata import open_store, paths
from bk_core.metadata.cookies import Cookie, decode_cookie, encode_cookie
from bk_core.metadata.service_info import Endpoint, ServiceInfo, address_of, bookie_service_info, decode_service_info, encode_service_info
from bk_core.metadata.tree.clock import since_boot_s


def test_systems_without_a_clock_since_boot_have_one_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    first = since_boot_s()
    assert since_boot_s() >= first


def test_the_legacy_layout_refuses_ids_that_it_would_cut_off() -> None:
    assert paths.ledger_path("legacy", 10**10 - 1) == "/99/9999/L9999"
    with pytest.raises(InvalidArgumentError):
        paths.ledger_path("legacy", 10**10)
    for wrong in (-1, 2**63):
        with pytest.raises(InvalidArgumentError):
            paths.ledger_path("hierarchical", wrong)


@pytest.mark.parametrize("manager", ["flat", "legacy", "hierarchical", "longhierarchical"])
def test_layouts(manager: str) -> None:
    stored = paths.layout_bytes(manager)
    assert paths.manager_of_layout(stored) == manager
    assert paths.manager_of_layout(stored.replace(b"\norg", b"\ndlshade.org") + b"\nmore") == manager
    assert paths.manager_of_layout(b"1\nflat:1") == "flat"


@pytest.mark.parametrize("stored", [b"", b"2", b"3\nflat:1", b"2\norg.example.Other:1", b"2\n" + b"x" * 5, b"\xff\n\xff"])
def test_unknown_layouts(stored: bytes) -> None:
    with pytest.raises(MetadataFormatError):
        paths.manager_of_layout(stored)


def test_id_counters() -> None:
    assert paths.sequence_number("ID-0000000007") == 7
    assert paths.sequence_number("ID-2147483646") == 2147483646
    for overflow in ("ID-2147483647", "ID--2147483648", "ID-9999999999", "L0000000000"):
        assert paths.sequence_number(overflow) is None
    assert paths.high_order([]) is None
    assert paths.high_order(["HOB-0000000002", "HOB-0000000010", "other"]) == 10


def test_the_log_root_lies_beside_the_ledgers_root() -> None:
    assert paths.default_log_root("/ledgers") == "/ledgers-logs"
    assert paths.default_log_root("/a/ledgers") == "/a/ledgers-logs"
    assert paths.old_log_root("/ledgers") == "/bk-logs"
    assert paths.old_log_root("/a/ledgers") == "/a/bk-logs"
    for wrong in ("/ledgers", "/ledgers/logs", "logs", "/logs/"):
        with pytest.raises(InvalidArgumentError):
            paths.check_log_root(wrong, "/ledgers")


@pytest.mark.parametrize(
    "uri",
    [
        "nonsense", "zk://", "zk://h:1", "zk://h:1/", "zk://h:1/ledgers/", "zk+ms://h:1/ledgers", "http://h/ledgers", "memory://", "memory+x://a",
        "zk://h:1/ledgers?wrong=1", "zk://h:1/ledgers?session_timeout_ms=x", "zk://h:1/ledgers?chroot=x", "zk:///ledgers",
    ],
)  # fmt: skip
def test_wrong_uris(uri: str) -> None:
    with pytest.raises(InvalidArgumentError):
        open_store(uri)


def test_a_memory_store_keeps_no_watch_that_was_cancelled() -> None:
    store: Any = open_store("memory://watched")
    for _ in range(10):
        store.watch("logs/a", lambda: None).cancel()
    kept = store.watch("logs/a", lambda: None)
    assert store._mine == [kept]
    store.close()
    assert store._mine == []


def test_memory_stores_are_shared_by_name() -> None:
    open_store("memory://one").create_ledger(1, b"x")
    assert open_store("MEMORY://one").read_ledger(1).data == b"x"
    assert list(open_store("memory://two").list_ledgers()) == []


_COOKIE = Cookie("bk-1", ("/j1", "/j2"), ("/l 1", '/l"2'), "id", ("/i",))


def test_cookies() -> None:
    assert decode_cookie(encode_cookie(_COOKIE)) == _COOKIE
    assert decode_cookie(b"3\nbk-1\n/j\n2\t/a\t/b\n") == Cookie("bk-1", ("/j",), ("/a", "/b"))
    assert decode_cookie(encode_cookie(_COOKIE).replace(b"5\n", b"4\n", 1)) == _COOKIE
    assert _COOKIE.differences(_COOKIE) == ()
    assert Cookie("x", ("/j",), ("/l",)).differences(Cookie("y", ("/j",), ("/m",), None, ("/l",))) == ("bookie id", "ledger directories")


@pytest.mark.parametrize(
    "stored",
    [b"", b"6\n", b"x", b"5\n", b"3\na\nb", b'5\nbookieHost: "a"\njournalDir: "b"\nledgerDirs: "2\\t/a"\n', b'5\nbookieHost: "\\377"\n'],
)
def test_malformed_cookies(stored: bytes) -> None:
    with pytest.raises(MetadataFormatError):
        decode_cookie(stored)


@given(st.binary(max_size=60))
def test_any_registration_is_read_or_refused(data: bytes) -> None:
    try:
        info = decode_service_info(data)
    except MetadataFormatError:
        return
    assert all(isinstance(endpoint.port, int) for endpoint in info.endpoints)


def test_addresses() -> None:
    http = Endpoint("httpserver", 8080, "h", "http")
    info = ServiceInfo((http, Endpoint("bookie", 3181, "10.0.0.1", "bookie-rpc", (), ("tls",))), {"k": "v"})
    assert decode_service_info(encode_service_info(info)) == info
    assert address_of("bk", encode_service_info(info)) == ("10.0.0.1", 3181)
    assert address_of("h:3181", b"") == address_of("h:3181", None) == address_of("h:3181", b"\xff") == ("h", 3181)
    assert address_of("::1:3181", None) == address_of("[::1]:3181", None) == ("::1", 3181)
    assert address_of("2001:db8::a:7:3181", None) == ("2001:db8::a:7", 3181)
    for wrong in ("bk", "h:0", "h:99999", "::1:0", "a:b:3181", "shelf:7:1", ":3181", "h:x"):
        with pytest.raises(BookieUnavailableError):
            address_of(wrong, encode_service_info(ServiceInfo((http,))))
    with pytest.raises(InvalidArgumentError):
        encode_service_info(bookie_service_info("h", 0))


def test_an_id_is_nobodys_address_in_whatever_spelling(tmp_path: Path) -> None:
    """metadata.md 4.4: the bookie that is there would deny the entries of the one that is not."""
    with closing(open_store(f"memory://{tmp_path.name}")) as store:
        store.initialize_cluster()
        named = {
            "a": "localhost",
            "b": "127.0.0.1",
            "c": "2001:db8:0::1",
            "10.0.0.5:3184": "127.0.0.7",
            "e": "Shelf.",
            "f": "::ffff:10.9.8.7",
        }
        for bookie, host in named.items():
            store.register_bookie(bookie, host, 3181 if bookie == "a" else 9)
        there = ("127.0.0.1:3181", "::1:3181", "127.0.0.1:9", "LOCALHOST:9", "[2001:db8::1]:9", "2001:DB8:0:0::1:9", "127.0.0.7:9")
        for taken in (*there, "shelf:9", "10.9.8.7:9"):
            with pytest.raises(BookieUnavailableError, match=f"bookie {re.escape(taken)} is not registered, and at the address in its id"):
                store.resolve(taken)
        for free in ("127.0.0.1:3182", "127.0.0.2:3181", "2001:db8::2:9", "10.0.0.5:3185", "shelf.example:9"):
            assert store.resolve(free)[1] == int(free.rpartition(":")[2])
        assert store.resolve("10.0.0.5:3184") == ("127.0.0.7", 9)


def test_a_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = str(tmp_path_factory.mktemp("empty"))
    monkeypatch.setenv("JAVA_HOME", empty)
    with pytest.raises(ZooKeeperProcessError, match="JAVA_HOME"):
        find_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", empty)
    with pytest.raises(ZooKeeperProcessError, match="Java 17"):
        find_java()
    with pytest.raises(ZooKeeperProcessError):
        _ = ZooKeeperProcess(empty).port
