"""The owner of a log and the owner of a ledger (OWN-1 .. OWN-7), over a store in memory; with ZooKeeper in tests/integration/identity/."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bk_core.client.identity import log_id_of_reader
from bk_core.client.log.driver import LeaderWorks
from bk_core.client.log.history import read_log, update_ledger_list
from bk_core.client.log.intents import Intent, create_intended, forget_intent, intents_of, record_intent
from bk_core.client.log.janitor import check_listable, delete_log, gc_log, trim_log
from bk_core.client.log.list_store import now_ms, read_ledger_list
from bk_core.client.log.lists import create_log, set_properties
from bk_core.client.log.orphans import adopt_log, forget_log
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogWriter
from bk_core.errors import (
    BkError,
    ClusterChangedError,
    ForeignLedgerError,
    InvalidArgumentError,
    LogError,
    LogListFullError,
    MetadataFormatError,
    MetadataOutcomeUnknownError,
    NoClusterError,
    NodeExistsError,
    NoSuchLedgerError,
    NoSuchLogError,
    WrongClusterError,
)
from bk_core.protocol.events import Outcome
from bk_core.protocol.log.codec import decode, encode
from bk_core.protocol.log.effects import CheckLedger, CreateLedger, DeleteLedger, LedgerCreated, ReadList
from bk_core.protocol.log.identity import (
    LOOKED_AT_MAX,
    Claim,
    Evidence,
    Standing,
    Traces,
    claim,
    is_orphan,
    ledgers_to_look_at,
    standing,
)
from bk_core.protocol.log.ledger_list import ADOPTED_MAX, LedgerList, LogProperties, SegmentRange
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import unchecked_properties
from tests.unit.log.raw_logs import RAW, Store, untied, written


def foreign(client: Any, name: str, cluster: str = "elsewhere") -> None:
    stored = client.store.read(f"logs/{name}")
    client.store.write(f"logs/{name}", encode(replace(decode(stored.data), cluster=cluster)), stored.version)


# --- the rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("custom", "expected"),
    [
        (None, Standing.MISSING),
        ({}, Standing.OTHER),
        ({"log": b"b"}, Standing.OTHER),
        ({"log": b"a"}, Standing.NAMED),
        ({"log": b"a", "logId": b"1"}, Standing.NAMED),
        ({"log": b"a", "logId": b"2"}, Standing.OTHER),
        ({"log": b"b", "logId": b"1"}, Standing.OTHER),
        ({"logId": b"1"}, Standing.OTHER),
    ],
)
def test_how_a_ledger_stands_to_a_log(custom: dict[str, bytes] | None, expected: Standing) -> None:
    """OWN-6"""
    assert standing(custom, "a", "1") is expected
    unnamed = custom is not None and not custom
    assert standing(custom, "a", "1", adopted=True) is (Standing.ADOPTED if unnamed else expected)  # OWN-11
    if custom is not None and custom.get("log") == b"a":
        assert standing(custom, "a", "") is Standing.NAMED


def test_what_a_list_says_counts_alone() -> None:
    """OWN-3"""
    listed = LedgerList("1", RAW, cluster="here")
    assert claim(listed, "here", Evidence(other=9)) is Claim.OURS
    assert claim(listed, "there", Evidence(named=9)) is Claim.FOREIGN


def test_what_ledgers_say_of_a_list_that_says_nothing() -> None:
    """OWN-4"""
    fresh = LedgerList("1", RAW)
    used = fresh.append_segments([SegmentRange(7, 0, 0, 1, 1)], 1)
    assert claim(fresh, "here") is Claim.NOBODYS
    assert claim(used, "here", Evidence(named=1, missing=3)) is Claim.OURS
    assert claim(used, "here", Evidence(named=1, other=1)) is Claim.FOREIGN
    assert claim(used, "here", Evidence(missing=1)) is Claim.FOREIGN
    assert claim(used.trim(1)[0].absolve([7]), "here") is Claim.UNKNOWN
    assert claim(replace(fresh, condemned=(3,)), "here") is Claim.UNKNOWN
    many = fresh.append_segments([SegmentRange(i, 0, 0, 1, 1) for i in range(1000)], 1)
    looked_at = ledgers_to_look_at(many)
    assert len(looked_at) == LOOKED_AT_MAX and {0, 999} <= set(looked_at)


def test_a_list_of_format_3_names_its_cluster() -> None:
    value = json.loads(encode(LedgerList("1", RAW, cluster="here")))
    for wrong in ("", None, 3):
        with pytest.raises(MetadataFormatError, match="does not name its cluster"):
            decode(json.dumps({**value, "cluster": wrong}).encode())


def test_what_a_person_adopts_is_in_the_list() -> None:
    """OWN-11, OWN-12"""
    listed = replace(LedgerList("1", RAW, cluster="before"), condemned=(6,))
    adopted = listed.adopt("here", {5, 9, 6, 4})
    assert (adopted.cluster, adopted.adopted, adopted.adopted_from) == ("here", {4, 5, 6, 9}, ("before",))
    assert adopted.adopt("here", {5}) is adopted and decode(encode(adopted)) == adopted
    assert json.loads(encode(adopted))["adopted"] == {"from": ["before"], "unnamed": [[4, 6], [9, 9]]}
    assert "adopted" not in json.loads(encode(listed)) and replace(listed, cluster="").adopt("here", ()).adopted_from == ()
    assert adopted.absolve([6]).adopted == {4, 5, 9} and adopted.absolve([4]) is adopted
    assert adopted.adopt("there", ()).adopt("here", ()).adopted_from == ("before", "here", "there")
    with pytest.raises(LogListFullError):
        listed.adopt("here", range(ADOPTED_MAX + 1))
    value = json.loads(encode(adopted))
    for wrong in ([[5, 4]], [[-1, 3]], [[0, 1 << 62]], [[1]], [["x", 3]], 7):
        with pytest.raises(MetadataFormatError):
            decode(json.dumps({**value, "adopted": {"unnamed": wrong}}).encode())


# --- lists -------------------------------------------------------------------------------------------------------------


def actions(client: Any) -> dict[str, Callable[[], Any]]:
    return {
        "read": lambda: read_log(client, "a"),
        "follow": lambda: LogReader(client, "a"),
        "open": lambda: LogWriter.open(client, "a"),
        "set": lambda: set_properties(client, "a", retention_ms=1),
        "trim": lambda: trim_log(client, "a", max_bytes=1),
        "gc": lambda: gc_log(client, "a", min_age_s=0),
        "delete": lambda: delete_log(client, "a"),
        "create": lambda: create_log(client, "a", exist_ok=True),
    }


@pytest.mark.parametrize("action", ["read", "follow", "open", "set", "trim", "gc", "delete", "create"])
def test_the_list_of_another_cluster_is_left_alone(client: Any, action: str) -> None:
    """OWN-3"""
    ledgers = written(client)
    live = client.create_ledger(custom={"log": b"a"}).ledger_id
    foreign(client, "a")
    before, recovered = client.store.read("logs/a"), list(client.recovered)
    with pytest.raises(BkError, match=r"belongs to cluster elsewhere; this client is connected to cluster") as caught:
        actions(client)[action]()
    assert isinstance(caught.value, WrongClusterError) or "BK-WRONG-CLUSTER" in str(caught.value)
    assert client.store.read("logs/a") == before and client.recovered == recovered
    assert {*ledgers, live} <= set(client.ledgers) and client.store.children("deleted/a") == []


@pytest.mark.parametrize("action", ["read", "open", "trim", "delete"])
def test_a_list_that_names_ledgers_of_others_is_left_alone(client: Any, action: str) -> None:
    """OWN-4: what remains of an earlier cluster: its ledger ids are those of others here, who are writing."""
    written(client)
    untied(client, "a")
    for ledger in client.ledgers.values():
        ledger.custom = {}
    client.recovered.clear()
    ledgers = set(client.ledgers)
    with pytest.raises(BkError, match=r"0 carry its name here, \d do not, 0 do not exist.*bk log adopt a"):
        actions(client)[action]()
    assert set(client.ledgers) == ledgers and client.recovered == []


def test_a_list_of_an_earlier_program_is_ours_and_says_so_after_its_next_change(client: Any) -> None:
    """OWN-4"""
    ledgers = written(client)
    untied(client, "a")
    assert read_ledger_list(client, "a").cluster == client.store.cluster_id()
    assert json.loads(client.store.read("logs/a").data)["format"] == 2  # reading changes nothing
    with LogWriter.open(client, "a") as writer:
        writer.append(b"more")
    stored = json.loads(client.store.read("logs/a").data)
    assert stored["format"] == 3 and stored["cluster"] == client.store.cluster_id()
    delete_log(client, "a")
    assert not set(ledgers) & set(client.ledgers)


def test_an_empty_list_is_of_whoever_writes_first(client: Any) -> None:
    """OWN-4"""
    create_log(client, "a", RAW)
    untied(client, "a")
    written(client)
    foreign(client, "a", "another")
    with pytest.raises(WrongClusterError):
        read_log(client, "a")


def test_of_a_list_without_ledgers_the_open_ones_of_its_writers_tell(client: Any) -> None:
    """OWN-4"""
    written(client)
    trim_log(client, "a", max_bytes=0)
    untied(client, "a")
    with pytest.raises(WrongClusterError, match="it has no ledgers that could tell"):
        read_log(client, "a")
    create_intended(client, "a", RAW)
    assert read_log(client, "a").next_seq > 0


def test_what_lies_beside_a_list_is_adopted_with_it(client: Any) -> None:
    """OWN-12: intents and first offsets of that identity only; and a person who names another one is told."""
    written(client)
    foreign(client, "a", "before")
    client.store._world.next_ledger_id = 80
    for ledger_id, cluster in ((70, "before"), (71, "elsewhere"), (72, ""), (90, "before")):
        record_intent(client, "a", Intent(ledger_id, "q", "host", 1, 0, cluster=cluster))
    client.store.create("readers/a/r", json.dumps({"cluster": "before", "offsets": {}}).encode())
    client.store.create("readers/a/other", b"no value")
    with pytest.raises(WrongClusterError, match="names cluster before, not elsewhere"):
        adopt_log(client, "a", from_cluster="elsewhere")
    assert set(intents_of(client, "a")) == {72}
    adopt_log(client, "a", from_cluster="before")
    assert set(intents_of(client, "a")) == {70, 72}, "that of 90 waits for nothing: the number was never given here (OWN-14)"
    assert json.loads(client.store.read("readers/a/r").data)["cluster"] != "before"
    assert adopt_log(client, "a", from_cluster="before").adopted_from == ("before",)
    with pytest.raises(WrongClusterError, match="it was adopted from before, not elsewhere"):
        adopt_log(client, "a", from_cluster="elsewhere")
    for wrong in ("yes", 1, None):
        with pytest.raises(InvalidArgumentError, match="unnamed must be True or False"):
            adopt_log(client, "a", unnamed=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("where", ["segment", "condemned", "released"])
@pytest.mark.parametrize("cluster", ["before", ""])
def test_a_list_of_ledgers_that_are_yet_to_be_made_is_not_adopted(client: Any, where: str, cluster: str) -> None:
    """OWN-14: the cluster counts from 0 again; what it makes under these numbers would be the log's, and be deleted as condemned."""
    create_log(client, "a", RAW)
    mine = client.store.new_ledger_id() + 3
    stored = client.store.read("logs/a")
    listed = replace(decode(stored.data), cluster=cluster)
    if where == "segment":
        listed = listed.append_segments([SegmentRange(mine, 0, 0, 1, 1)], 0)
    else:
        listed = replace(listed, **{where: (mine,)})
    client.store.write("logs/a", encode(listed), stored.version)
    record_intent(client, "a", Intent(0, "q", "host", 1, 0, cluster=cluster))
    message = rf"BK-WRONG-CLUSTER.*'a' names ledger {mine} that this cluster has yet to make.*numbers up to {mine - 2} only.*log forget"
    with pytest.raises(WrongClusterError, match=message):
        adopt_log(client, "a", from_cluster=cluster or None)
    assert client.store.read("logs/a").data == encode(listed), "nothing was changed"
    assert json.loads(client.store.read("intents/a/0").data).get("cluster", "") == cluster
    while client.store.new_ledger_id() < mine:  # deleted since, or lost: nobody gets the number any more
        pass
    assert adopt_log(client, "a", from_cluster=cluster or None).cluster == client.store.cluster_id()


