"""A conversation with one machine of a log: what it has asked for and not yet been told."""

from __future__ import annotations

from typing import Any

from bk_core.protocol.effects import Complete, Fail, SetTimer
from bk_core.protocol.events import Outcome, TimerFired
from bk_core.protocol.log import effects as fx
from bk_core.protocol.log.leader import LogLeader
from bk_core.protocol.log.leader_state import LeaderOptions, LeaderState, Roll
from bk_core.protocol.log.machine import LogMachine

ANSWERS: dict[type, type] = {
    fx.ReadList: fx.ListRead,
    fx.WriteList: fx.ListWritten,
    fx.CreateLedger: fx.LedgerCreated,
    fx.RecoverLedger: fx.LedgerEnded,
    fx.CloseLedger: fx.LedgerEnded,
    fx.DeleteLedger: fx.LedgerDeleted,
    fx.AppendTo: fx.Appended,
    fx.CheckLedger: fx.LedgerChecked,
    fx.OpenLedger: fx.LedgerOpened,
    fx.LoadChunk: fx.ChunkLoaded,
    fx.LookAtLedger: fx.LedgerOpened,
    fx.ChangeList: fx.ListWritten,
    fx.Deliver: fx.Delivered,
}


class Talk:
    def __init__(self, machine: LogMachine) -> None:
        self.machine = machine
        self.pending: list[Any] = []
        self.done: dict[Any, Any] = {}
        self.failed: dict[Any, Exception] = {}
        self.timers: dict[str, int] = {}
        self.delivered: list[tuple[int, int, int]] = []
        self.deleted: list[int] = []
        self.forgotten: list[int] = []

    def take(self, effects: list[Any]) -> Talk:
        for effect in effects:
            match effect:
                case Complete(token, value):
                    assert token not in self.done and token not in self.failed
                    self.done[token] = value
                case Fail(token, error):
                    assert token not in self.done and token not in self.failed
                    self.failed[token] = error
                case SetTimer(key, after_ns):
                    self.timers[key] = after_ns
                case fx.ForgetIntent(ledger_id):
                    self.forgotten.append(ledger_id)
                case _:
                    if isinstance(effect, fx.Deliver):
                        self.delivered.append((effect.segment.ledger_id, effect.first_entry_id, effect.last_entry_id))
                    if isinstance(effect, fx.DeleteLedger):
                        self.deleted.append(effect.ledger_id)
                    self.pending.append(effect)
        return self

    def find(self, kind: type, **fields: Any) -> Any:
        found = [p for p in self.pending if isinstance(p, kind) and all(getattr(p, k) == v for k, v in fields.items())]
        assert found, f"no {kind.__name__} {fields} in {self.pending}"
        return found[0]

    def asks(self, kind: type) -> bool:
        return any(isinstance(pending, kind) for pending in self.pending)

    def reply(self, kind: type, outcome: Outcome = Outcome.OK, **fields: Any) -> Any:
        """Answer the oldest request of ``kind``; returns the request."""
        request = self.find(kind)
        self.pending.remove(request)
        if kind is fx.CheckLeadership:
            event: Any = fx.LeadershipChecked(request.request, fields["leading"])
        elif kind in (fx.AwaitLedger, fx.AwaitList):
            event = fx.Changed(request.request)
        else:
            event = ANSWERS[kind](request.request, outcome, **fields)
        self.take(self.machine.handle(event, 0))
        return request

    def fire(self, key: str) -> None:
        del self.timers[key]
        self.take(self.machine.handle(TimerFired(key), 0))


class Lead(Talk):
    """A conversation with a leader, with the common openings."""

    machine: LogLeader

    def __init__(self, **options: Any) -> None:
        super().__init__(LogLeader("flights", lambda: 0.5, LeaderOptions(**options) if options else None))
        self.take(self.machine.open("open", 0))

    def recover_all(self, last_entry_id: int = 0) -> None:
        while self.asks(fx.RecoverLedger):
            self.reply(fx.RecoverLedger, last_entry_id=last_entry_id)

    def up_to_listing(self, listed: tuple[int, ...] = (), version: int = 3, new: int = 9) -> None:
        self.reply(fx.ReadList, ledgers=listed, version=version)
        self.recover_all()
        self.reply(fx.CreateLedger, ledger_id=new)

    def serve(self, listed: tuple[int, ...] = (), version: int = 3, new: int = 9) -> Lead:
        self.up_to_listing(listed, version, new)
        self.reply(fx.WriteList, version=version + 1)
        assert self.machine.state is LeaderState.SERVING
        return self

    def append(self, *payloads: str) -> None:
        self.take(self.machine.append(payloads, payloads[0] if payloads else "", 0))

    def roll(self, token: str = "roll") -> None:
        self.take(self.machine.roll(token, 0))

    def roll_to_drain(self, new: int) -> None:
        self.roll()
        self.reply(fx.CreateLedger, ledger_id=new)
        self.reply(fx.WriteList, version=self.machine.version + 1)
        assert self.machine.rolling is Roll.DRAINING

    def close(self, token: str = "close") -> None:
        self.take(self.machine.close(token, 0))
