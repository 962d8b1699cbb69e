"""Racks by an operator's script, the one that Java's ``networkTopologyScriptFileName`` names (metadata.md 5.1)."""

from __future__ import annotations

import errno
import logging
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from threading import Lock

from bk_core.arguments import brief
from bk_core.background import WHEN_WOKEN, BackgroundLoop
from bk_core.display.words import counted
from bk_core.errors import BkError, InvalidArgumentError, MetadataUnavailableError
from bk_core.metadata.host_addresses import NAMES_S, Lookup, addresses_of
from bk_core.metadata.racks import RegisteredBookies
from bk_core.metadata.store import MetadataStore
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.placement import Topology
from bk_core.threads import Bell

_LOG = logging.getLogger(__name__)
ADDRESSES_MAX = 100  # of one run, as Java's networkTopologyScriptNumberArgs
RETRY_S = 60.0
GONE_MAX = 1000  # bookies that are gone and keep a last known rack
_OUTPUT_BYTES_MAX = 1 << 20
_LOOK_S = 0.1  # between two looks if the client is being closed
_CLOSE_S = 2.0  # the thread may be in a request to the metadata store, for which nobody waits
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
        return self._timeout_s + NAMES_S

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
        except ValueError as error:  # no system call takes such an argument
            raise _ScriptFailed(f"it cannot be run: {error}") from None
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

    ``lookup`` looks the addresses of hosts up, on threads of its own. The script is asked on a thread of its own, once for each bookie that
    comes. Until it has answered, and if it fails, a bookie keeps its last known rack, or is in the default rack. After a failure it is
    asked again when ``retry_s`` have passed, or when the next bookie comes. A failure is logged when it begins and when it changes.
    """

    def __init__(self, store: MetadataStore, script: RackScript, lookup: Lookup, retry_s: float = RETRY_S) -> None:
        self._store = store
        self._script = script
        self._lookup = lookup
        self._retry_s = retry_s
        self._lock = Lock()
        self._views = RegisteredBookies()
        self._bookies: frozenset[BookieId] = frozenset()
        self._changes = self._answered = 0  # of the registered bookies, so far; the last one after which the script was asked
        self._bell = Bell()  # rings when it was
        self._wanted: dict[BookieId, int] = {}  # with the change that brought the bookie
        self._failed: dict[BookieId, str] = {}  # of those that are wanted, with what was wrong; always replaced as a whole
        self._locations: dict[BookieId, str] = {}  # also of the ``GONE_MAX`` that were asked for last and are gone
        self._hung: dict[str, None] = {}  # names, of the asker alone
        self._topology = Topology()
        self._asker = BackgroundLoop("bookkeeper-racks", self._ask, of_client=True)
        self._asker.start()

    @property
    def script(self) -> str:
        """The path of the script."""
        return self._script.path

    @property
    def problem(self) -> str:
        """The reason for which no racks are told of some of the registered bookies; "" if they are told of all. Any thread."""
        return next(iter(self._failed.values()), "")

    def topology(self) -> Topology:
        """Return what is known now. It does not wait."""
        return self._topology

    def bookies_changed(self, bookies: Collection[BookieId], anew: Collection[BookieId] = (), number: int | None = None) -> None:
        """Take the registered bookies, and have the script asked about new ones and those that registered ``anew``. Bookies with a smaller
        ``number`` than those before them are older, and are not taken; None stands for the newest. It does not wait."""
        with self._lock:
            bookies, fresh = self._views.taken(bookies, anew, number)
            self._changes += bool(fresh)
            self._wanted = {one: change for one, change in self._wanted.items() if one in bookies}
            self._failed = {one: problem for one, problem in self._failed.items() if one in bookies - fresh}
            self._wanted |= dict.fromkeys(sorted(fresh), self._changes)
            self._bookies = bookies
            gone = [bookie for bookie in self._locations if bookie not in self._bookies]
            for bookie in gone[: max(0, len(gone) - GONE_MAX)]:
                del self._locations[bookie]
            left_out = self._renewed()
        _tell_left_out(left_out)
        if fresh:
            self._asker.wake()

    def settle(self) -> None:
        """Wait until the script has answered what it is asked now, or has failed."""
        wanted = self._changes
        self._bell.until(lambda: self._answered >= wanted or self._script.is_closed, self._script.patience_s)

    def close(self) -> None:
        """Ask no more, and end a run that is under way."""
        self._script.close()
        self._asker.stop()
        self._bell.notify_all()
        self._asker.join(_CLOSE_S)

    def _ask(self) -> float:
        """Ask for all that is wanted. Return the seconds until it is to be done again."""
        with self._lock:
            change, wanted = self._changes, dict(self._wanted)
        if wanted:
            addresses, failed = self._addresses(wanted)
            told, problem = self._script.locations(sorted(set(addresses.values())))
            failed |= dict.fromkeys((one for one, address in addresses.items() if address not in told), problem)
            self._note(wanted, {bookie: told[address] for bookie, address in addresses.items() if address in told}, failed)
        self._answered = change
        self._bell.notify_all()
        return self._retry_s if self.problem else WHEN_WOKEN

    def _note(self, wanted: Mapping[BookieId, int], found: Mapping[BookieId, str], failed: Mapping[BookieId, str]) -> None:
        with self._lock:
            before = next(iter(self._failed.values()), "")
            current = {bookie for bookie, change in wanted.items() if self._wanted.get(bookie) == change}  # others have gone, or moved
            for bookie in [one for one in found if one in current]:
                self._locations.pop(bookie, None)  # the ones asked for last stand last
                self._locations[bookie] = found[bookie]
                del self._wanted[bookie]
            self._failed = {one: problem for one, problem in failed.items() if one in current}
            missing, problem = sorted(self._failed), next(iter(self._failed.values()), "")
            left_out = self._renewed()
        _tell_left_out(left_out)
        if problem and problem != before and not self._script.is_closed:
            named = ", ".join(missing[:_NAMED_MAX]) + (" and others" if len(missing) > _NAMED_MAX else "")
            text = "no rack from the script %s for %s (%s): %s. They keep their last known racks, or are in the default rack; "
            text += "the script is asked again in %g s"
            _LOG.warning(text, self._script.path, counted(len(missing), "bookie"), named, problem, self._retry_s)

    def _renewed(self) -> list[BookieId]:
        """Make a topology of what is known. Return the bookies that it leaves out, if they are others than before, and else none. The
        caller holds the lock."""
        before, self._topology = self._topology, Topology(dict(self._locations), registered=self._bookies)
        were, are = ([one for one in topology.misplaced if one in topology.registered] for topology in (before, self._topology))
        return are if are != were else []

    def _addresses(self, bookies: Collection[BookieId]) -> tuple[dict[BookieId, str], dict[BookieId, str]]:
        """Return the address of each bookie, and what was wrong with those that have none."""
        hosts: dict[BookieId, str] = {}
        failed: dict[BookieId, str] = {}
        away = ""
        for bookie in bookies:
            try:
                if not away:
                    hosts[bookie] = self._store.resolve(bookie)[0]
            except MetadataUnavailableError as error:  # to ask it for the others would take as long for each
                away = str(error.args[0])
            except BkError as error:
                failed[bookie] = str(error.args[0])
            if away:
                failed[bookie] = away
            elif _is_no_host(hosts.get(bookie, "")):
                failed[bookie] = f"bookie {bookie} is registered with {brief(hosts.pop(bookie))}, which is no host"
        found = addresses_of(set(hosts.values()), self._lookup, lambda: self._script.is_closed, self._hung)
        failed |= {one: f"the name {host} was not looked up within {NAMES_S:g} s" for one, host in hosts.items() if host not in found}
        return {bookie: found[host] for bookie, host in hosts.items() if host in found}, failed


def _is_no_host(host: str) -> bool:
    """Return True for what a script may take for an option, and for what cannot be an argument."""
    return host.startswith("-") or "\0" in host


def _tell_left_out(bookies: Collection[BookieId]) -> None:
    if bookies:
        _LOG.warning("bookies left out, their locations have another depth than most: %s", ", ".join(bookies))