def test_a_list_of_a_ledger_whose_number_its_maker_chose_is_adopted(client: Any) -> None:
    """OWN-14: a number beyond those that the cluster gives is good where the ledger is there."""
    create_log(client, "a", RAW)
    client.create_ledger(ledger_id=10**6, custom={"log": b"a"}).close()
    stored = client.store.read("logs/a")
    listed = replace(decode(stored.data), cluster="before").append_segments([SegmentRange(10**6, 0, 0, 1, 1)], 0)
    client.store.write("logs/a", encode(listed), stored.version)
    assert adopt_log(client, "a", from_cluster="before").cluster == client.store.cluster_id()


# --- the cluster -------------------------------------------------------------------------------------------------------


def test_forgetting_another_cluster_s_log_leaves_what_is_ours_under_the_name(client: Any) -> None:
    """OWN-3: a tombstone and intents of a log that this cluster deleted, and has not finished with."""
    here, store = client.store.cluster_id(), client.store
    listed = LedgerList("f" * 32, cluster="gone")
    store.create("logs/a", encode(listed))
    ours = {"deleted/a/" + "e" * 32: encode(LedgerList("e" * 32, cluster=here))}
    ours |= {f"{place}/a/1": json.dumps({"logId": "e" * 32, "cluster": here}).encode() for place in ("intents", "files")}
    ours |= {"readers/a/r": json.dumps({"cluster": here, "offsets": {}}).encode(), "intents/a/5": b"{}", "intents/a/6": b"?"}
    theirs = {"deleted/a/" + "d" * 32: encode(LedgerList("d" * 32, cluster="gone"))}
    theirs |= {f"{place}/a/2": json.dumps({"logId": "d" * 32, "cluster": "gone"}).encode() for place in ("intents", "files")}
    theirs |= {"intents/a/3": json.dumps({"logId": listed.log_id}).encode()}
    theirs |= {"readers/a/old": json.dumps({"a": {"logId": listed.log_id}}).encode()}
    for path, data in (ours | theirs).items():
        store.create(path, data)
    forget_log(client, "a", cluster="gone")
    left = {f"{place}/a/{child}" for place in ("intents", "files", "deleted", "readers") for child in store.children(f"{place}/a")}
    assert left == set(ours) and store.children("logs") == []


