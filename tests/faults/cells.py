"""The table of cells: a step, a fault, and what is played. Every cell ends with a run that must end well, after more input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.faults.driver import HDFS, ROCKSDB
from tests.faults.harness import DIRECTORY, LEDGERS, Cell, DriverDiedError, HarnessError
from tests.faults.metadata import ETCD, ZOOKEEPER

LOCAL = "local"
CLUSTER = "cluster"  # executors are processes of their own, on two host names
ATTEMPTS = 4  # spark.task.maxFailures


@dataclass(frozen=True)
class Spec:
    """``quick``: among the few that ``make test`` plays."""

    step: str
    fault: str
    play: Callable[[Cell], None]
    world: str = LOCAL
    quick: bool = False

    @property
    def name(self) -> str:
        return f"{self.step} / {self.fault}"


# --- what is played -------------------------------------------------------------------------------------------------------------


def _finish(cell: Cell) -> None:
    """Heal, restart from the checkpoint to the end, then once more with further input."""
    cell.release()
    cell.run_to_the_end()
    cell.heal()
    cell.withdraw()
    _more(cell)
    cell.run_to_the_end()


def _more(cell: Cell) -> None:
    if cell.inputs:
        cell.add_rows()
    else:
        cell.add_files()


def _need_fired(cell: Cell, count: int = 1) -> None:
    if cell.fired() < count:
        raise HarnessError(f"only {cell.fired()} of {count} orders fired: {[e[-700:] for e in cell.errors]}")


def files(step: str, do: str, *, times: int = 1, batch: int | None = None, task: bool = True, **more: Any) -> Callable[[Cell], None]:
    """A query from files. The fault hits batch 0 or 1, and one of the two tasks, by chance."""

    def play(cell: Cell) -> None:
        cell.add_files(2)
        where: dict[str, Any] = {"batch": cell.world.rng.choice((0, 1)) if batch is None else batch}
        if task:
            where["partition"] = cell.world.rng.choice((0, 1))
        for _ in range(times):
            cell.order(step, do, **where, **more)
        cell.run()
        _need_fired(cell, times)
        _finish(cell)

    return play


def from_log(step: str, do: str, *, passes: int = 0, **more: Any) -> Callable[[Cell], None]:
    """A query from a log, in two batches of two tasks each."""

    def play(cell: Cell) -> None:
        cell.read_from(f"{cell.log}-in", maxRowsPerTrigger="30", minPartitions="2")
        for _ in range(2):
            cell.add_rows()
        for _ in range(passes):
            cell.order(step, "pass")
        cell.order(step, do, **more)
        cell.run()
        _need_fired(cell, passes + 1)
        _finish(cell)

    return play


def lost_commits(*, every: bool = False) -> Callable[[Cell], None]:
    """A batch is committed in the log and not in the checkpoint: it is planned and written again (paimon#9666)."""

    def play(cell: Cell) -> None:
        cell.add_files(3)
        cell.run_to_the_end()
        last = cell.last("commits")
        cell.lose(*(f"commits/{i}" for i in range(0 if every else last, last + 1)))
        _finish(cell)

    return play


def changed_after_commit(cell: Cell) -> None:
    """The query is changed so that the replayed batch has more rows. What was committed first stays; nothing is doubled."""
    cell.add_files(2)
    cell.run_to_the_end()
    cell.lose(f"commits/{cell.last('commits')}")
    cell.run_to_the_end(also=500_000)
    _finish(cell)


def changed_before_commit(cell: Cell) -> None:
    """The same change after a batch that was written but never committed: the rows of the replay are the batch."""
    cell.add_files(2)
    cell.order("cas", "raise", batch=1)
    cell.run()
    _need_fired(cell)
    cell.run_to_the_end(also=500_000)
    cell.expected.extend(500_000 + i for i in cell.expected[len(cell.expected) // 2 :])
    _finish(cell)


def replanned(cell: Cell) -> None:
    """The last batch is gone from ``commits/`` and ``offsets/``, and the log it came from has grown."""
    cell.read_from(f"{cell.log}-in", maxRowsPerTrigger="60")
    cell.add_rows()
    cell.run_to_the_end()
    cell.add_rows()
    cell.run_to_the_end()
    last = cell.last("commits")
    cell.lose(f"commits/{last}", f"offsets/{last}")
    cell.add_rows(expected=False)  # the batch is committed: these rows come too late for it
    _finish(cell)


def two_queries(cell: Cell) -> None:
    """Each has its own mark: a replay of one is no replay of the other (hudi#8558)."""
    other = Cell(cell.world, "", cell.log)
    other._files = 500
    cell.add_files(2)
    other.add_files(3)
    cell.run_to_the_end(beside=other.command())
    for one in (cell, other):
        one.lose(f"commits/{one.last('commits')}")
    cell.run_to_the_end(beside=other.command())
    cell.lose(f"commits/{cell.last('commits')}")
    other.add_files()
    other.run_to_the_end()
    cell.runs += other.runs
    cell.expected.extend(other.expected)
    _finish(cell)


def abort_beside(do: str) -> Callable[[Cell], None]:
    """One task fails for good while its sibling writes; the sibling goes on after the abort, or is killed by Spark in the middle."""

    def play(cell: Cell) -> None:
        cell.add_files(2)
        cell.order("add", "hold", batch=1, partition=0)
        for _ in range(ATTEMPTS):
            cell.order("first_add", "raise", batch=1, partition=1)
        if cell.run():
            raise HarnessError("the batch should have failed")
        _need_fired(cell, ATTEMPTS + 1)
        if do == "released":
            cell.release()
        else:
            cell.wait_until_killed(0)
        cell.run_to_the_end()
        _finish(cell)

    return play


def abort_dies(do: str) -> Callable[[Cell], None]:
    def play(cell: Cell) -> None:
        cell.add_files(2)
        cell.order("commit", "raise", batch=1)
        cell.order("abort", do, batch=1)
        cell.run()
        _need_fired(cell, 2)
        _finish(cell)

    return play


def held_committer(step: str) -> Callable[[Cell], None]:
    """The driver hangs in its commit, is taken for dead, a second one finishes the work; then the first goes on."""

    def play(cell: Cell) -> None:
        cell.add_files(2)
        cell.order(step, "hold", batch=1)
        first = cell.world.driver
        first.begin(cell.command())
        answers: list[dict[str, Any]] = []

        def take_over() -> None:
            if not answers and cell.fired():
                cell.world.beside.begin(cell.command())
                answers.append(cell.world.beside.end(lambda: None))
                cell.release()

        try:
            first.end(take_over)
        except DriverDiedError:
            raise HarnessError("the first driver died") from None
        cell.runs += 2
        _need_fired(cell)
        if not answers[0]["ok"]:
            cell.errors.append(answers[0]["error"])
        _finish(cell)

    return play


def speculation(cell: Cell) -> None:
    """A task hangs; its twin on the other host finishes and is committed; then the first goes on."""
    cell.add_files(2)
    cell.order("add", "hold", batch=1, partition=0, attempt=0)
    if not cell.run():
        raise HarnessError(f"no twin came: {cell.errors[-1][-700:]}")
    _need_fired(cell)
    _finish(cell)


def first_offset_twice(cell: Cell) -> None:
    """``latest``, asked for twice in a run while rows come in, and again after the driver died in batch 0 (spark-connectors.md 5.6)."""
    cell.read_from(f"{cell.log}-in", startingOffsets="latest", readerName="me")
    cell.add_rows(expected=False)
    cell.answers["rows"] = cell.rows_by_client
    cell.order("latest", "ask", what="rows")
    cell.order("initial", "pass")
    cell.order("initial", "ask", what="rows")
    cell.order("cas", "kill_driver", batch=0)
    cell.run(once=True)
    _need_fired(cell, 2)
    cell.add_rows()
    _finish(cell)


def batch_write(step: str, do: str) -> Callable[[Cell], None]:
    """``df.write`` with ``txnAppId`` and ``txnVersion``: tried until it succeeds, and once more."""

    def play(cell: Cell) -> None:
        cell.store = ""  # a batch write has no checkpoint
        cell.order(step, do)
        sink = {"entrySize": "256", "txnAppId": "loader", "txnVersion": "7"}
        command = {**cell.command(), "do": "write", "first": 0, "end": 40, "tasks": 2, "sink": sink}
        cell.expected.extend(range(40))
        for attempt in range(4):
            cell.runs += 1
            driver = cell.world.driver
            try:
                driver.begin(command)
                answer = driver.end(cell.answer)
            except DriverDiedError:
                continue
            if answer["ok"] and attempt > 0:
                break
            if not answer["ok"]:
                cell.errors.append(answer["error"])
        else:
            raise HarnessError(f"never succeeded: {cell.errors[-1:]}")
        _need_fired(cell)

    return play


def _stateful(cell: Cell) -> dict[str, Any]:
    """Old files are deleted at once, so that there is something to delete. The state store is one of the two, by chance."""
    return {"stateful": True, "retained": "1", "state": cell.world.rng.choice((HDFS, ROCKSDB))}


def checkpoint_fault(step: str, do: str, **more: Any) -> Callable[[Cell], None]:
    """A stateful query that goes on after a restart; the fault hits one of the first operations of a kind, by chance."""

    def play(cell: Cell) -> None:
        cell.fixed = _stateful(cell)
        cell.add_files(3)
        cell.run_to_the_end()
        cell.add_files(2)
        passes = cell.world.rng.randrange(OPERATIONS[step.removesuffix("_done")][1])
        for _ in range(passes):
            cell.order(step, "pass")
        cell.order(step, do, **more)
        cell.run()
        _need_fired(cell, passes + 1)
        _finish(cell)

    return play


def executor_with_state(step: str) -> Callable[[Cell], None]:
    """The executor dies that has the state of a partition loaded; another one loads it from the checkpoint."""

    def play(cell: Cell) -> None:
        cell.fixed = _stateful(cell)
        cell.add_files(2)
        cell.run_to_the_end()
        cell.add_files(2)
        cell.order(step, "kill_executor", **({} if step == "create_done" else {"batch": 3}))
        cell.run()
        _need_fired(cell)
        _finish(cell)

    return play


# --- the table --------------------------------------------------------------------------------------------------------------------

WORKER_STEPS = {
    "intent": "before the intent",
    "intent_done": "intent stored",
    "create": "before the ledger is created",
    "create_done": "ledger created",
    "first_add": "before the first add",
    "add": "between adds",
    "ack": "before the last acknowledgements",
    "message": "message returned",
}
FIRST_BATCH = ("intent", "intent_done", "create", "create_done")  # later batches go on in the same ledger
COMMIT_STEPS = {
    "commit": "commit called",
    "cas": "before the compare-and-set",
    "cas_done": "compare-and-set applied, answer lost",
    "commit_done": "committed, before commits/N",
}
SOURCE_STEPS = {
    "sink_plan": "offsets/N written, batch not begun",
    "source_plan": "before the partitions are planned",
    "source_planned": "partitions planned",
    "reading": "in the middle of a read",
}
FAULTS = {
    "kill": "Python process killed",
    "raise": "error raised",
    "kill_driver": "driver killed",
    "kill_executor": "executor killed",
    "expire": "metadata session lost",
    "cut": "metadata connection lost",
    "lose_answer": "metadata store's answer lost",
}
OPERATIONS = {  # of the gateway: their names, and how many a run has at least
    "CREATE_1": ("CREATE, first step", 9),
    "CREATE_2": ("CREATE, second step", 9),
    "OPEN_1": ("OPEN, first step", 20),
    "OPEN_2": ("OPEN, second step", 20),
    "RENAME": ("RENAME", 9),
    "DELETE": ("DELETE", 3),
    "MKDIRS": ("MKDIRS", 1),
    "LISTSTATUS": ("LISTSTATUS", 9),
    "GETFILESTATUS": ("GETFILESTATUS", 60),
}
LEASES = "all leases revoked"
KILLED = {"bookie of the checkpoint": "bookie killed", "metadata": "metadata store killed"}
UNHEARD = {"pause of the checkpoint": "bookie stopped", "silence": "metadata store silent"}
STATE_STEPS = {"begin": "task begun", "create_done": WORKER_STEPS["create_done"], "message": WORKER_STEPS["message"]}
QUICK = {("create_done", "kill"), ("message", "kill"), ("cas_done", "lose_answer")}


def _worker_cells() -> list[Spec]:
    found = []
    for step, text in WORKER_STEPS.items():
        batch = 0 if step in FIRST_BATCH else None
        for do in ("kill", "raise", "kill_driver", "expire", "cut"):
            found.append(Spec(text, FAULTS[do], files(step, do, batch=batch), quick=(step, do) in QUICK))
        if step not in FIRST_BATCH:  # a retry may go on in the ledger of another task
            found.append(Spec(text, "error raised in every attempt: abort", files(step, "raise", batch=batch, times=ATTEMPTS)))
        if step in ("create_done", "first_add", "add", "ack", "message"):
            found.append(Spec(text, "bookie killed", files(step, "ask", batch=batch, what="bookie")))
            found.append(Spec(text, "bookie paused", files(step, "ask", batch=batch, what="pause")))
        if step in ("intent_done", "create_done"):
            found.append(Spec(text, FAULTS["lose_answer"], files(step, "lose_answer", batch=batch)))
        found.append(Spec(text, FAULTS["kill_executor"], files(step, "kill_executor", batch=batch), CLUSTER))
    return found


def _commit_cells() -> list[Spec]:
    found = []
    for step, text in COMMIT_STEPS.items():
        for do in ("kill", "raise", "kill_driver", "expire", "cut"):
            if (step, do) in (("cas_done", "expire"), ("cas_done", "cut")):
                continue  # the call is over: the same as at the next step
            found.append(Spec(text, FAULTS[do], files(step, do, task=False), quick=(step, do) in QUICK))
    found.append(Spec(COMMIT_STEPS["cas_done"], FAULTS["lose_answer"], files("cas_done", "lose_answer", task=False), quick=True))
    found.append(Spec(COMMIT_STEPS["commit"], "a second driver finishes meanwhile", held_committer("commit")))
    found.append(Spec(COMMIT_STEPS["cas"], "a second driver finishes meanwhile", held_committer("cas")))
    return found


def _source_cells() -> list[Spec]:
    found = []
    for step, text in SOURCE_STEPS.items():
        for do in ("kill", "raise", "kill_driver", "expire", "cut"):
            if step == "sink_plan" and do in ("expire", "cut"):
                continue  # that process has no session yet
            found.append(Spec(text, FAULTS[do], from_log(step, do, passes=1)))
    found.append(Spec(SOURCE_STEPS["reading"], "bookie killed", from_log("reading", "ask", what="bookie")))
    found.append(Spec(SOURCE_STEPS["reading"], "bookie paused", from_log("reading", "ask", what="pause")))
    found.append(Spec(SOURCE_STEPS["reading"], FAULTS["kill_executor"], from_log("reading", "kill_executor", passes=1), CLUSTER))
    found.append(Spec("first offset", "asked for twice while rows come in; driver killed in batch 0", first_offset_twice))
    return found


def _other_cells() -> list[Spec]:
    return [
        Spec("commits/N deleted", "batch replayed", lost_commits(), quick=True),
        Spec("commits/* deleted", "batch replayed", lost_commits(every=True)),
        Spec("commits/N deleted", "batch replayed with more rows: the query was changed", changed_after_commit),
        Spec("before the compare-and-set", "error; batch replayed with more rows", changed_before_commit),
        Spec("commits/N and offsets/N deleted", "batch planned again with more rows", replanned),
        Spec("two queries on one log", "both replay their last batches", two_queries, quick=True),
        Spec("abort during siblings' writes", "the sibling goes on (zombie)", abort_beside("released")),
        Spec("abort during siblings' writes", "the sibling is killed by Spark", abort_beside("killed")),
        Spec("abort called", FAULTS["kill"], abort_dies("kill")),
        Spec("abort called", FAULTS["raise"], abort_dies("raise")),
        Spec("between adds", "speculation: the twin is committed, then the first goes on", speculation, CLUSTER),
        Spec("batch write, message returned", FAULTS["kill_driver"], batch_write("message", "kill_driver")),
        Spec("batch write, before the compare-and-set", FAULTS["kill_driver"], batch_write("cas", "kill_driver")),
        Spec("batch write, compare-and-set applied", FAULTS["kill"], batch_write("cas_done", "kill")),
        Spec("batch write, compare-and-set applied", FAULTS["kill_driver"], batch_write("cas_done", "kill_driver")),
    ]


def gateway_cells() -> list[Spec]:
    """At what Spark does with a checkpoint in ledgers."""
    found = []
    for operation, (name, _) in OPERATIONS.items():
        for suffix, text in (("", f"checkpoint: before {name}"), ("_done", f"checkpoint: {name} done, not answered")):
            step = f"{operation}{suffix}"
            quick = step == "RENAME_done"
            found.append(Spec(text, FAULTS["kill_driver"], checkpoint_fault(step, "kill_driver"), quick=quick))
            found.append(Spec(text, "executors killed", checkpoint_fault(step, "ask", what="executors"), CLUSTER))
            found += [Spec(text, fault, checkpoint_fault(step, "ask", what=what)) for what, fault in KILLED.items()]
            if operation.endswith("_1"):
                continue  # nothing but a question
            found.append(Spec(text, "connection ends without an answer", checkpoint_fault(step, "raise")))
            found += [Spec(text, fault, checkpoint_fault(step, "ask", what=what)) for what, fault in UNHEARD.items()]
            if not suffix:
                found.append(Spec(text, FAULTS["expire"], checkpoint_fault(step, "expire")))
    for step in ("begin", "create_done", "message"):
        found.append(Spec(f"state on executors, {STATE_STEPS[step]}", FAULTS["kill_executor"], executor_with_state(step), CLUSTER))
    return found


def _lease_cells() -> list[Spec]:
    """Only etcd can end all sessions at once: no bookie is registered until each has taken a new lease."""
    steps = [step for step in WORKER_STEPS if step != "intent_done"]
    found = [Spec(WORKER_STEPS[step], LEASES, files(step, "ask", batch=0, what="leases")) for step in steps]
    found.append(Spec(COMMIT_STEPS["cas"], LEASES, files("cas", "ask", task=False, what="leases")))
    return [*found, Spec(SOURCE_STEPS["reading"], LEASES, from_log("reading", "ask", what="leases"))]


def _gateway_lease_cells() -> list[Spec]:
    steps = ("CREATE_2", "OPEN_2", "RENAME", "DELETE")
    return [Spec(f"checkpoint: before {OPERATIONS[step][0]}", LEASES, checkpoint_fault(step, "ask", what="leases")) for step in steps]


def cells(checkpoint: str = DIRECTORY, metadata: str = ZOOKEEPER.name) -> list[Spec]:
    """All, and with the checkpoint in ledgers those of the gateway as well."""
    found = [*_worker_cells(), *_commit_cells(), *_source_cells(), *_other_cells()]
    found += _lease_cells() if metadata == ETCD.name else []
    if checkpoint == LEDGERS:
        found += gateway_cells() + (_gateway_lease_cells() if metadata == ETCD.name else [])
    return found
