"""Racks by an operator's script, the one that Java's ``networkTopologyScriptFileName`` names (metadata.md 5.1)."""

from __future__ import annotations

import errno
import ipaddress
import logging
import math
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from threading import Lock

from bk_core.arguments import brief
from bk_core.background import WorkerPool
from bk_core.display.words import counted
from bk_core.errors import BkError, ClientClosedError, InvalidArgumentError
from bk_core.metadata.store import MetadataStore
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.placement import Topology
from bk_core.threads import wait_done

_LOG = logging.getLogger(__name__)
ADDRESSES_MAX = 100  # of one run, as Java's networkTopologyScriptNumberArgs
RETRY_S = 60.0
_OUTPUT_BYTES_MAX = 1 << 20
_LOOK_S = 0.1  # between two looks if the client is being closed
_NAMES_S = 5.0  # for the addresses of bookies that register host names
_NAMED_MAX = 3
_SHELL = "/bin/sh"  # runs a script without a first line that names its interpreter, as Java does


class _ScriptFailed(Exception):
    """One run told no racks; the text says in what way."""


class RackScript:
    """A script that gets addresses as arguments and prints a location for each. ``timeout_s`` is what all its runs for one question take
    at most; then it is killed, with all processes that it has started in its group."""

    def __init__(self, path: str, timeout_s: float) -> None:
        self.path = path
        self.is_closed = False
        self._timeout_s = timeout_s

    @property
    def patience_s(self) -> float:
        """The seconds that an answer takes at most, with the look for the addresses of host names."""
        return self._timeout_s + _NAMES_S

    def check(self) -> None:
        """Raise InvalidArgumentError if there is no such file on this host, or nobody may run it."""
        if not os.path.isfile(self.path):
            raise InvalidArgumentError(f"rack_script {self.path!r} is no file on this host: every host that runs a client needs the script")
        if not os.access(self.path, os.X_OK):
            raise InvalidArgumentError(f"rack_script {self.path!r} may not be run by this user: chmod +x, or another user")

    def close(self) -> None:
        """End a run that is under way, and begin no other one."""
        self.is_closed = True

    def locations(self, addresses: Sequence[str]) -> tuple[dict[str, str], str]:
        """Return the location of each address as printed, as far as runs of ``ADDRESSES_MAX`` succeed, and what was wrong with the first
        one that did not, "" if nothing was."""
        found: dict[str, str] = {}
        deadline = time.monotonic() + self._timeout_s
        problem = ""
        for begin in range(0, len(addresses), ADDRESSES_MAX):
            some = addresses[begin : begin + ADDRESSES_MAX]
            try:
                found.update(zip(some, self._run(some, deadline), strict=True))
            except _ScriptFailed as failed:
                problem = problem or str(failed)
        return found, problem

    def _run(self, addresses: Sequence[str], deadline: float) -> list[str]:
        process = self._started([self.path, *addresses])
        try:
            said, complained = self._outputs(process, deadline)
            self._await(process, deadline)
        except BaseException:
            with suppress(ProcessLookupError, PermissionError):  # its children, too, which may hold its output
                os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            with suppress(subprocess.TimeoutExpired):  # one that the system cannot end now is collected later
                process.wait(_LOOK_S)
        if process.returncode != 0:
            lines = complained.decode(errors="replace").strip().splitlines()
            raise _ScriptFailed(f"it ended with status {process.returncode}{f': {brief(lines[0])}' if lines else ''}")
        printed = said.decode(errors="replace").split()
        if len(printed) != len(addresses):
            raise _ScriptFailed(f"it printed {counted(len(printed), 'location')} for {counted(len(addresses), 'address', 'addresses')}")
        return printed

    def _started(self, command: list[str]) -> subprocess.Popen[bytes]:
        try:
            return self._popen(command)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise _ScriptFailed(f"it cannot be run: {error.strerror}") from None
        try:
            return self._popen([_SHELL, *command])
        except OSError as error:
            raise _ScriptFailed(f"it cannot be run by {_SHELL}: {error.strerror}") from None

    def _popen(self, command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, bufsize=0
        )

    def _outputs(self, process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
        """Return what the process prints and what it complains of, until it has closed both."""
        assert process.stdout is not None and process.stderr is not None
        got = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
        said, complained = got.values()
        with selectors.DefaultSelector() as selector:
            for descriptor in got:
                selector.register(descriptor, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select(self._slice_s(deadline)):
                    data = os.read(key.fd, 1 << 16)
                    got[key.fd] += data
                    if not data:
                        selector.unregister(key.fd)
                    if len(got[key.fd]) > _OUTPUT_BYTES_MAX:
                        raise _ScriptFailed(f"it printed more than {_OUTPUT_BYTES_MAX >> 20} MiB")
        return bytes(said), bytes(complained)

    def _await(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        while True:
            try:
                process.wait(self._slice_s(deadline))
                return
            except subprocess.TimeoutExpired:
                continue

    def _slice_s(self, deadline: float) -> float:
        """Return the seconds to wait until the next look. Raises when the time is up, or when the client is being closed."""
        left = deadline - time.monotonic()
        if self.is_closed:
            raise _ScriptFailed("the client is being closed")
        if left <= 0:
            raise _ScriptFailed(f"it did not end within {self._timeout_s:g} s")
        return min(_LOOK_S, left)


class ScriptedRacks:
    """The rack of each bookie, as a script tells it. ``topology`` is the newest that is known; any thread may read it.

    The script is asked on a thread of its own, once for each bookie that comes. Until it has answered, and if it fails, a bookie keeps its
    last known rack, or is in the default rack. After a failure it is asked again when ``RETRY_S`` have passed, or when the next bookie
    comes. A failure is logged when it begins and when it changes.
    """

    def __init__(self, store: MetadataStore, script: RackScript, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._script = script
        self._clock = clock
        self._lock = Lock()
        self._bookies: frozenset[BookieId] = frozenset()
        self._changes = 0  # of the registered bookies, so far
        self._wanted: dict[BookieId, int] = {}  # with the change that brought the bookie
        self._locations: dict[BookieId, str] = {}
        self._retry_at = math.inf
        self._topology = Topology()
        self.problem = ""
        """The reason for which the last answer told no racks of some bookies; "" if it told all."""
        self._asker = WorkerPool("bookkeeper-racks", 1)

    @property
    def script(self) -> str:
        """The path of the script."""
        return self._script.path

    def topology(self) -> Topology:
        """Return what is known now, and have the script asked again if that is due. It does not wait."""
        if self._clock() >= self._retry_at:
            self._retry_at = math.inf
            self._ask_soon()
        return self._topology

    def bookies_changed(self, bookies: Collection[BookieId]) -> None:
        """Take the registered bookies, and have the script asked about new ones. It does not wait."""
        with self._lock:
            self._changes += 1
            fresh = set(bookies) - self._bookies
            self._wanted = {one: change for one, change in self._wanted.items() if one in bookies}
            self._wanted |= dict.fromkeys(fresh, self._changes)
            self._bookies = frozenset(bookies)
        if fresh:
            self._ask_soon()

    def settle(self) -> None:
        """Wait until the script has answered what it is asked now, or has failed."""
        with suppress(ClientClosedError):
            wait_done(self._asker.call(lambda: None), self._script.patience_s)

    def close(self) -> None:
        """Ask no more, and end a run that is under way."""
        self._script.close()
        self._asker.close()

    def _ask_soon(self) -> None:
        with suppress(ClientClosedError):
            self._asker.submit(self._ask)

    def _ask(self) -> None:
        with self._lock:
            wanted = dict(self._wanted)
        if not wanted:
            return
        addresses, problem = self._addresses(wanted)
        told, failed = self._script.locations(sorted(set(addresses.values())))
        self._note(wanted, {bookie: told[address] for bookie, address in addresses.items() if address in told}, failed or problem)

    def _note(self, wanted: dict[BookieId, int], found: dict[BookieId, str], problem: str) -> None:
        with self._lock:
            for bookie, place in found.items():
                if self._wanted.get(bookie) == wanted[bookie]:  # else it has gone, or come back elsewhere
                    self._locations[bookie] = place
                    del self._wanted[bookie]
            missing = sorted(bookie for bookie in wanted if bookie in self._wanted)
            before, self._topology = self._topology, Topology(dict(self._locations))
            after = self._topology
            changed, self.problem = problem != self.problem, problem
            self._retry_at = self._clock() + RETRY_S if problem else math.inf
        if after.misplaced != before.misplaced:
            _LOG.warning("bookies left out, their locations have another depth than most: %s", ", ".join(after.misplaced))
        if problem and changed and not self._script.is_closed:
            named = ", ".join(missing[:_NAMED_MAX]) + (" and others" if len(missing) > _NAMED_MAX else "")
            text = "no rack from the script %s for %s (%s): %s. They keep their last known racks, or are in the default rack; "
            text += "the script is asked again in %g s"
            _LOG.warning(text, self._script.path, counted(len(missing), "bookie"), named, problem, RETRY_S)

    def _addresses(self, bookies: Collection[BookieId]) -> tuple[dict[BookieId, str], str]:
        """Return the address of each bookie, and what was wrong with the first one that has none, "" if nothing was."""
        found: dict[BookieId, str] = {}
        problem = ""
        for bookie in bookies:
            try:
                host = self._store.resolve(bookie)[0]
            except BkError as error:
                problem = problem or str(error.args[0])
                continue
            if host.startswith("-"):  # which a script may take for an option
                problem = problem or f"bookie {bookie} is registered with {brief(host)}, which is no host"
                continue
            found[bookie] = _address_of(host)
        return found, problem


def _address_of(host: str) -> str:
    """Return the address of a host as Java gives it to the script: that of IPv4 if there is one, or the host itself if it is not known."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(host))
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return host
    addresses = [str(place[0]) for family, _, _, _, place in found if family == socket.AF_INET]
    return addresses[0] if addresses else str(found[0][4][0]).partition("%")[0]
