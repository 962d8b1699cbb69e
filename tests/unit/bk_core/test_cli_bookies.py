"""``bk bookie show|health|read-only|cookie``, ``bk cluster info|autorecovery``, ``bk ledger ls --bookie``, against embedded bookies."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import bk_core
from bk_core.bookie import standby
from bk_core.bookie.embedded import EmbeddedBookie
from bk_core.cli import output, replication, switching
from bk_core.cli.replication import _make_read_only
from bk_core.client.doctor import http as bookie_http
from bk_core.client.doctor.facts import cluster_facts
from bk_core.client.doctor.http import http_address, owner_of
from bk_core.client.doctor.probe import BookieProbe
from bk_core.errors import InvalidArgumentError
from bk_core.metadata import open_store
from bk_core.metadata.cookies import decode_cookie, encode_cookie
from bk_core.metadata.service_info import Endpoint, ServiceInfo
from bk_core.protocol.ledger import metadata_codec
from tests.integration.embedded import eventually
from tests.unit.bk_core.conftest import Bk


def test_a_cluster_in_short(bk: Bk, client: bk_core.BookKeeper) -> None:
    client.create_ledger().close()
    (info,) = bk.json("info", group="cluster")
    assert (info["cluster"], info["ledgers"], info["logs"], info["layout"]) == (client.store.cluster_id(), 1, 0, "memory")
    assert info["bookies"] == {"total": 3, "writable": 3, "readOnly": 0, "down": 0, "answering": 3}
    assert info["totalBytes"] > info["freeBytes"] > 0 and info["sharedDisks"] == 2
    (disk,) = {bk.json("show", one, "--no-ledgers", group="bookie")[0]["probe"]["totalBytes"] for one in client.bookies().writable}
    assert info["totalBytes"] == disk  # of this machine, which all three use
    assert info["autorecovery"] == {"on": True, "delaySeconds": None, "auditor": None}
    text = bk("info", group="cluster")
    assert "3 writable, 0 read-only, 0 down" in text and "3 of 3" in text and "none runs" in text
    assert "; 2 bookies seem to share those of another on the same host" in text


def test_disks_count_once_only_where_they_may_be_the_same(client: bk_core.BookKeeper) -> None:
    here, there = ("h1", 3181), ("h2", 3181)
    known = [(here, 1000, 500), (here, 1000, 505), (here, 1000, 600), (here, 2000, 500), (there, 1000, 500), (here, None, None)]
    probes = {
        str(at): BookieProbe(str(at), "answers", address=one, total_bytes=total, free_bytes=free)
        for at, (one, total, free) in enumerate(known)
    }
    found = replace(cluster_facts(client), probes=probes)
    assert found.space == (1000 + 1000 + 2000 + 1000, 500 + 600 + 500 + 500) and found.sharing == 1


def test_the_switch_of_auto_recovery(bk: Bk, client: bk_core.BookKeeper) -> None:
    assert "auto-recovery is on; nobody runs it" in bk("autorecovery", group="cluster")
    assert "is off now" in bk("autorecovery", "off", group="cluster")
    assert client.store.underreplication().is_disabled()
    assert bk.json("autorecovery", "off", group="cluster")[0] == {"on": False, "changed": False, "auditor": None, "delaySeconds": None}
    client.store.underreplication().mark(7, ["b1:3181", "b2:3181"], 1_700_000_000_000)
    marked, status = bk.json("autorecovery", "--marks", group="cluster")
    assert marked == {"ledger": 7, "bookies": ["b1:3181", "b2:3181"], "markedMs": 1_700_000_000_000, "lockedBy": None}
    assert status["on"] is False
    assert "b1:3181  b2:3181" in bk("autorecovery", "status", "--marks", group="cluster")
    assert bk.json("autorecovery", "on", group="cluster")[0]["changed"] is True
    assert bk.json("autorecovery", "--delay", "300", group="cluster")[0]["delaySeconds"] == 300
    assert "a bookie is lost after 300 seconds" in bk("autorecovery", group="cluster")
    assert bk.json("info", group="cluster")[0]["autorecovery"]["delaySeconds"] == 300
    assert bk.json("autorecovery", "--delay", "0", group="cluster")[0]["delaySeconds"] == 0
    bk("autorecovery", "--delay", str(1 << 31), group="cluster", status=2)
    assert not client.store.underreplication().is_disabled()


def test_one_bookie_from_all_sides(bk: Bk, client: bk_core.BookKeeper) -> None:
    bookie = client.bookies().writable[0]
    with client.create_ledger() as closed:
        closed.append(b"x")
    opened = client.create_ledger()
    (shown,) = bk.json("show", bookie, "--requests", "5", group="bookie")
    assert shown["probe"]["v2"]["requests"] == shown["probe"]["v3"]["requests"] == 5
    assert 0 < shown["probe"]["v2"]["p50Us"] <= shown["probe"]["v2"]["p99Us"] and shown["probe"]["batchReads"] is True
    assert shown["endpoints"] == [{"id": "bookie", "protocol": "bookie-rpc", "host": "127.0.0.1", "port": int(bookie.partition(":")[2])}]
    assert shown["ledgers"] == {"ledgers": 2, "fragments": 2, "open": 1, "first": [closed.ledger_id, opened.ledger_id]}
    assert shown["cookie"]["instanceId"] == client.store.cluster_id() and shown["problem"] is None
    assert bk.json("show", bookie, "--no-ledgers", group="bookie")[0]["ledgers"] is None
    text = bk("show", bookie, group="bookie")
    assert "round trip v3" in text and "2 ledgers with 2 fragments here" in text
    client.store.write_rack_map(json.dumps({"default": {bookie: {"rack": "/r1"}}}).encode(), None)
    assert bk.json("show", bookie, "--no-ledgers", group="bookie")[0]["rack"] == "/r1"
    bk("show", "nobody:1", group="bookie", status=1)
    assert "there is no bookie nobody:1" in bk.err
    opened.close()


def test_ledgers_of_one_bookie(bk: Bk, client: bk_core.BookKeeper) -> None:
    ids = []
    for _ in range(3):
        with client.create_ledger() as ledger:
            ids.append(ledger.ledger_id)
    first, *_ = client.bookies().writable
    metadata = client.ledger_metadata(ids[1])
    others = tuple("elsewhere:1" if bookie == first else bookie for bookie in metadata.fragments[0].ensemble)
    moved = replace(metadata, fragments=(replace(metadata.fragments[0], ensemble=others),))
    client.store.write_ledger(ids[1], metadata_codec.encode(moved), client.store.read_ledger(ids[1]).version)
    assert [one["ledger"] for one in bk.json("ls", "--bookie", first, group="ledger")] == [ids[0], ids[2]]
    assert [one["ledger"] for one in bk.json("ls", "--bookie", first, "--limit", "1", group="ledger")] == [ids[0]]
    assert f"2 of 3 ledgers name {first}" in bk("ls", "--bookie", first, group="ledger")
    bk("ls", "--bookie", "nobody:1", group="ledger", status=1)
    assert "there is no bookie nobody:1" in bk.err


def test_health_tells_who_does_not_answer(bk: Bk, client: bk_core.BookKeeper) -> None:
    all_three = bk.json("health", "--requests", "3", group="bookie")
    assert [one["answer"] for one in all_three] == ["answers"] * 3
    assert len(bk("health", all_three[0]["bookie"], group="bookie").splitlines()) == 2
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        bookie = f"127.0.0.1:{nobody.getsockname()[1]}"
        registration = client.store.register_bookie(bookie, "127.0.0.1", nobody.getsockname()[1])
        (dead,) = bk.json("health", bookie, group="bookie", status=1)
        assert (dead["answer"], dead["state"]) == ("refuses", "writable")
        assert "refuses: nothing listens there" in bk("health", group="bookie", status=1)
        registration.close()
    bk("health", bookie, group="bookie", status=1)
    assert "there is no bookie" in bk.err


def test_probes_put_no_bookie_into_quarantine(bk: Bk, client: bk_core.BookKeeper) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        bookie = f"127.0.0.1:{nobody.getsockname()[1]}"
        registration = client.store.register_bookie(bookie, "127.0.0.1", nobody.getsockname()[1])
        client.doctor()
        assert client.unanswering(0) == () and bookie not in client._session._avoided()
        registration.close()


def test_an_embedded_bookie_is_made_read_only_on_its_host(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path) -> None:
    bookie = client.bookies().writable[0]
    with client.create_ledger() as ledger:
        ledger.append(b"x")
    assert bk.json("read-only", bookie, "on", group="bookie") == [{"bookie": bookie, "readOnly": True, "told": "directory"}]
    assert client.bookies().readonly == (bookie,)
    with client.open_ledger(ledger.ledger_id) as reader:
        assert reader.read(0, 0) == [b"x"]
    (finding, *_) = [json.loads(line) for line in bk("doctor", "--json", group="cluster", status=1).splitlines()]
    assert finding["code"] == "bookie-read-only"
    bk(*finding["command"].split()[2:], group="bookie")
    assert bookie in bk.out and "is writable" in bk.out
    assert client.bookies().readonly == ()


def test_it_holds_after_a_restart(tmp_path: Path) -> None:
    store = open_store(f"memory://{tmp_path.name}")
    store.initialize_cluster()
    bookie = EmbeddedBookie(tmp_path / "b", store=store).start()
    assert standby.tell(tmp_path / "b", True) and not standby.tell(tmp_path / "b", True)
    assert eventually(lambda: store.bookies().readonly == (bookie.bookie_id,))
    bookie.close()
    with EmbeddedBookie(tmp_path / "b", store=store) as again:
        assert store.bookies().readonly == (again.bookie_id,)
        assert standby.tell(tmp_path / "b", False)
        assert eventually(lambda: store.bookies().writable == (again.bookie_id,))
    with pytest.raises(InvalidArgumentError, match="not the directory"):
        standby.tell(tmp_path, True)
    store.close()


def test_a_bookie_that_cannot_be_told_says_why(bk: Bk, client: bk_core.BookKeeper) -> None:
    registration = client.store.register_bookie("10.1.2.3:3181", "10.1.2.3", 3181)
    bk("read-only", "10.1.2.3:3181", "on", group="bookie", status=1)
    assert "BK-BOOKIE-HTTP" in bk.err and "httpServerEnabled=true" in bk.err and "Nothing was changed" in bk.err
    registration.close()
    bk("read-only", "nobody:1", "on", group="bookie", status=1)
    assert "there is no bookie" in bk.err


@contextmanager
def refusing_http() -> Iterator[str]:
    class Refuse(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refuse) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(30)


@contextmanager
def ending_http(asked: Callable[[], None]) -> Iterator[str]:
    """The HTTP server of a bookie that takes the order, and whose registration ends with it."""

    class End(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            asked()
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), End) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(30)


def test_a_bookie_that_goes_down_when_it_is_asked_is_not_read_only(
    bk: Bk, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(switching, "_TURN_S", 0.2)
    bookie = "10.1.2.3:3181"
    client.store.write_cookie(bookie, client.store.read_cookie(client.bookies().writable[0]).data, None)
    with ending_http(client.store.register_bookie(bookie, "10.1.2.3", 3181).close) as address:
        bk("read-only", bookie, "on", "--http", address, group="bookie", status=1)
    assert f"bookie {bookie} was asked, and is down" in bk.err and bk.out == ""
    with ending_http(client.store.register_bookie(bookie, "10.1.2.3", 3181).close) as address:
        _make_read_only(client, bookie, address, quiet=False)
    assert capfdbinary.readouterr().err.decode() == f"bookie {bookie} went down when it was asked\n"


def test_an_interrupted_wait_says_how_the_bookie_may_be(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    bookie = "10.1.2.3:3181"
    registration = client.store.register_bookie(bookie, "10.1.2.3", 3181)
    monkeypatch.setattr(replication, "await_state", interrupted)
    with ending_http(lambda: registration.set_readonly(True)) as address, pytest.raises(KeyboardInterrupt):
        _make_read_only(client, bookie, address, quiet=True)
    said = capfdbinary.readouterr().err.decode()
    assert f"bookie {bookie} may have been asked to turn read-only" in said and f"`bk bookie read-only {bookie} off`" in said


def test_a_server_that_knows_no_such_thing(bk: Bk, client: bk_core.BookKeeper) -> None:
    bookie = client.bookies().writable[0]
    with refusing_http() as address:
        bk("read-only", bookie, "on", "--http", address, group="bookie", status=1)
    assert f"PUT http://{address}/api/v1/bookie/state/readonly was answered 404" in bk.err
    bk("read-only", bookie, "on", "--http", address, group="bookie", status=1)
    assert "cannot be sent" in bk.err and "TLS" not in bk.err
    for wrong, why in ((f"ftp://{address}", "begins with neither http:// nor https://"), (f"{address}/api", "is no HOST:PORT")):
        bk("read-only", bookie, "on", "--http", wrong, group="bookie", status=1)
        assert why in bk.err and "BK-ARGUMENT" in bk.err
    assert client.bookies().readonly == ()


def test_the_http_server_of_another_bookie_is_not_asked(bk: Bk, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that listens at every address of its host is at the host of its bookie."""
    one, other, *_ = client.bookies().writable
    hosts = {one: "10.1.1.1", other: "10.1.1.2"}

    def info(_: object, bookie: str) -> ServiceInfo | None:
        rpc, http = Endpoint("bookie", 3181, hosts.get(bookie, ""), "bookie-rpc"), Endpoint("httpserver", 8080, "0.0.0.0", "http")
        return ServiceInfo((http, rpc)) if bookie in hosts else None

    monkeypatch.setattr(bookie_http, "service_info", info)
    assert [http_address(info(client, bookie)) for bookie in (one, other, "nobody")] == ["10.1.1.1:8080", "10.1.1.2:8080", None]
    for address in ("10.1.1.2:8080", "https://10.1.1.2:8080/"):
        bk("read-only", one, "on", "--http", address, group="bookie", status=1)
        assert f"is that of bookie {other}, so nobody was asked" in bk.err
    assert owner_of(client, "10.1.1.1:8080") == one and owner_of(client, "10.1.1.3:8080") is None


