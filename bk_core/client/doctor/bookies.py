"""Judges the bookies of a cluster: cookies, registrations, what they answer, and their disks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING

from bk_core.client.doctor.admission import option_for, refusing, told_refusing
from bk_core.client.doctor.findings import SHOWN_MAX, Finding
from bk_core.client.doctor.probe import NOT_ADMITTED, BookieProbe
from bk_core.display.ledgers import DOWN, READ_ONLY, WRITABLE, bookie_states
from bk_core.display.words import counted, disk_size, host_port
from bk_core.errors import MetadataError, MetadataFormatError, NoNodeError
from bk_core.metadata.cookies import decode_cookie
from bk_core.metadata.rack_script import ScriptedRacks
from bk_core.metadata.racks import NOTHING_TELLS, parse_rack_map
from bk_core.protocol.ledger.metadata import BookieId

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

NEARLY_FULL, FULL = 0.90, 0.95
"""The used share of a bookie's disks from which on it is nearly full, and full: Apache's bookies warn at 0.90 and stop at 0.95."""
LITTLE_BYTES = 1 << 30
"""A bookie with less than this free on its disks may be read-only by itself, however small a share is used: it keeps room for recoveries
and for its next files."""
_MARKS_MAX = 1000


def states_of(client: BookKeeper) -> dict[BookieId, str]:
    """Return the state of every bookie by its id, in the order of ids: "writable", "read-only", or "down" for a bookie that only has a
    cookie."""
    view = client.bookies()
    return bookie_states(view.writable, view.readonly, client.store.cookies())


def told_by_probes(states: Mapping[BookieId, str], probes: Mapping[BookieId, BookieProbe]) -> dict[BookieId, str]:
    """Return the states after a bookie that only has a cookie was asked where that does not say that it is down: one that answers is
    writable."""
    answering = {bookie for bookie, probe in probes.items() if probe.answers}
    return {bookie: WRITABLE if state == DOWN and bookie in answering else state for bookie, state in states.items()}


def judge_cluster(client: BookKeeper) -> Iterator[Finding]:
    """Yield what is wrong with LAYOUT and with the mapping to racks."""
    try:
        what = "the cluster has no LAYOUT" if client.store.layout() is None else ""
    except MetadataFormatError as error:
        what = f"LAYOUT cannot be understood: {error.args[0]}"
    if what:
        advice = "restore the metadata store from a backup before anything else: without LAYOUT nobody knows where ledgers are"
        yield Finding("layout-missing", what, advice)
    if isinstance(scripted := client._session.racks, ScriptedRacks):
        if scripted.problem:
            what = f"the script {scripted.script} does not tell the racks of all bookies: {scripted.problem}"
            yield Finding("racks-unreadable", what, "run it with the addresses of the bookies; it prints a location for each")
        return
    is_mapped = client.config.racks is not None
    try:
        is_mapped = bool(parse_rack_map(client.store.read_rack_map().data)) or is_mapped
    except NoNodeError:
        pass
    except MetadataFormatError as error:
        is_mapped = True
        yield Finding("racks-unreadable", str(error.args[0]), "writers go on by the last good mapping that they know; mend the node")
    if client.config.placement_policy == "rack-aware" and not is_mapped:
        yield Finding("racks-unknown", NOTHING_TELLS, "have the environment of each process that writes name the script")


def judge_marks(client: BookKeeper, lost: Collection[int] = (), lacking: int = 0) -> Iterator[Finding]:
    """Yield what is wrong with auto-recovery, and the ledgers that are marked for it. ``lost`` are ledgers with entries of which no running
    bookie has a copy, ``lacking`` is the number of other ledgers that lack copies."""
    marks = client.store.underreplication()
    listed = list(islice(marks.marked_ledgers(), _MARKS_MAX + 1))
    stuck = [one for one in listed if one in lost]
    marked = [one for one in listed if one not in lost]
    disabled, auditor = marks.is_disabled(), marks.auditor()
    if marked:
        code, why, advice, command = "marked", f"auditor {auditor} sees to them", "wait; the marks go as copies are made", "bk cluster info"
        if disabled or auditor is None:
            why = "auto-recovery is switched off" if disabled else "no auto-recovery runs"
            code, advice = "marked-unattended", "repair them from here" + (", or switch auto-recovery on" if disabled else "")
            command = "bk ledger repair --all"
        count = f"more than {_MARKS_MAX - len(stuck):,} ledgers" if len(listed) > _MARKS_MAX else counted(len(marked), "ledger")
        text = f"{count} marked as under-replicated, and {why}"
        yield Finding(code, text, advice, command, ledgers=tuple(marked[:SHOWN_MAX]), count=len(marked))
    elif lacking and auditor is None and not disabled:
        what = f"no auto-recovery runs: nobody copies what {counted(lacking, 'ledger')} {'lacks' if lacking == 1 else 'lack'}"
        advice = "copy it from here, or start auto-recovery: `bk autorecovery`, or Apache's"
        yield Finding("autorecovery-absent", what, advice, "bk ledger repair --all", count=lacking)
    if stuck:
        what = f"{counted(len(stuck), 'ledger')} marked as under-replicated, with entries of which no running bookie has a copy"
        advice = "waiting does not help, nobody can copy what no bookie has; bring back a bookie that has them, with its data"
        command = f"bk ledger check {stuck[0]}"
        yield Finding("marked-stuck", what, advice, command, ledgers=tuple(stuck[:SHOWN_MAX]), count=len(stuck))
    if disabled:
        who = "none runs either" if auditor is None else f"auditor {auditor} waits"
        what = f"auto-recovery is switched off, and {who}: what a lost bookie had is copied by nobody"
        yield Finding("autorecovery-off", what, "switch it on when what it was switched off for is done", "bk cluster autorecovery on")


def judge_bookies(
    client: BookKeeper, states: Mapping[BookieId, str], probes: Mapping[BookieId, BookieProbe], named: Mapping[BookieId, int]
) -> Iterator[Finding]:
    """Yield what is wrong with bookies. ``named`` is the number of ledgers that name each."""
    cookies = set(client.store.cookies())
    instance = client.store.instance_id()
    yield from _judge_registrations(client, states)
    for bookie, state in states.items():
        if state == DOWN:
            yield _down(bookie, named.get(bookie, 0), "" if client.store.unregistered() else " --delete-cookie")
        elif bookie not in cookies:
            advice = "it runs on, but would not start again, and no auditor sees it; on its host, give it the cookie that it keeps itself"
            command = f"bk bookie cookie put {quote(bookie)} DIRECTORY/current/VERSION"
            what = f"bookie {bookie} is registered and has no cookie"
            yield Finding("cookie-missing", what, advice, command, bookies=(bookie,))
        if bookie in cookies:
            yield from _judge_cookie(client, bookie, instance)
        if state == READ_ONLY and bookie in cookies:  # without a cookie it has made itself so
            yield _read_only(bookie, probes.get(bookie), _ledger_directories(client, bookie))
        if bookie in probes and state != DOWN and probes[bookie].state != NOT_ADMITTED:  # which is told once for all bookies
            yield from _judge_probe(probes[bookie], named.get(bookie, 0))
    yield from _judge_mix(probes)


def judge_admission(client: BookKeeper, probes: Mapping[BookieId, BookieProbe]) -> Iterator[Finding]:
    """Yield a finding if bookies do not admit this client. What it then cannot know is judged by nobody (RR-19)."""
    refused = refusing(probes.values())
    if refused:
        advice = f"{option_for(client, refused)}; the copies there were not judged"
        shown = tuple(probe.bookie for probe in refused[:SHOWN_MAX])
        command = f"bk bookie health {quote(shown[0])}"
        yield Finding("not-admitted", told_refusing(refused, len(probes)), advice, command, bookies=shown, count=len(refused))


def judge_count(states: Mapping[BookieId, str], wanted: int) -> Iterator[Finding]:
    """Yield a finding if fewer bookies are writable than a new ledger needs. ``wanted`` is the greatest ensemble size of a log."""
    writable = sum(state == WRITABLE for state in states.values())
    if writable < max(1, wanted):
        what = f"{counted(writable, 'bookie')} can be written to, and a new ledger of a log needs {max(1, wanted):,}"
        advice = "start bookies, or make read-only ones writable; writers wait or fail until then"
        yield Finding("bookies-too-few", what, advice, "bk bookie ls")


def _judge_registrations(client: BookKeeper, states: Mapping[BookieId, str]) -> Iterator[Finding]:
    """Yield the bookies that serve and that nobody knows as writable, where registrations get lost."""
    why, view = client.store.unregistered(), client.bookies()
    found = tuple(bookie for bookie, state in states.items() if state != DOWN and bookie not in (*view.writable, *view.readonly))
    if why and found:
        what = f"{counted(len(found), 'bookie')} {'serves' if len(found) == 1 else 'serve'} without a registration"
        advice = "so that new ledgers are placed on all that have a cookie, write ?bookies=cookies behind the path of the URI"
        yield Finding("bookie-unregistered", f"{what}: {why}", advice, bookies=found)


def _down(bookie: BookieId, named: int, forgetting: str) -> Finding:
    if named:
        what = f"bookie {bookie} has a cookie and is not registered; {counted(named, 'ledger')} {'names' if named == 1 else 'name'} it"
        advice = "start it again with its data; if it is gone for good, this moves its copies to others and forgets it"
    else:
        what = f"bookie {bookie} has a cookie and is not registered; no ledger names it"
        advice = "if it is gone for good, forget it"
    return Finding("bookie-down", what, advice, f"bk bookie decommission {quote(bookie)}{forgetting}", bookies=(bookie,))


def _ledger_directories(client: BookKeeper, bookie: BookieId) -> int:
    """Return the number of directories for ledgers in the cookie of a bookie, 1 if it cannot be understood."""
    try:
        return len(decode_cookie(client.store.read_cookie(bookie).data).ledger_dirs)
    except (NoNodeError, MetadataFormatError):
        return 1


def _read_only(bookie: BookieId, probe: BookieProbe | None, directories: int) -> Finding:
    used = None if probe is None else probe.used
    if used is not None and used >= NEARLY_FULL:
        why = f": {used:.0%} of its disks are used"
        advice = "delete ledgers, trim logs, or give it more disk; it becomes writable by itself"
        command = f"bk bookie show {quote(bookie)}"
    elif directories > 1:  # by default a bookie turns read-only when one directory is full, but it reports the space of all of them
        why = "" if used is None else f"; {used:.0%} of its disks are used, all together"
        advice = (
            f"one of its {directories} ledger directories is full or failed, or an operator made it so: look at the disks of its host and "
        )
        advice += "at its log; with room it becomes writable by itself; if an operator made it so, "
        advice += f"`bk bookie read-only {quote(bookie)} off` puts it back"
        command = f"bk bookie show {quote(bookie)}"
    elif probe is not None and probe.free_bytes is not None and probe.free_bytes < LITTLE_BYTES:
        why = f": only {disk_size(probe.free_bytes)} are free on its disks"
        advice = "with so little room a bookie makes itself read-only: delete ledgers, trim logs, or give it more disk; it becomes "
        advice += f"writable by itself; if an operator made it so, `bk bookie read-only {quote(bookie)} off` puts it back"
        command = f"bk bookie show {quote(bookie)}"
    else:
        why = "" if used is None else f"; {used:.0%} of its disks are used"
        advice = "an operator made it so, or a disk of it failed: its own log says which; put it back when that is over"
        command = f"bk bookie read-only {quote(bookie)} off"
    return Finding("bookie-read-only", f"bookie {bookie} is read-only{why}", advice, command, bookies=(bookie,))


def _judge_cookie(client: BookKeeper, bookie: BookieId, instance: str | None) -> Iterator[Finding]:
    try:
        cookie = decode_cookie(client.store.read_cookie(bookie).data)
    except NoNodeError:
        return
    except MetadataError as error:
        advice = "restore the node from a backup; the bookie does not start with it"
        what = f"the cookie of bookie {bookie} cannot be understood: {error.args[0]}"
        yield Finding("cookie-foreign", what, advice, f"bk bookie show {quote(bookie)}", bookies=(bookie,))
        return
    if cookie.instance_id != instance:
        what = f"the cookie of bookie {bookie} is of cluster {cookie.instance_id}, and this one is {instance}"
        advice = "the cluster was made anew, or the bookie was moved: restore the metadata, or let the bookie start on new directories; "
        advice += "if its directories are of this cluster, give it the cookie that it keeps itself"
        command = f"bk bookie cookie put {quote(bookie)} DIRECTORY/current/VERSION --replace"
        yield Finding("cookie-foreign", what, advice, command, bookies=(bookie,))


def _judge_probe(probe: BookieProbe, named: int) -> Iterator[Finding]:
    if not probe.answers:
        where = "" if probe.address is None else f" at {host_port(*probe.address)}"
        what = f"bookie {probe.bookie} is registered and gives no answer{where} ({probe.state}: {probe.problem})"
        advice = "see if its process runs and if this host reaches it; a registration of a dead process goes within its session's timeout"
        if named:
            advice += f"; {counted(named, 'ledger')} {'has' if named == 1 else 'have'} copies there"
        yield Finding("bookie-unreachable", what, advice, f"bk bookie health {quote(probe.bookie)}", bookies=(probe.bookie,))
    used = probe.used
    if used is not None and used >= NEARLY_FULL:
        code = "disk-full" if used >= FULL else "disk-nearly-full"
        what = f"{used:.1%} of the disks of bookie {probe.bookie} are used, {disk_size(probe.free_bytes or 0)} are free"
        advice = "delete ledgers or trim logs (bookies free the space when they next collect garbage), or give it more disk"
        yield Finding(code, what, advice, "bk log ls", bookies=(probe.bookie,))


def _judge_mix(probes: Mapping[BookieId, BookieProbe]) -> Iterator[Finding]:
    kinds: dict[tuple[bool, tuple[str, ...]], list[BookieId]] = {}
    for probe in probes.values():
        if probe.answers and probe.batch_reads is not None:
            kinds.setdefault((probe.batch_reads, tuple(sorted(probe.round_trips_ns))), []).append(probe.bookie)
    if len(kinds) > 1:
        fewest = min(kinds.values(), key=len)
        what = f"{counted(len(fewest), 'bookie')} of {sum(map(len, kinds.values())):,} can do other things than the rest"
        advice = "they are of another release (batch reads came with 4.17) or configured otherwise; finish the upgrade"
        yield Finding("versions-mixed", what, advice, "bk bookie health", bookies=tuple(fewest[:SHOWN_MAX]), count=len(fewest))