def test_a_cluster_initialised_anew_is_noticed(client: Any) -> None:
    """OWN-2"""
    written(client)
    client.store._world.instance_id = "another"
    for action in actions(client).values():
        with pytest.raises(BkError, match="holds cluster another now; it was cluster"):
            action()


def test_without_a_cluster_nothing_is_gone(client: Any) -> None:
    """OWN-2"""
    ledgers = written(client)
    record_intent(client, "a", Intent(ledgers[0], "q", "host", 1, 0))
    client.store._world.instance_id = None
    for name in ("a", "never"):
        with pytest.raises(NoClusterError):
            read_log(client, name)
        with pytest.raises(NoClusterError):
            gc_log(client, name, min_age_s=0)
    assert client.store.children("intents/a") == [str(ledgers[0])]


@pytest.mark.parametrize("listed", [True, False])
def test_a_missing_ledger_of_a_cluster_that_went_away_is_not_forgotten(client: Any, listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """OWN-2: the cluster goes away within the pass, just before the ledger is looked for."""
    ledgers = written(client)
    dead = ledgers[0] if listed else create_intended(client, "a", RAW).ledger_id
    record_intent(client, "a", Intent(dead, "q", "elsewhere", 1, 0))

    def metadata(ledger_id: int) -> Any:
        client.store._world.instance_id = None
        raise NoSuchLedgerError(f"no ledger {ledger_id}")

    monkeypatch.setattr(client, "ledger_metadata", metadata)
    with pytest.raises(NoClusterError):
        gc_log(client, "a", min_age_s=0)
    assert client.store.children("intents/a") == [str(dead)]


# --- ledgers -----------------------------------------------------------------------------------------------------------


def test_ledgers_of_others_are_left_alone_and_told(client: Any) -> None:
    """OWN-6: a list that is of this cluster names a ledger that is not the log's: somebody adopted it, or made it by hand."""
    written(client)
    strangers = [client.create_ledger(custom=custom).ledger_id for custom in ({}, {"log": b"b"}, {"log": b"a", "logId": b"other"})]
    ranges = [SegmentRange(ledger_id, 0, 0, 1, 1) for ledger_id in strangers[:2]]
    update_ledger_list(client, "a", lambda listed: listed.append_segments(ranges, now_ms()))
    record_intent(client, "a", Intent(strangers[2], "q", "host", 1, 0, log_id=read_ledger_list(client, "a").log_id))
    report = gc_log(client, "a", min_age_s=0)
    assert [ledger_id for ledger_id, _ in report.foreign] == [strangers[2]] and not report.failed
    assert "it carries log=a and logId=other" in report.foreign[0][1]
    delete_log(client, "a")
    assert set(client.ledgers) == set(strangers) and not set(strangers) & set(client.recovered)
    assert client.store.children("deleted/a") == []


def test_a_new_leader_does_not_fence_a_strangers_ledger(client: Any) -> None:
    """OWN-6"""
    create_log(client, "a", RAW)
    stranger = client.create_ledger(custom={}).ledger_id
    update_ledger_list(client, "a", lambda listed: listed.add_live_segment(stranger, now_ms()))
    with pytest.raises(LogError, match=f"ledger {stranger} is not of log 'a'"):
        LogWriter.open(client, "a")
    assert client.recovered == []


def test_a_writer_looks_whose_the_ledger_is_that_it_lists(client: Any) -> None:
    """OWN-6: not only if it exists."""
    log_id = create_log(client, "a", RAW).log_id
    works = LeaderWorks(client, "a", b"", 1.0)
    works.answer(ReadList(1))
    named = {"log": b"a", "logId": log_id.encode()}
    for custom, outcome in ((named, Outcome.OK), ({}, Outcome.REFUSED), ({"log": b"a", "logId": b"other"}, Outcome.REFUSED)):
        answer = works.answer(CheckLedger(2, client.create_ledger(custom=custom).ledger_id))
        assert answer.outcome is outcome


@pytest.mark.parametrize("custom", [{}, {"log": b"b"}, {"log": b"a", "logId": b"other"}])
def test_a_commit_lists_no_ledger_of_others(client: Any, custom: dict[str, bytes]) -> None:
    """OWN-6: the ledger exists, which is not enough; its log is new, so the ledgers of its first commit carry no id."""
    log_id = create_log(client, "a", RAW).log_id
    check_listable(client, "a", log_id, [client.create_ledger(custom={"log": b"a"}).ledger_id])
    with pytest.raises(ForeignLedgerError, match="is not of log 'a'"):
        check_listable(client, "a", log_id, [client.create_ledger(custom=custom).ledger_id])


def test_what_is_created_for_a_log_carries_its_name_and_id(client: Any) -> None:
    """OWN-5, OWN-6"""
    log_id = create_log(client, "a", RAW).log_id
    with LogWriter.open(client, "a") as writer:
        (intent,) = intents_of(client, "a").values() or [None]
        assert intent is None or (intent.log_id, intent.cluster) == (log_id, client.store.cluster_id())
        custom = client.ledger_metadata(writer.ledger_id).custom
    assert {key: custom[key] for key in ("log", "logId", "logRoot")} == {"log": b"a", "logId": log_id.encode(), "logRoot": b"/logs"}
    handle = create_intended(client, "a", RAW, log_id=log_id)
    assert intents_of(client, "a")[handle.ledger_id].log_id == log_id


def test_a_number_that_another_cluster_has_an_intent_of_is_left_out(client: Any) -> None:
    """OWN-5: clusters count from the same number. The other one's intent would have been taken for ours, and forgotten with our ledger."""
    log_id = create_log(client, "a", RAW).log_id
    taken = client.store.new_ledger_id() + 1
    record_intent(client, "a", Intent(taken, "q", "elsewhere", 1, 5, cluster="another"))
    before = client.store.read(f"intents/a/{taken}")
    handle = create_intended(client, "a", RAW, log_id=log_id)
    assert handle.ledger_id != taken and list(intents_of(client, "a")) == [handle.ledger_id]
    gc_log(client, "a", min_age_s=0)
    assert client.store.children("intents/a") == [str(taken)] and client.store.read(f"intents/a/{taken}") == before


def exchanged(client: Any, ledger_id: int) -> str:
    """A janitor forgets our intent, and another cluster at this log root comes to its number. Returns its node."""
    client.store.delete(f"intents/a/{ledger_id}")
    assert record_intent(client, "a", Intent(ledger_id, "q", "elsewhere", 1, 5, cluster="another"))
    return str(ledger_id)


def test_an_intent_that_is_another_cluster_s_by_then_is_not_forgotten(client: Any) -> None:
    """OWN-5: by whoever lists or deletes a ledger that a janitor has met before."""
    log_id = create_log(client, "a", RAW).log_id
    listed, kept = (create_intended(client, "a", RAW, log_id=log_id).ledger_id for _ in range(2))
    foreign = exchanged(client, listed)
    forget_intent(client, "a", listed)
    assert client.store.children("intents/a") == [foreign, str(kept)]
    forget_intent(client, "a", kept)
    assert client.store.children("intents/a") == [foreign]


def test_a_writer_forgets_no_intent_of_another_cluster(client: Any) -> None:
    """OWN-5"""
    create_log(client, "a", RAW)
    works = LeaderWorks(client, "a", b"", 1.0)
    works.answer(ReadList(1))
    created = [works.answer(CreateLedger(number, {})) for number in (2, 3)]
    gone, own = (one.ledger_id for one in created if isinstance(one, LedgerCreated))
    foreign = exchanged(client, gone)
    for ledger_id in (gone, own):
        works.answer(DeleteLedger(4, ledger_id))
    assert client.ledgers == {} and client.store.children("intents/a") == [foreign]


def test_who_forgets_an_intent_again_looks_at_it_again(client: Any) -> None:
    """OWN-5: the first answer was lost, so ours may be gone, and the node of that number another cluster's."""
    ledger_id = create_intended(client, "a", RAW).ledger_id
    honest, lost = client.store, []

    def delete(path: str, version: int | None = None) -> None:
        honest.delete(path, version)
        if not lost:
            lost.append(path)
            assert record_intent(client, "a", Intent(ledger_id, "q", "elsewhere", 1, 5, cluster="another"))
            raise MetadataOutcomeUnknownError("the answer was lost")

    client.store = Store(honest, delete=delete)
    forget_intent(client, "a", ledger_id)
    assert lost and client.store.children("intents/a") == [str(ledger_id)]


def test_no_ledger_is_made_on_an_intent_that_went_while_it_was_looked_at(client: Any) -> None:
    """OWN-5: it was another cluster's, which forgets it right then. Nobody would look after the ledger."""
    log_id, honest, seen = create_log(client, "a", RAW).log_id, client.store, []

    def create(path: str, data: bytes) -> int:
        if path.startswith("intents/a/") and not seen:
            seen.append(path)
            raise NodeExistsError("it is there")
        return int(honest.create(path, data))

    client.store = Store(honest, create=create)
    handle = create_intended(client, "a", RAW, log_id=log_id)
    assert seen == [f"intents/a/{handle.ledger_id}"] and list(intents_of(client, "a")) == [handle.ledger_id]


def test_an_intent_whose_first_answer_was_lost_is_ones_own(client: Any) -> None:
    """META-12, OWN-5: the number is not left out, and nobody is left to look after an intent without a ledger."""
    create_log(client, "a", RAW)
    honest, lost = client.store, []

    def create(path: str, data: bytes) -> int:
        version = int(honest.create(path, data))
        if not lost:
            lost.append(path)
            raise MetadataOutcomeUnknownError("the answer was lost")
        return version

    client.store = Store(honest, create=create)
    handle = create_intended(client, "a", RAW)
    assert lost == [f"intents/a/{handle.ledger_id}"] and client.store.children("intents/a") == [str(handle.ledger_id)]


def test_a_deletion_that_meets_no_ledger_looks_at_the_cluster_afterwards(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """OWN-2: the cluster was there before the deletion, and goes away in the middle of it; a backup may bring it back."""
    create_log(client, "a", RAW)
    dead = create_intended(client, "a", RAW).ledger_id

    def delete_ledger(ledger_id: int, **_: Any) -> None:
        client.store._world.instance_id = None
        raise NoSuchLedgerError(f"no ledger {ledger_id}")

    monkeypatch.setattr(client, "delete_ledger", delete_ledger)
    with pytest.raises(NoClusterError):
        gc_log(client, "a", min_age_s=0)
    assert client.store.children("intents/a") == [str(dead)]


def test_a_cluster_made_anew_in_the_middle_of_a_trim_loses_no_segment(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """OWN-2: that its ledgers are not there is no reason to cut segments off."""
    create_log(client, "a", RAW)
    ids = [client.create_ledger().ledger_id for _ in range(3)]
    wanted = [SegmentRange(ledger_id, 0, 9, 10, 100) for ledger_id in ids]
    before = update_ledger_list(client, "a", lambda listed: listed.append_segments(wanted, 1000))

    def gone(ledger_id: int) -> Any:
        client.store._world.instance_id = "made anew"
        raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")

    monkeypatch.setattr(client, "ledger_metadata", gone)
    with pytest.raises(ClusterChangedError):
        trim_log(client, "a", before=Position(2))
    assert decode(client.store.read("logs/a").data).segments == before.segments


def test_of_which_log_a_first_offset_is() -> None:
    assert log_id_of_reader(b'{"a":{"logId":"1"}}', "a") == "1"
    assert log_id_of_reader(b'{"cluster":"c","offsets":{"a":{"logId":"1"}}}', "a") == "1"
    for unknown in (b"", b"[]", b"{}", b'{"a":1}', b'{"cluster":"c"}', b'{"b":{"logId":"1"}}', b'{"cluster":{"logId":"1"}}'):
        assert log_id_of_reader(unknown, "a") is None


# --- ledgers whose log is gone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("custom", "traces", "expected"),
    [
        ({}, Traces(), False),
        ({"log": b"a"}, Traces(), True),
        ({"log": b"a"}, Traces(log_id="1"), False),  # it may be of that one
        ({"log": b"a"}, Traces(tombstones=("2",)), False),
        ({"log": b"a", "logId": b"1"}, Traces(), True),
        ({"log": b"a", "logId": b"1"}, Traces(log_id="1"), False),
        ({"log": b"a", "logId": b"1"}, Traces(log_id="2"), True),  # created again under the name
        ({"log": b"a", "logId": b"1"}, Traces(tombstones=("2",)), True),
        ({"log": b"a", "logId": b"1"}, Traces(tombstones=("1",)), False),
        ({"log": b"a", "logId": b"1"}, Traces(intended=True), False),
        ({"log": b"a", "logId": b"1"}, Traces(unclear=True), False),
        ({"log": b"a", "logId": b"1", "logRoot": b"/logs"}, Traces(), True),
        ({"log": b"a", "logId": b"1", "logRoot": b"/elsewhere"}, Traces(), False),
    ],
)
def test_when_a_ledger_is_an_orphan(custom: dict[str, bytes], traces: Traces, expected: bool) -> None:
    """OWN-9"""
    assert is_orphan(custom, "/logs", traces) is expected


# --- properties --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"), [("crc32c", "CRC32C"), ("Crc32", "CRC32"), ("mac", "MAC"), ("hmac", "MAC"), ("HMAC", "MAC"), ("dummy", "DUMMY")]
)
def test_a_digest_type_is_known_however_it_is_spelled(client: Any, given: str, kept: str) -> None:
    listed = create_log(client, "a", LogProperties(entry_format="RAW", digest_type=given))
    assert (listed.properties.digest_type, listed.properties.entry_format) == (kept, "raw")
    with LogWriter.open(client, "a") as writer:
        writer.append(b"x")


@pytest.mark.parametrize(
    "wrong",
    [
        {"digest_type": "sha256"},
        {"digest_type": 3},
        {"digest_type": None},
        {"entry_format": "json"},
        {"entry_format": None},
        {"schema": b"x"},
        {"ensemble_size": 3.0},
        {"ensemble_size": "3"},
        {"write_quorum_size": None},
        {"ack_quorum_size": True},
        {"retention_ms": 1.5},
        {"retention_bytes": "1GiB"},
        {"committed_retention_ms": False},
        {"guaranteed_write_quorum": "yes"},
    ],
)
def test_every_property_is_checked_before_a_log_is_made(client: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        create_log(client, "a", LogProperties(**wrong))
    with pytest.raises(NoSuchLogError):
        read_log(client, "a")
    create_log(client, "b")
    if "schema" not in wrong:
        with pytest.raises(InvalidArgumentError):
            set_properties(client, "b", **wrong)


def test_properties_that_no_ledger_can_have_leave_no_intent(client: Any) -> None:
    """A list of a newer program, or one that was damaged."""
    create_log(client, "a", RAW)
    with pytest.raises(InvalidArgumentError, match="digestType must be one of CRC32, MAC, CRC32C, DUMMY, not 'blake3'"):
        create_intended(client, "a", unchecked_properties(RAW, digest_type="blake3"))
    assert client.store.children("intents/a") == []


@pytest.mark.parametrize("error", [KeyError("x"), OSError("no threads left"), LogError("refused")])
def test_an_intent_goes_with_any_error_unless_the_ledger_is_there(client: Any, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    create = client.create_ledger
    for after in (False, True):

        def failing(after: bool = after, **settings: Any) -> Any:
            if after:
                create(**settings)
            raise error

        monkeypatch.setattr(client, "create_ledger", failing)
        with pytest.raises(type(error)):
            create_intended(client, "a", RAW)
        assert len(client.store.children("intents/a")) == len(client.ledgers) == int(after)
