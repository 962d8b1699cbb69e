"""The clocks of the hosts that made ledgers, judged by what is so now: by the newest ledgers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bk_core.client.doctor.findings import SHOWN_MAX, Finding
from bk_core.client.log.live_writers import host_of
from bk_core.display.words import told_age
from bk_core.metadata.store import Versioned
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.protocol.log.times import SKEW_MS

UNKNOWN_MS = 3_600_000
"""A ledger that names no host tells of a clock for so long: a later ledger may be another host's."""
HOSTS_MAX = 1000


@dataclass(frozen=True, slots=True)
class _Stamp:
    """A ledger with the time by which the clock of its host was ``apart_ms`` ahead, and the time of its node on the store's clock."""

    ledger_id: int
    apart_ms: int
    created_ms: int

    @property
    def is_wrong(self) -> bool:
        return abs(self.apart_ms) > SKEW_MS

    def is_older_than(self, created_ms: int) -> bool:
        """Return True if the ledger was there before a node of ``created_ms`` whose ledger has a higher id, and its own node was not."""
        return self.apart_ms < -SKEW_MS and self.created_ms > created_ms + SKEW_MS


class WriterClocks:
    """The clocks of hosts by the ledgers that they made, in bounded memory: of each host that is named its newest ledger, and the newest
    few wrong ones of hosts that are not."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Stamp] = {}
        self._others: dict[int, _Stamp] = {}

    def take(self, ledger_id: int, stored: Versioned, metadata: LedgerMetadata) -> None:
        """Compare the clock of a ledger's host with the store's. Ledgers come by their ids, ascending."""
        if metadata.ctime_ms is None or stored.created_ms is None:
            return
        self._drop_restored(stored.created_ms)
        stamp = _Stamp(ledger_id, metadata.ctime_ms - stored.created_ms, stored.created_ms)
        if stamp.is_wrong and _is_restored(stamp, stored, metadata):
            return
        host = host_of(metadata.custom)
        if host:
            known = self._hosts.get(host)
            if (known is None and len(self._hosts) < HOSTS_MAX) or (known is not None and known.created_ms <= stamp.created_ms):
                self._hosts[host] = stamp
        elif stamp.is_wrong:
            self._others[ledger_id] = stamp
            if len(self._others) > SHOWN_MAX:
                del self._others[min(self._others, key=lambda one: self._others[one].created_ms)]

    def _drop_restored(self, created_ms: int) -> None:
        """Forget ledgers with lower ids and younger nodes: ids are given in order, so their nodes were made again, from a backup."""
        for host in [host for host, one in self._hosts.items() if one.is_older_than(created_ms)]:
            del self._hosts[host]
        for ledger_id in [ledger_id for ledger_id, one in self._others.items() if one.is_older_than(created_ms)]:
            del self._others[ledger_id]

    def findings(self, newest_ms: int) -> Iterator[Finding]:
        """Yield the finding about clocks that are wrong now. ``newest_ms`` is the newest time that the store has stamped."""
        hosts = {host: one for host, one in self._hosts.items() if one.is_wrong}
        others = [one for one in self._others.values() if one.created_ms > newest_ms - UNKNOWN_MS]
        found = sorted([*hosts.values(), *others], key=lambda one: one.ledger_id)[-SHOWN_MAX:]
        if not found:
            return
        worst = max((one.apart_ms for one in found), key=abs)
        side = "ahead of" if worst > 0 else "behind"
        whose = f"of {', '.join(sorted(hosts)[:3])}" if hosts else "of a host that made ledgers in the last hour"
        what = f"the clock {whose} was up to {told_age(abs(worst))} {side} the metadata store's when its newest ledger was made"
        until = (
            "the next ledger of the host with the right time ends this" if hosts and not others else "this ends an hour after the last one"
        )
        advice = f"set the clocks right (NTP) on the hosts of writers: {until}; times that are shown of these ledgers are wrong"
        ids = tuple(one.ledger_id for one in found)
        yield Finding("clock-skew", what, advice, f"bk ledger show {ids[-1]}", ledgers=ids, count=len(found))


def _is_restored(stamp: _Stamp, stored: Versioned, metadata: LedgerMetadata) -> bool:
    """Return True for a node that was made from a backup: it is younger than its ledger, and has never changed although the metadata in it
    has. A node is made OPEN, with one fragment."""
    changed = metadata.state is not LedgerState.OPEN or len(metadata.fragments) > 1
    return stamp.apart_ms < 0 and changed and stored.modified_ms == stored.created_ms
