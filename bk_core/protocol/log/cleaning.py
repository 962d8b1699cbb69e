"""Cleans up after vanished writers: decides which of their ledgers are deleted, which are only closed, and in which order. Pure.

Writers are judged as vanished before, by the age of intents and by what is known of their processes. ``gc_log`` (client/log/janitor.py)
drives the machine in production, ``cleaning`` (tests/simulation/log_keepers.py) in the simulator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bk_core.protocol.log.clearing import ListClearing


class LogCleaning(ListClearing):
    """Machine: condemns the ledgers ``abandoned`` that the list does not name, deletes them, and closes those that it names.

    The remains of earlier passes come first, because ledgers that dropped history mentions cannot be condemned. Without the log no commit
    can name any ledger, so there is nothing to condemn. It completes with the ids that are gone.
    """

    def __init__(self, name: str, abandoned: Iterable[int], intents: Collection[int] = (), retry_ns: int = 200_000_000) -> None:
        super().__init__(name, intents, retry_ns)
        self._abandoned = list(abandoned)

    def _begin(self) -> None:
        assert self.listed is not None
        self._log_id = self.listed.log_id
        self._clear(self._condemn)

    def _without_log(self, error: Exception) -> None:
        self._delete([one for one in self._abandoned if one not in self.deleted], lambda _gone: self._done())

    def _condemn(self) -> None:
        """Condemn the ledgers in the list first. A commit of one of them after that is refused, and one before it is found in the list
        (LOG-18)."""
        self._abandoned = [ledger_id for ledger_id in self._abandoned if ledger_id not in self.deleted]
        if self._abandoned:
            self._change(lambda listed, load: listed.condemn(self._abandoned, load), lambda: self._clear_condemned(self._look_up))
        else:
            self._done()

    def _look_up(self) -> None:
        self._find(lambda listed, load: listed.named(self._abandoned, load), self._close_listed, self._look_up)

    def _close_listed(self, named: frozenset[int]) -> None:
        """Close the ledgers that the list names. Their committed ranges stay, and nobody may write more."""
        waiting = [ledger_id for ledger_id in self._abandoned if ledger_id in named]

        def following() -> None:
            if not waiting or self._stopped:
                self._done()
                return
            ledger_id = waiting.pop(0)

            def closed() -> None:
                self.closed.append(ledger_id)
                self._forget(ledger_id)
                following()

            self._close_ledger(ledger_id, closed, following)

        following()
