"""Apache's bookies with lines of their own each: ids that are no addresses, addresses that change while clients are at work."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from bk_core.bookie import apache
from bk_core.bookie.apache import ApacheBookie, ApacheSettings
from bk_core.bookie.local_cluster import LocalCluster
from tests import quick_java
from tests.integration.conftest import APACHE_VERSION
from tests.network.stopping import stop_process

Lines: TypeAlias = Mapping[str, str | int | None]
SESSION_MS = 6000  # of a bookie with ZooKeeper: so long its registration outlives it


class OwnLines(LocalCluster):
    """A cluster whose bookie ``index`` has the lines of ``bookie.conf`` that ``lines_of(index)`` returns."""

    def __init__(
        self,
        directory: Path,
        bookies: int,
        lines_of: Callable[[int], Lines],
        *,
        java: tuple[str, ...] = (),
        zookeeper: str | None = None,
    ) -> None:
        apache.resolve(APACHE_VERSION)
        self._lines_of = lines_of
        settings = ApacheSettings(java=(*quick_java.java_options(APACHE_VERSION), *java))
        super().__init__(bookies, directory, APACHE_VERSION, zookeeper, apache_settings=settings)

    def _initialize(self) -> None:
        self._store.initialize_cluster()

    def _make_bookie(self, index: int) -> ApacheBookie:
        super()._make_bookie(index)  # which draws the port
        return self._made(index)

    def _made(self, index: int) -> ApacheBookie:
        assert self._libraries is not None
        settings = replace(self._settings, lines=self._lines_of(index))
        port: int = self._state["bookie_ports"][index]
        return ApacheBookie(self._libraries, self.directory / f"bookie-{index}", self.uri, port, self._is_registered, settings)

    def port(self, index: int) -> int:
        """The port of bookie ``index``, at whatever address."""
        port: int = self._state["bookie_ports"][index]
        return port


class Shelves(OwnLines):
    """Bookies ``shelf-0``, ``shelf-1``, ... at addresses of 127/8 which nobody else uses. Each can go away without a word, as a machine
    that loses its network does, and come back with its data at another address."""

    def __init__(self, directory: Path, bookies: int, *, lines: Lines | None = None, java: tuple[str, ...] = ()) -> None:
        self._moves = [0] * bookies
        self._ghosts: list[ApacheBookie] = []
        self._more = lines or {}
        super().__init__(directory, bookies, self._lines, java=java)

    def host(self, index: int) -> str:
        """The address of bookie ``index``: another one after each move."""
        return f"127.0.{index + 10}.{self._moves[index] + 1}"

    def _lines(self, index: int) -> Lines:
        return {"bookieId": f"shelf-{index}", "advertisedAddress": self.host(index), "zkTimeout": SESSION_MS, **self._more}

    def vanish(self, index: int) -> None:
        """Have a bookie stand still: its connections stay, nobody resets them, and nothing comes any more, neither to its clients nor to
        ZooKeeper."""
        ghost, home = self._bookies[index], self.directory / f"bookie-{index}"
        assert isinstance(ghost, ApacheBookie) and ghost.pid is not None
        stop_process(ghost.pid)
        self._ghosts.append(ghost)
        left = home.rename(home.with_name(f"{home.name}-ghost-{len(self._ghosts)}"))  # whose files the process has open
        shutil.copytree(left, home)

    def come_back(self, index: int) -> None:
        """Start a bookie that vanished, at a new address; return when it serves there. What stood still stays so."""
        self._moves[index] += 1
        self._bookies[index] = moved = self._made(index)
        moved.start()  # once the registration of the one before has lapsed
        moved.wait_ready()

    def _stop_bookies(self) -> None:
        for ghost in self._ghosts:
            ghost.kill()
        super()._stop_bookies()


class NamedShelves(Shelves):
    """The same bookies, registered by names that stay, as the pods of a StatefulSet are. ``addresses`` holds where the names lead, for the
    test to resolve; the bookies have a file of hosts."""

    def __init__(self, directory: Path, bookies: int, addresses: dict[str, str], *, lines: Lines | None = None) -> None:
        directory.mkdir(parents=True)
        self._hosts = directory / "hosts"
        self._addresses = addresses
        super().__init__(directory, bookies, lines=lines, java=(f"-Djdk.net.hosts.file={self._hosts}",))

    def name(self, index: int) -> str:
        """The name of bookie ``index``, with which its id begins."""
        return f"shelf-{index}.shelves.example"

    def _lines(self, index: int) -> Lines:
        self._addresses[self.name(index)] = self.host(index)
        known = {"localhost": "127.0.0.1", socket.gethostname(): "127.0.0.1", **self._addresses}
        self._hosts.write_text("".join(f"{address} {name}\n" for name, address in known.items()))
        return {**super()._lines(index), "bookieId": None, "advertisedAddress": self.name(index)}
