"""A cluster with all that the page shows, and the page itself, in this process.

Without a Chromium the tests in a real browser are left out, and the header of the run says so: nothing else in the suite needs one.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path

import pytest

import bk_core
from bk_core.bookie import apache
from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from bk_core.client import BookKeeper
from bk_core.client.files.store import FileStore
from bk_core.client.log.history import read_log
from bk_core.errors import BookieUnavailableError
from bk_core.ui.guard import Token
from bk_core.ui.server import PageServer
from bk_core.ui.site import Site
from bk_core.ui.watching import LOOK_S
from tests.ui.browser import NAMES, find_browser

collect_ignore = [] if find_browser() else ["test_browser.py"]

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
BIDI = "safe\u202e\u0007txt.exe"
HOSTILE_LOG = "<b>log<\\b> '\"& name"
PASSWORD = b"the-password-of-a-ledger"


def pytest_report_header() -> list[str]:
    return (
        [] if find_browser() else [f"no browser ({', '.join(NAMES)}): the live page is not tried in one; Debian: apt-get install chromium"]
    )


@dataclass(frozen=True)
class Got:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: str = field(repr=False)
    cookies: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the text of the page as somebody reads it, without tags and with escapes resolved."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.body)).split())


class Visitor:
    """Asks the page as a browser that has the cookie, unless told otherwise."""

    def __init__(self, server: PageServer) -> None:
        self.server = server

    def get(self, path: str, *, method: str = "GET", cookie: str | None = None, host: str | None = None, **headers: str) -> Got:
        """Ask once. ``cookie`` and ``host`` replace what a browser sends; "" sends none."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            named = f"127.0.0.1:{self.server.port}" if host is None else host
            own = f"{self.server.cookie}={self.server.token.reveal()}" if cookie is None else cookie
            for name, value in {"Host": named, "Cookie": own, **{key.replace("_", "-"): value for key, value in headers.items()}}.items():
                if value:
                    connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            cookies = tuple(answer.headers.get_all("Set-Cookie") or ())
            return Got(answer.status, {key.lower(): value for key, value in answer.headers.items()}, answer.read().decode(), cookies)
        finally:
            connection.close()

    def until(self, path: str, is_so: Callable[[Got], bool], within_s: float = 60.0) -> Got:
        """Ask again and again until the page is so, and return it."""
        deadline = time.monotonic() + within_s
        while not is_so(got := self.get(path)):
            assert time.monotonic() < deadline, f"{path} did not become so; it says: {got.text[:3000]}"
            time.sleep(0.05)
        return got

    def settled(self, path: str) -> Got:
        """Return the page once nothing of it is being asked for any more."""
        return self.until(path, lambda got: "data-pending" not in got.body)


@contextmanager
def served(client: BookKeeper, password: bytes = b"", *, look_s: float = LOOK_S) -> Iterator[tuple[Site, Visitor]]:
    """Serve the page of a client's cluster meanwhile."""
    site = Site(client, password, look_s=look_s)
    server = PageServer("127.0.0.1", 0, Token(), site.answer)
    site.start()
    server.start()
    try:
        yield site, Visitor(server)
    finally:
        server.close()
        site.close()


@dataclass(frozen=True)
class World:
    """A cluster, and the ledgers in it by what they are for."""

    cluster: LocalCluster
    client: BookKeeper
    hostile: int
    protected: int
    open: int
    many: tuple[int, ...]


def need_java() -> None:
    try:
        apache.find_java()  # ZooKeeper needs it
    except BookieUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A cluster that tests only look at."""
    need_java()
    with local_cluster(3, tmp_path_factory.mktemp("ui")) as cluster, bk_core.connect(cluster.uri) as client:
        payloads = [HOSTILE.encode(), BIDI.encode(), b"\x00\x1b[31m\xff", b"plain words", b""]
        custom = {"note": HOSTILE.encode(), HOSTILE: b"x", "bidi": BIDI.encode()}
        with client.create_ledger(custom=custom) as ledger:
            for payload in payloads * 6:
                ledger.append(payload)
        with client.create_ledger(password=PASSWORD) as protected:
            protected.append(b"words behind a password")
        many = []
        for _ in range(60):
            with client.create_ledger(ensemble_size=2, write_quorum_size=2) as one:
                one.append(b"entry")
            many.append(one.ledger_id)
        for name in ("events", "an-extraordinarily-long-name-of-a-log.which-nobody.would-give.but-which-is-allowed-2026"):
            with client.create_log(name).writer() as writer:
                for number in range(10):
                    writer.append(b"row %d" % number)
        # no program of ours makes a log of such a name; others may have
        client.store.create(f"logs/{HOSTILE_LOG}", client.store.read("logs/events").data)
        client.create_ledger(custom={"log": HOSTILE_LOG.encode()}).close()
        log_id = read_log(client, "events").log_id
        place = {"logId": log_id, "seq": 0, "entry": 4, "row": 0, "rows": 4, "bytes": 20}
        with FileStore.open(client, "orders") as store:
            for batch in (3, 4):
                store.put(f"/by-carrier/offsets/{batch}", "\n".join(["v1", "{}", json.dumps({"events": place})]).encode())
            store.put("/by-carrier/commits/3", b"v1\n{}")
        with FileStore.open(client, "secret", password=PASSWORD) as store:
            store.put("/offsets/0", b"v1")
        with client.create_ledger() as left_open:
            for number in range(30):
                left_open.append(b"open %d" % number)
            yield World(cluster, client, ledger.ledger_id, protected.ledger_id, left_open.ledger_id, tuple(many))


@pytest.fixture(scope="package")
def visitor(world: World) -> Iterator[Visitor]:
    """The page of that cluster."""
    with bk_core.connect(world.cluster.uri) as client, served(client) as (site, found):
        yield found


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path
