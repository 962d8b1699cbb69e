"""Re-replication on Apache's own bookies: what is repaired is then read from each bookie alone, over a socket of the test's own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import bk_core
from bk_core import cli
from bk_core.bookie import apache
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.errors import BookieUnavailableError
from bk_core.metadata import open_store
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.protocol.ledger.replication import eligible_fragments
from bk_core.protocol.wire.messages import AddRequest, Status
from tests import quick_java
from tests.integration.dead_bookies import die, revive
from tests.integration.patience import PATIENT, until
from tests.integration.replicas import Direct
from tests.network.stopping import stop_process

APACHE_VERSION = os.environ.get("BK_TEST_APACHE_VERSION", apache.DEFAULT_VERSION)
BOOKIES = 4
ENTRIES = 90
EMPTY: dict[str, list[int]] = {"namedBy": [], "writtenNow": []}

pytestmark = pytest.mark.apache


@pytest.fixture(scope="module")
def bookies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Four bookies of this file's own, because one of them dies for good."""
    try:
        apache.resolve(APACHE_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    with quick_java.apache_cluster(BOOKIES, tmp_path_factory.mktemp("replication"), APACHE_VERSION) as cluster:
        yield cluster


def payload(entry_id: int) -> bytes:
    return b"entry %d " % entry_id * (1 + entry_id % 7)


def write(bk: bk_core.BookKeeper, quorums: tuple[int, int, int], count: int = ENTRIES) -> int:
    e, w, a = quorums
    with bk.create_ledger(ensemble_size=e, write_quorum_size=w, ack_quorum_size=a, password=b"pw") as ledger:
        ledger.append_many([payload(n) for n in range(count)])
    return ledger.ledger_id


def bad_replicas(ledger_id: int, metadata: LedgerMetadata) -> list[str]:
    """Every entry at every position of its write set must be there, digest and payload right."""
    distribution = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    bad = []
    for span in eligible_fragments(metadata):
        for position, bookie in enumerate(span.ensemble):
            with closing(Direct(bookie)) as direct:
                for entry_id in range(span.first_entry_id, span.last_entry_id + 1):
                    if not distribution.holds(position, entry_id):
                        continue
                    status, body = direct.read(ledger_id, entry_id)
                    if body is None:
                        bad.append(f"entry {entry_id} at {bookie}: {status.name}")
                    elif layout.decode_body(body, ledger_id, entry_id, metadata.digest_type).payload != payload(entry_id):
                        bad.append(f"entry {entry_id} at {bookie}: other payload")
    return bad


def run(cluster: LocalCluster, *arguments: str) -> int:
    return cli.run([*arguments, "--uri", cluster.uri])


def shell(cluster: LocalCluster, *arguments: str) -> str:
    """Apache's own command line on this cluster."""
    conf = cluster.directory / "bookie-0" / "conf"
    main = "org.apache.bookkeeper.bookie.BookieShell"
    given = ["-conf", str(conf / "bookie.conf"), *arguments]
    command = apache.java_command(apache.resolve(APACHE_VERSION), conf, main, given, options=quick_java.java_options(APACHE_VERSION))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_lock_of_another_replicator_is_honoured(bookies: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """RR-11: the node as Apache's worker makes it; while it is there nothing is copied, and afterwards ours is gone too."""
    with bk_core.connect(bookies.uri, limits=PATIENT) as bk:
        ledger_id = write(bk, (3, 3, 2))
        victim = bk.ledger_metadata(ledger_id).fragments[0].ensemble[0]
        other = open_store(bookies.uri)
        try:
            client = other._link.client  # type: ignore[attr-defined]
            path = f"/ledgers/underreplication/locks/urL{ledger_id:010d}"
            client.create(path, b'bookieId: "worker-7"\n', ephemeral=True, makepath=True)
            assert run(bookies, "ledger", "repair", str(ledger_id), "--lost", victim, "--lock-wait", "0.1") == 1
            assert "worker-7 is replicating it" in capsys.readouterr().out
            assert bk.ledger_metadata(ledger_id).fragments[0].ensemble[0] == victim
            other.underreplication().mark(ledger_id, [victim], 1234)
            client.delete(path)
            assert run(bookies, "ledger", "repair", str(ledger_id), "--lost", victim, "--json") == 0
            (line,) = capsys.readouterr().out.splitlines()
            assert json.loads(line)["moved"][0]["entries"] == ENTRIES
            assert client.exists(path) is None
            assert other.underreplication().mark_of(ledger_id) is None  # repaired: nothing left for Apache's workers
            assert client.exists("/ledgers/underreplication/ledgers/0000") is None
        finally:
            other.close()
        metadata = bk.ledger_metadata(ledger_id)
        assert victim not in metadata.fragments[0].ensemble
        assert bad_replicas(ledger_id, metadata) == []


def test_apaches_shell_reads_our_marks_and_we_its_switch(bookies: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """metadata.md 1.4: what we write is what Apache's tools list; what they switch off is said, and repairing by hand goes on."""
    with bk_core.connect(bookies.uri, limits=PATIENT) as bk:
        ledger_id = write(bk, (3, 3, 2), 3)
        marks = bk.store.underreplication()
        marks.mark(ledger_id, ["lost-1:3181", "lost-2:3181"], 1234)
        listed = shell(bookies, "listunderreplicated", "-printmissingreplica")
        # 4.18 logs the values as fields that its default layout leaves out; a line per replica is there in all releases
        assert listed.lower().replace(" ", "").count("missingreplica") == 2
        shell(bookies, "autorecovery", "-disable")
        assert marks.is_disabled()
        assert run(bookies, "ledger", "repair", str(ledger_id)) == 0  # nothing is missing, so the mark goes
        assert "auto-recovery is disabled" in capsys.readouterr().err
        assert marks.mark_of(ledger_id) is None
        bk.store._link.client.delete("/ledgers/underreplication/disable")  # type: ignore[attr-defined]


def test_a_corrupt_copy_is_written_again(bookies: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """RR-4, RR-5: bookies store what they are sent, so a bad copy can be put on one over a socket; the good one must win."""
    with bk_core.connect(bookies.uri, limits=PATIENT) as bk:
        ledger_id = write(bk, (3, 2, 2), 9)
        metadata = bk.ledger_metadata(ledger_id)
        victim = metadata.fragments[0].ensemble[2]
        length = sum(len(payload(n)) for n in range(5))
        body = layout.encode_body(ledger_id, 4, 3, length, payload(4), metadata.digest_type)[:-1] + b"?"
        with closing(Direct(victim)) as direct:
            assert direct.add(AddRequest(0, ledger_id, 4, digests.master_key(b"pw"), body, recovery=True, high_priority=True)) is Status.OK
        assert run(bookies, "ledger", "check", str(ledger_id)) == 0  # the first and last entry are good
        assert run(bookies, "ledger", "repair", str(ledger_id), "--full") == 0
        assert "filled in" in capsys.readouterr().out
        assert bad_replicas(ledger_id, metadata) == []
        assert run(bookies, "ledger", "check", str(ledger_id), "--full") == 0


@pytest.mark.slow
@pytest.mark.deep
def test_check_finds_a_replica_that_was_never_written(bookies: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """RR-4, RR-5: a bookie frozen while 3/3/2 is written and closed, then killed: what had only reached its socket is lost."""
    with bk_core.connect(bookies.uri, limits=PATIENT) as bk:
        ledger = bk.create_ledger(password=b"pw")
        ledger.append(payload(0))
        until(lambda: not bk.metrics()["bookkeeper_client_pending_add"], "the third bookie has it, too")
        frozen = bookies.bookie_ids.index(ledger.metadata.fragments[0].ensemble[1])
        pid = bookies.pid(frozen)
        assert pid is not None
        stop_process(pid)
        ledger.append_many([payload(n) for n in range(1, ENTRIES)])
        metadata = ledger.close()
        assert len(metadata.fragments) == 1
    bookies.kill(frozen)
    revive(bookies, frozen)
    number = str(ledger.ledger_id)
    assert run(bookies, "ledger", "check", number) == 1  # the last entry is not there
    text = capsys.readouterr().out
    assert f"{ENTRIES - 1}" in text and "damaged" in text
    assert run(bookies, "ledger", "check", number, "--full", "--json") == 1
    (line,) = capsys.readouterr().out.splitlines()
    replicas = json.loads(line)["fragments"][0]["replicas"]
    assert [replica["missing"] for replica in replicas] == [[], [[1, ENTRIES - 1]], []]
    assert run(bookies, "ledger", "repair", number) == 0
    assert "filled in" in capsys.readouterr().out
    assert bad_replicas(ledger.ledger_id, metadata) == []
    with bk_core.connect(bookies.uri, limits=PATIENT) as bk:
        assert bk.ledger_metadata(ledger.ledger_id) == metadata  # a copy on the same bookie changes no metadata
    assert run(bookies, "ledger", "check", number, "--full") == 0


def test_decommission_of_a_live_bookie_beside_a_live_writer(bookies: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """RR-2, RR-7, RR-9: older fragments move while the ledger stays open, and its writer's next change still works."""
    with bk_core.connect(bookies.uri, limits=PATIENT) as bk, bk_core.connect(bookies.uri, quarantine_s=0.5) as unprejudiced:
        closed = [write(bk, (3, 2, 2)), write(bk, (3, 3, 2))]
        ledger = bk.create_ledger(password=b"pw")
        ledger.append_many([payload(n) for n in range(30)])
        first = ledger.metadata.fragments[0].ensemble
        victim = bookies.bookie_ids.index(first[2])
        bookies.stop_bookie(victim)
        ledger.append_many([payload(n) for n in range(30, 60)])
        name, count = bookies.bookie_ids[victim], 60

        def moved_on() -> bool:
            nonlocal count
            ledger.append(payload(count))  # a failure that is noticed when nothing is pending waits for the next add (EC-16)
            count += 1
            return name not in ledger.metadata.last_fragment.ensemble

        until(moved_on, "the writer's ensemble change")
        bookies.restart(victim)
        assert len(ledger.metadata.fragments) == 2
        while True:  # the other client would not place anything on a bookie that has just failed it
            busy = unprejudiced.create_ledger(password=b"pw")
            busy.append(payload(0))
            if name in busy.metadata.last_fragment.ensemble:
                break
            busy.close()  # placed elsewhere, or moved on because the bookie was not quite back
        assert run(bookies, "bookie", "decommission", name) == 1  # one writer is on it right now, and nobody asked to stop it
        shown = capsys.readouterr()
        assert "still named by 1 ledger; 1 in use" in shown.out and f"{name} is writable" in shown.err
        assert f"{busy.ledger_id}  its last fragment is being written to the bookie" in shown.out
        busy.append(payload(1))
        busy.close()
        assert run(bookies, "bookie", "decommission", name) == 1  # RR-14: empty now, but it takes new ledgers
        text = capsys.readouterr().out
        assert f"no fragment of any ledger names {name} any more" in text and "stop it now" in text
        stored = bk.ledger_metadata(ledger.ledger_id)
        assert stored.state is LedgerState.OPEN and [f.first_entry_id for f in stored.fragments] == [
            f.first_entry_id for f in ledger.metadata.fragments
        ]
        assert bad_replicas(ledger.ledger_id, stored) == []
        for ledger_id in closed:
            assert bad_replicas(ledger_id, bk.ledger_metadata(ledger_id)) == []
        ledger.append(payload(count))  # the same writer, never told
        final = ledger.close()
        assert (final.last_entry_id, final.state) == (count, LedgerState.CLOSED)
        assert final.fragments[0] == stored.fragments[0]  # what was moved stays moved (META-14)
        with bk.open_ledger(ledger.ledger_id, password=b"pw") as reader:
            assert reader.read(0, count) == [payload(n) for n in range(count + 1)]


@pytest.mark.slow
def test_a_bookie_dies_for_good(bookies: LocalCluster, java_client: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """RR-3, RR-5..RR-7: closed ledgers, striped and not, one left open by a dead writer, and one that is empty (R16, R17)."""
    with bk_core.connect(bookies.uri, limits=PATIENT) as bk:
        victim = 0
        name = bookies.bookie_ids[victim]
        ledgers: list[int] = []
        while len(ledgers) < 4:  # placement is random: until the victim holds something of each kind
            ledger_id = write(bk, [(3, 2, 2), (3, 3, 2), (3, 3, 3), (3, 2, 2)][len(ledgers)])
            if name in bk.ledger_metadata(ledger_id).fragments[0].ensemble:
                ledgers.append(ledger_id)
        abandoned = None
        while abandoned is None:
            ledger = bk.create_ledger(ensemble_size=3, write_quorum_size=2, ack_quorum_size=2, password=b"pw")
            ledger.append_many([payload(n) for n in range(20)])
            ledger.abandon()
            abandoned = ledger.ledger_id if name in ledger.metadata.fragments[0].ensemble else None
        die(bookies, victim)
        assert run(bookies, "ledger", "check", "--all") == 1
        assert "bookie is gone" in capsys.readouterr().out
        assert run(bookies, "ledger", "repair", str(abandoned)) == 1  # RR-3: nobody asked for the writer to be stopped
        assert "--recover-open" in capsys.readouterr().out
        assert bk.ledger_metadata(abandoned).state is LedgerState.OPEN
        assert run(bookies, "ledger", "repair", "--all", "--recover-open", "--grace", "0") == 0
        assert "moved" in capsys.readouterr().out
        for ledger_id in (*ledgers, abandoned):
            metadata = bk.ledger_metadata(ledger_id)
            assert metadata.state is LedgerState.CLOSED
            assert not any(name in fragment.ensemble for fragment in metadata.fragments)
            assert bad_replicas(ledger_id, metadata) == []
        seen = java_client.read(bookies, abandoned, password="pw")  # Apache's client reads what we recovered, moved and wrote down
        assert list(seen.payloads) == [payload(n) for n in range(20)]
        assert run(bookies, "ledger", "check", "--all", "--full") == 0
        assert run(bookies, "bookie", "decommission", name, "--delete-cookie", "--yes", "--json") == 0
        done = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (
            done
            == {
                "bookie": name,
                "complete": True,
                "registered": False,
                "writable": False,
                "cookieDeleted": True,
                "runsAt": None,
                "unseen": None,
            }
            | EMPTY
        )
        assert run(bookies, "bookie", "decommission", name) == 1  # unknown now