def test_a_lost_cookie_is_given_again(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path) -> None:
    bookie = client.bookies().writable[0]
    (got,) = bk.json("cookie", "get", bookie, group="bookie")
    assert (got["bookie"], got["instanceId"]) == (bookie, client.store.cluster_id())
    version = Path(got["ledgerDirs"][0]) / "current" / "VERSION"
    bk("cookie", "get", bookie, "--raw", group="bookie")
    assert bk.raw == version.read_bytes() == client.store.read_cookie(bookie).data
    bk("cookie", "put", bookie, str(version), group="bookie", status=1)
    assert "has a cookie" in bk.err
    client.store.delete_cookie(bookie, client.store.read_cookie(bookie).version)
    bk("cookie", "get", bookie, group="bookie", status=1)
    assert "has no cookie" in bk.err
    bk("cookie", "put", "other:1", str(version), group="bookie", status=1)
    assert f"is the cookie of bookie {bookie}" in bk.err
    foreign = tmp_path / "foreign"
    foreign.write_bytes(encode_cookie(replace(decode_cookie(version.read_bytes()), instance_id="another")))
    bk("cookie", "put", bookie, str(foreign), group="bookie", status=1)
    assert "of cluster another" in bk.err
    bk("cookie", "put", bookie, str(version), group="bookie")
    assert client.store.read_cookie(bookie).data == version.read_bytes()
    for useless, told in ((foreign.read_bytes(), "a cookie of cluster another"), (b"9\n", "a cookie that cannot be understood")):
        client.store.write_cookie(bookie, useless, client.store.read_cookie(bookie).version)
        bk("cookie", "put", bookie, str(version), group="bookie", status=1)
        assert f"has {told}; nothing was changed. --replace writes over it" in bk.err
        bk("cookie", "put", bookie, str(version), "--replace", group="bookie")
        assert client.store.read_cookie(bookie).data == version.read_bytes()
    bk("cookie", "put", bookie, str(version), "--replace", group="bookie", status=1)
    assert "has a cookie of this cluster" in bk.err
    assert "cluster" in bk("cookie", "get", bookie, group="bookie")


def test_long_tables_are_printed_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[int] = []

    def rows(count: int) -> Iterator[tuple[object, ...]]:
        for number in range(count):
            if number == 1500:
                printed.append(len(capsys.readouterr().out.splitlines()))
            yield (number * 1000, "x" * (number // 500), None)

    output.say_rows(["#number", "word", "none"], rows(2500))
    assert printed == [1002]  # the head and the first block are out before the rest is made
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2500 - 1001
    assert lines[-1] == "2,499,000  xxxx  -"
    output.say_rows(["#number", "word", "none"], rows(1000))
    assert len(capsys.readouterr().out.splitlines()) == 1001
