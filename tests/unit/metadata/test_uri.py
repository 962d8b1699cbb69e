"""The one parser of the URIs of metadata stores (metadata.md 1.1)."""

from __future__ import annotations

import pytest

from bk_core.errors import InvalidArgumentError
from bk_core.metadata.uri import joined_hosts, parse, shown, split_hosts


def test_a_uri_is_taken_apart() -> None:
    found = parse("ZK+TLS+Flat://h1:1;h2,[::1]:3/a/ledgers?chroot=/x&session_timeout_ms=4000")
    assert (found.driver, found.by_tls, found.layout, found.hosts, found.root) == ("zk", True, "flat", "h1:1,h2,[::1]:3", "/a/ledgers")
    assert dict(found.options) == {"chroot": "/x", "session_timeout_ms": "4000"} and found.session_timeout_s == 4.0
    assert parse("zk+null://h/l").layout is None and parse("zk://h/l").session_timeout_s == 10.0
    memory = parse("memory://a name")
    assert (memory.driver, memory.hosts, memory.root) == ("memory", "a name", "")
    assert parse("memory://x?placement=rack-aware&bookie_user=a").hosts == parse("memory://x").hosts == "x"


def test_hosts_get_their_ports() -> None:
    assert split_hosts("a,b:7,[::1]", 5) == [("a", 5), ("b", 7), ("::1", 5)]
    assert joined_hosts("a,b:7,[::1]", 5) == "a:5,b:7,[::1]:5"


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("nothing", "is not the URI of a metadata store"),
        ("zk+tree://h/l", "no metadata store is known"),
        ("memory+flat://x", "no metadata store is known"),
        ("memory://", "needs a name"),
        ("memory://?placement=random", "needs a name"),
        ("memory://x?placement=nearest", "must be one of random, rack-aware"),
        ("memory://x?chroot=/a", "unknown option 'chroot'; there are placement"),
        ("memory://x?password=hunter2", "never holds a password"),
        ("memory://x#hunter2", "has a '#'"),
        ("zk://u:hunter2@h/l", "no user before its hosts"),
        ("zk://h/l/", "ends with a slash: write /l"),
        ("zk://h:0/l", "port within 1..65535"),
        ("zk://h:/l", "port within 1..65535"),
        ("zk://h/l?chroot=/a&chroot=/b", "'chroot' twice"),
        ("zk://h/l?chroot=", "'chroot' of the URI has no value"),
        ("zk://h/l?password=hunter2", "never holds a password"),
        ("zk://h/l#password=hunter2", "never holds a password"),
        ("zk://h/l?colour=red", "unknown option 'colour'; there are chroot, log_root, .*, trust_store_password_file, tls_minimum$"),
        ("zk://h/l?chrot=/x", "unknown option 'chrot'; did you mean 'chroot'"),
        ("zk://h/l#hunter2", "has a '#'"),
        ("zk://h/l?user=a&password=abc&hunter2", "never holds a password, as it does in 'password'"),
        ("zk://h/l?hunter2&user=a&PassWord=abc", "never holds a password, as it does in 'PassWord'"),
        ("zk://h/l?bookie_password=abc&hunter2=1&hunter2=2", "never holds a password, as it does in 'bookie_password'"),
        ("zk://h/l?password:hunter2", "never holds a password, as it does in 'password'"),
        ("zk://h/l?user=abc&hunter2", "has an option without a value that is not known: write %26"),
        ("zk://h/l?pwd=abc&hunter2=x", "unknown option 'pwd'"),
        ("zk://h/l?bookie_ca=/x", "unknown option 'bookie_ca'; there are bookie_tls, bookie_ca_file"),
        ("zk://h/l?bookie_ca_file=", "'bookie_ca_file' of the URI has no value"),
        ("zk://[::1/l", r"hosts of 'zk://\[::1/l' cannot be read"),
        ("zk://[u:hunter2@h/l", "hosts of 'zk://h/l' cannot be read"),
        ("etcd://[host]/l", "cannot be read"),
        ("zk+apache://h/l", "no metadata store is known"),
        ("etcd://h/l?bookies=cookies", "unknown option 'bookies'"),
        ("etcd+apache://h/l?bookies=h1:3181,name", "names 'name': write cookies"),
        ("etcd+apache://h/l?bookies=h1:99999", "names 'h1:99999': write cookies"),
        ("etcd+apache://h/l?bookies=h1:31:81", "names 'h1:31:81': write cookies"),
        ("zk://ho\u2100st/l", "cannot be read"),
    ],
)
def test_what_no_store_takes_is_refused_and_no_password_shown(uri: str, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told) as failure:
        parse(uri)
    assert "hunter2" not in str(failure.value)


def test_a_bad_timeout_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="session_timeout_ms 'soon'"):
        _ = parse("zk://h/l?session_timeout_ms=soon").session_timeout_s
    with pytest.raises(InvalidArgumentError, match="session_timeout_ms '9{21}' is not a number"):
        _ = parse(f"zk://h/l?session_timeout_ms={'9' * 5000}").session_timeout_s


def test_what_may_be_a_password_is_not_shown() -> None:
    assert shown("zk://u:hunter2@h/l?password=hunter2") == "zk://h/l?..."
    assert shown("u:hunter2@h?x") == "h" and shown("zk://h/l#hunter2") == "zk://h/l#..."
    assert "hunter2" not in repr(parse("zk://h/l?user=hunter2"))


def test_the_bookies_of_apaches_layout() -> None:
    """metadata.md 6.5"""
    plain = parse("etcd+tls+apache://h1:2379;h2:2379/clusters/c1")
    assert (plain.layout, plain.by_tls, plain.root, plain.bookies) == ("apache", True, "/clusters/c1", ())
    assert parse("etcd+apache://h/l?bookies=cookies").bookies == "cookies"
    assert parse("etcd+apache://h/l?bookies=h1:1;h2:2,h1:1").bookies == ("h1:1", "h2:2")
    assert parse("etcd+apache://h/l?bookies=::1:3181,[fe80::2]:3181").bookies == ("::1:3181", "[fe80::2]:3181")
