"""Apache's Java client as a neighbour and a rival: one JVM (tests/integration/java/Duel.java), driven over its standard input and output.

It connects to ZooKeeper and bookies directly, not through the proxy.
"""

from __future__ import annotations

import base64
import hashlib
import os
import random
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from bk_core.bookie import apache
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.client import BookKeeper
from bk_core.errors import BkError, BookieUnavailableError
from tests.soak.cluster import SoakCluster
from tests.soak.history import Op, Recorder, digests
from tests.soak.workload import PASSWORD, Author, Board, open_recorded, payload, read_recorded, recover_recorded

_JAVA = Path(__file__).parents[1] / "integration" / "java"
_START_TIMEOUT_S = 60.0
_ANSWER_TIMEOUT_S = 90.0
_CHUNK = 50
_TRIES = 3
NAME = "java"


class JavaFailedError(BkError):
    """The Java client's own error; ``code`` is JAVA and BKException's number."""

    outcome_unknown = True

    def __init__(self, number: str, text: str) -> None:
        super().__init__(text)
        self.code = f"JAVA{number}"


def compile_duel(version: str) -> Path:
    """Classes for a release, compiled once per source text. BookieUnavailableError without a compiler."""
    libraries = apache.resolve(version)
    compiler = shutil.which("javac")
    if compiler is None:
        raise BookieUnavailableError("no javac to compile the Java side of the soak")
    source = _JAVA / "Duel.java"
    stamp = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    classes = apache.cache_directory() / "duel" / f"{version}-{stamp}"
    if not (classes / "Duel.class").exists():
        classes.mkdir(parents=True, exist_ok=True)
        command = [compiler, "--release", "17", "-nowarn", "-proc:none", "-d", str(classes), "-cp", f"{libraries}/*", str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    return classes


class JavaProcess:
    """The JVM. ``ask`` sends a command; its answers go to a callback, the last one ends the future."""

    def __init__(
        self,
        cluster: SoakCluster | LocalCluster,
        version: str,
        protocol: str,
        *,
        lines: Mapping[str, str] = MappingProxyType({}),
        java: Sequence[str] = (),
    ) -> None:
        """``lines`` are those of the client's configuration, ``java`` further options of its JVM."""
        libraries = apache.resolve(version)
        uri = cluster.uri.partition("?")[0].replace("zk://", "zk+hierarchical://", 1)
        arguments = [uri, protocol, PASSWORD.decode(), *(f"{name}={value}" for name, value in lines.items())]
        command = apache.java_command(libraries, _JAVA, "Duel", arguments, options=java)
        command[2] += f"{os.pathsep}{compile_duel(version)}"
        self._log = cluster.directory / "java.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self._waiting: dict[str, tuple[Future[list[str]], Callable[[list[str]], None]]] = {}
        self._count = 0
        self._lock = threading.Lock()
        self._listener = threading.Thread(target=self._listen, name="java-answers", daemon=True)
        self._listener.start()
        try:
            self.ask("ready").result(_START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def ask(self, command: str, each: Callable[[list[str]], None] = lambda _words: None) -> Future[list[str]]:
        """The words of the last answer; JavaFailedError. ``each`` gets the answers before it."""
        done: Future[list[str]] = Future()
        with self._lock:
            if not self._listener.is_alive():
                raise JavaFailedError("", f"the Java side is gone; see {self._log}")
            self._count += 1
            tag = str(self._count)
            self._waiting[tag] = (done, each)
            assert self._process.stdin is not None
            self._process.stdin.write(f"{tag} {command}\n".encode())
            self._process.stdin.flush()
        return done

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            tag, *words = line.decode().split()
            done, each = self._waiting[tag]
            if words[0] in ("ack", "nack"):
                each(words)
                continue
            del self._waiting[tag]
            if words[0] == "failed":
                done.set_exception(JavaFailedError(words[1], " ".join(words[2:])))
            else:
                done.set_result(words)
        with self._lock:
            for done, _each in self._waiting.values():
                done.set_exception(JavaFailedError("", f"the Java side ended; see {self._log}"))

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Deck:
    """Every pairing of a writer with recoverers, in a random order, again and again; shared by all duelists."""

    def __init__(self, rng: random.Random) -> None:
        self._cards = [(writer, who) for writer in ("python", "java") for who in (("python",), ("java",), ("python", "java"))]
        rng.shuffle(self._cards)
        self._dealt = 0
        self._lock = threading.Lock()

    def deal(self) -> tuple[str, tuple[str, ...]]:
        with self._lock:
            card = self._cards[self._dealt % len(self._cards)]
            self._dealt += 1
            return card

    @property
    def all_dealt(self) -> bool:
        return self._dealt >= len(self._cards)


class Duelist(Author):
    """Our client against Apache's, one ledger a round: either writes, and while it does either or both recover. Both read it afterwards.

    ``counts``: who wrote, who recovered, how often both recovered the same ledger with success.
    """

    entries_max = 1200
    pace_s = 0.03

    def __init__(self, name: str, client: BookKeeper, recorder: Recorder, rng: random.Random, stop: threading.Event) -> None:
        super().__init__(name, client, recorder, rng, stop)
        self.counts: Counter[str] = Counter()
        self._java: JavaProcess | None = None
        self._deck = Deck(rng)
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="duel")

    def use(self, java: JavaProcess, board: Board, deck: Deck) -> None:
        self._java, self.board, self._deck = java, board, deck

    @property
    def java(self) -> JavaProcess:
        assert self._java is not None
        return self._java

    def round(self) -> None:
        writer, recoverers = self._deck.deal()
        ledger_id, writing = self._java_writes() if writer == "java" else self._we_write()
        self.counts[f"written_by_{writer}"] += 1
        if self.rng.random() < 0.2:
            writing.result(_ANSWER_TIMEOUT_S)  # a crashed ledger is recovered, not a live one
        else:
            self.stop.wait(self.rng.uniform(0.05, 0.8))
        recovering = [(name, self._pool.submit(self._recover, name, ledger_id)) for name in recoverers]
        won = [name for name, done in recovering if done.result(_ANSWER_TIMEOUT_S)]
        writing.result(_ANSWER_TIMEOUT_S)
        if won:
            self.counts["recovered_by_" + "_and_".join(won)] += 1
            self.board.leave(ledger_id, closed=True)
        self._both_read(ledger_id)

    # --- writing -----------------------------------------------------------------------------------------------------

    def _we_write(self) -> tuple[int, Future[None]]:
        handle = self.create()

        def write() -> None:
            if not self.write(handle):
                self.counts["python_writers_stopped"] += 1
            self.give_up(handle)
            self.board.leave(handle.ledger_id, closed=False)

        return handle.ledger_id, self._pool.submit(write)

    def _java_writes(self) -> tuple[int, Future[None]]:
        with self.recorder.during(NAME, "create", e=3, w=3, a=2) as value:
            value["ledger"] = ledger_id = int(self.java.ask("create 3 3 2").result(_ANSWER_TIMEOUT_S)[1])
        self.board.add(ledger_id, NAME)
        chunks = self.rng.randint(1, self.entries_max // _CHUNK)

        def write() -> None:
            for chunk in range(chunks):
                if self.stop.is_set() or not self._java_appends(ledger_id, chunk * _CHUNK):
                    self.counts["java_writers_stopped"] += 1
                    break
                self.stop.wait(0.05)
            self.board.leave(ledger_id, closed=False)

        return ledger_id, self._pool.submit(write)

    def _java_appends(self, ledger_id: int, first: int) -> bool:
        """One operation per entry, because each is acknowledged by itself. Whether all were."""
        ops: dict[int, Op] = {}
        for entry in range(first, first + _CHUNK):
            content = digests([payload(ledger_id, entry)])
            ops[entry] = self.recorder.begin(NAME, "append", ledger_id, first=entry, count=1, digests=content)

        def take(words: list[str]) -> None:
            op = ops[int(words[1])]
            if words[0] == "ack":
                self.recorder.ok(op, last=int(words[1]))
            else:
                self.recorder.fail(op, JavaFailedError(words[2], ""))

        try:
            self.java.ask(f"write {ledger_id} {_CHUNK}", take).result(_ANSWER_TIMEOUT_S)
        except JavaFailedError as error:
            for op in ops.values():
                if op.ends == 0:
                    self.recorder.fail(op, error)
        return all(op.ok for op in ops.values())

    # --- recovering and reading --------------------------------------------------------------------------------------

    def _recover(self, name: str, ledger_id: int) -> bool:
        """Recovery may fail while bookies are away, and stays possible."""
        recover = self._we_recover if name == "python" else self._java_recovers
        for _ in range(_TRIES):
            if recover(ledger_id):
                return True
            time.sleep(0.5)
        return False

    def _we_recover(self, ledger_id: int) -> bool:
        return recover_recorded(self, self.client, ledger_id, "python")

    def _java_recovers(self, ledger_id: int) -> bool:
        try:
            with self.recorder.during(NAME, "recover", ledger_id, by="java") as value:
                _word, last, length = self.java.ask(f"recover {ledger_id}").result(_ANSWER_TIMEOUT_S)
                value.update(last=int(last), length=int(length), state="CLOSED")
        except BkError:
            return False
        return True

    def _both_read(self, ledger_id: int) -> None:
        op = self.recorder.begin(NAME, "read", ledger_id, handle=NAME, first=0, last=-1)
        try:
            _word, last, _closed, *joined = self.java.ask(f"read {ledger_id}").result(_ANSWER_TIMEOUT_S)
            op.args["last"] = int(last)
            self.recorder.ok(op, digests=base64.b64decode(joined[0]) if joined else b"")
        except BkError as error:
            self.recorder.fail(op, error)
        with open_recorded(self, ledger_id) as handle:
            if handle.last_add_confirmed >= 0:
                read_recorded(self, handle, self.name, 0, handle.last_add_confirmed)

    def close(self) -> None:
        self._pool.shutdown(wait=True)
