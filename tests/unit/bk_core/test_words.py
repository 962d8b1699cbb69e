"""Words of errors: sizes that do not fit, names that are nearly right, places that are none, clients that are closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import cli
from bk_core.bookie.local_cluster import local_cluster
from bk_core.client.client import BookKeeper
from bk_core.client.log.history import read_log, update_ledger_list
from bk_core.client.log.janitor import trim_log
from bk_core.client.log.lists import create_log, list_logs, set_properties
from bk_core.errors import ClientClosedError, InvalidArgumentError, LogExistsError, NoSuchLogError
from bk_core.metadata import open_store, paths
from bk_core.metadata.lazy import LazyStore
from bk_core.metadata.tree.watches import Keeper
from bk_core.metadata.zookeeper.link import Link
from bk_core.near import meant, near_names
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.quorums import DEFAULT_SIZES
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties, SegmentRange, stored_name, unchecked_properties

_USUAL = ". Give all three, which are 3, 3 and 2 by default"
_SIZES = [
    ((3, 2, 3), "ack_quorum_size 3 is above write_quorum_size 2: no more bookies can acknowledge an entry than store it"),
    ((3, 3, 4), "ack_quorum_size 4 is above write_quorum_size 3: no more bookies can acknowledge an entry than store it" + _USUAL),
    ((2, 3, 2), "write_quorum_size 3 is above ensemble_size 2: an entry cannot go to more bookies than there are" + _USUAL),
    ((4, 5, 4), "write_quorum_size 5 is above ensemble_size 4: an entry cannot go to more bookies than there are"),
]


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the URI of a cluster without a bookie."""
    uri = f"memory://{tmp_path.name}"
    store = open_store(uri)
    store.initialize_cluster()
    monkeypatch.setenv(cli.output.URI_VARIABLE, uri)
    yield uri
    store.close()


@pytest.fixture
def client(uri: str) -> Iterator[BookKeeper]:
    with bk_core.connect(uri) as client:
        yield client


def commit(client: BookKeeper, log: str, count: int) -> None:
    """Segments of ledgers that are gone already: to be cut off they need no bookie."""
    for number in range(count):
        wanted = [SegmentRange(number, 0, 0, 1, 1)]
        update_ledger_list(client, log, lambda listed, w=wanted: listed.append_segments(w, 1))


# --- sizes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sizes", "words"), _SIZES)
def test_sizes_that_do_not_fit_name_the_pair(
    client: BookKeeper, capsys: pytest.CaptureFixture[str], sizes: tuple[int, int, int], words: str
) -> None:
    """CR-1: in the spelling of whoever gave them."""
    names = ("ensemble_size", "write_quorum_size", "ack_quorum_size")
    given: dict[str, Any] = dict(zip(names, sizes, strict=True))
    for call in (
        lambda: client.create_ledger(**given),
        lambda: create_log(client, "a", LogProperties(**given)),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            call()
        assert str(caught.value) == f"[BK-ARGUMENT] {words}"
    with pytest.raises(InvalidArgumentError) as caught:
        unchecked_properties(**given).check()
    stored, options = (words, words)
    for name in names:
        stored, options = stored.replace(name, stored_name(name)), options.replace(name, f"--{name.replace('_', '-')}")
    assert caught.value.args[0] == stored and "QuorumSize" in stored
    create_log(client, "there")
    # those of `set` are judged beside what the log has
    for command, status, said in ((["create", "a"], 2, f"Error: {options}\n"), (["set", "there"], 1, f"error: [BK-ARGUMENT] {options}\n")):
        assert cli.run(["log", *command, *(f"--{name.replace('_', '-')}={size}" for name, size in given.items())]) == status
        assert capsys.readouterr().err.endswith(said)
    assert list_logs(client) == ["there"]


def test_sizes_that_are_not_given_are_those_that_are_told(client: BookKeeper) -> None:
    properties = LogProperties()
    assert (properties.ensemble_size, properties.write_quorum_size, properties.ack_quorum_size) == DEFAULT_SIZES
    given = BookKeeper.create_ledger.__kwdefaults__ or BookKeeper.create_ledger.__wrapped__.__kwdefaults__  # type: ignore[attr-defined]
    assert tuple(given[name] for name in ("ensemble_size", "write_quorum_size", "ack_quorum_size")) == DEFAULT_SIZES
    with pytest.raises(InvalidArgumentError, match="write_quorum_size 3 is above ensemble_size 2: .* Give all three, which are 3, 3 and 2"):
        client.create_ledger(ensemble_size=2)
    with pytest.raises(InvalidArgumentError, match="^.BK-ARGUMENT. ack_quorum_size must be at least 1, not 0$"):
        create_log(client, "a", LogProperties(ack_quorum_size=0))


def test_a_retention_of_nothing_is_named_as_it_was_given(client: BookKeeper, capsys: pytest.CaptureFixture[str]) -> None:
    create_log(client, "a")
    with pytest.raises(InvalidArgumentError, match="retention_ms must be positive"):
        set_properties(client, "a", retention_ms=0)
    assert cli.run(["log", "set", "a", "--committed-retention", "0s"]) == 1
    assert "error: [BK-ARGUMENT] --committed-retention must be positive" in capsys.readouterr().err


# --- names ---------------------------------------------------------------------------------------------------------------


def test_names_with_nothing_but_the_same_end_are_not_near() -> None:
    assert near_names("web-events", ["app-events", "ops-events", "web-event", "wep-events"]) == ["web-event", "wep-events"]
    many = [f"orders-{number}" for number in range(9)]
    assert len(near_names("orders", many)) == 3 and near_names("orders-x", many, 1) == ["orders-8"]
    for wrong, right in (("flihgts", "flights"), ("xorders", "orders"), ("orders", "xorders"), ("oders", "orders")):
        assert near_names(wrong, [right]) == [right], wrong
    assert near_names("orders", []) == []


def test_case_makes_no_name_far() -> None:
    assert near_names("T2", ["t2", "t1"]) == ["t2"] and meant("NAEM", ["name"]) == "did you mean 'name'?"
    assert near_names("city", ["CITY", "City"]) == ["CITY", "City"]


def test_a_log_is_near_by_more_than_its_end(client: BookKeeper) -> None:
    for name in ("app-events", "orders-1", "orders-2", "orders-3", "orders-4"):
        create_log(client, name)
    with pytest.raises(NoSuchLogError) as caught:
        read_log(client, "web-events")
    assert "did you mean" not in str(caught.value)
    with pytest.raises(NoSuchLogError, match=r"there is no log 'orders'; did you mean 'orders-\d' or 'orders-\d' or 'orders-\d'\?$"):
        read_log(client, "orders")


def test_a_log_of_a_file_store_is_near_by_its_prefix_only(client: BookKeeper) -> None:
    create_log(client, "files.flights", file_entries=True)
    with pytest.raises(NoSuchLogError, match="there is no log 'flight'$"):
        read_log(client, "flight")
    with pytest.raises(NoSuchLogError, match=r"there is no log 'files.flight'; did you mean 'files.flights'\?$"):
        read_log(client, "files.flight")


def test_a_property_that_there_is_not_offers_those_that_can_be_changed(client: BookKeeper) -> None:
    create_log(client, "events")
    near = r"a log has no property 'retention'; did you mean 'retention_ms' or 'retention_bytes'\?$"
    with pytest.raises(InvalidArgumentError, match=near):
        set_properties(client, "events", retention=5)
    free = sorted({field.name for field in fields(LogProperties)} - {"entry_format", "schema", "extra"})
    with pytest.raises(InvalidArgumentError, match=f"no property 'x'; those that can be changed are {', '.join(free)}$"):
        set_properties(client, "events", x=5)


def test_a_log_that_exists_says_how_to_take_it(client: BookKeeper) -> None:
    create_log(client, "a")
    with pytest.raises(LogExistsError, match=r"log 'a' exists; exist_ok=True \(--exist-ok\) takes it as it is"):
        create_log(client, "a")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--uri", "U", "ledger", "ls"], "No such option '--uri' here: it goes after the command, as in `bk ledger ls --uri ...`."),
        (["ledger", "--uri", "U", "ls"], "No such option '--uri' here: it goes after the command, as in `bk ledger ls --uri ...`."),
        (["--json", "log"], "No such option '--json' here: it goes after the command, as in `bk log COMMAND --json`."),
        (["-f", "log", "tail", "a"], "No such option '-f' here: it goes after the command, as in `bk log tail -f`."),
        (["--nope", "ledger", "ls"], "No such option '--nope'."),
        (["--even-if-listed", "ledger", "ls"], "No such option '--even-if-listed'."),
    ],
)
def test_an_option_in_front_of_its_command_says_where_it_goes(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(words) == 2
    assert capsys.readouterr().err.endswith(f"Error: {told}\n")


# --- places --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("zk://h:1/", "'zk://h:1/' lacks the ledgers root: zk://host:port/ledgers"),
        ("zk://h:1", "'zk://h:1' lacks the ledgers root: zk://host:port/ledgers"),
        ("zk:///ledgers", "'zk:///ledgers' lacks hosts: zk://host:port/ledgers"),
        (
            "zk://h:1/l?foo=1",
            "'zk://h:1/l?...' has an unknown option 'foo'; there are chroot, log_root, session_timeout_ms, placement, "
            "auth, user, password_file, principal, keytab_file, ticket_cache, service, acl, readers, ca_file, cert_file, key_file, "
            "key_password_file, verify_host, key_store_file, key_store_password_file, "
            "trust_store_file, trust_store_password_file, tls_minimum",
        ),
        ("zk://h:1/a/ledgers/", "the ledgers root of 'zk://h:1/a/ledgers/' ends with a slash: write /a/ledgers"),
    ],
)
def test_a_uri_without_a_proper_ledgers_root_says_what_is_wrong(uri: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        open_store(uri)
    assert caught.value.args[0] == words


def test_a_root_that_ends_with_a_slash_is_told_without() -> None:
    with pytest.raises(InvalidArgumentError, match="log root '/logs/' ends with a slash: write '/logs'"):
        paths.check_log_root("/logs/", "/ledgers")
    with pytest.raises(InvalidArgumentError, match="log root '/' names nothing"):
        paths.check_log_root("/", "/ledgers")


def test_a_directory_that_cannot_be_made_is_told_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    inside = tmp_path / "file" / "data"
    with pytest.raises(
        InvalidArgumentError, match=f"no local cluster can be kept in {inside}: Not a directory .*; name a directory of yours"
    ):
        local_cluster(1, inside)
    assert cli.run(["local", "--dir", str(inside)]) == 1
    assert f"error: [BK-ARGUMENT] no local cluster can be kept in {inside}: " in capsys.readouterr().err


def test_an_address_that_is_none_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["log", "ls", "--uri", "foo"]) == 2
    told = capsys.readouterr().err
    assert "Invalid value for --uri: " in told and "foo" in told


def test_a_name_of_a_file_store_s_log_is_reserved(client: BookKeeper) -> None:
    with pytest.raises(InvalidArgumentError, match=r"names that begin with files\. are reserved: log 'files\.x' holds"):
        create_log(client, "files.x")


def test_a_trim_beyond_the_end_is_refused(client: BookKeeper, capsys: pytest.CaptureFixture[str]) -> None:
    """It would drop everything, of a log with another number of segments than was meant."""
    create_log(client, "a")
    with pytest.raises(InvalidArgumentError, match="segment 1 lies beyond the end of log 'a', which has no segment yet"):
        trim_log(client, "a", before=Position(1))
    assert trim_log(client, "a", before=Position(0)) == ()
    commit(client, "a", 4)
    beyond = r"segment 5 lies beyond the end of log 'a', whose last segment is 3: before=Position\(4\) \(--before-seq 4\) drops all$"
    with pytest.raises(InvalidArgumentError, match=beyond):
        trim_log(client, "a", before=Position(5), max_bytes=4)
    for more in ([], ["--dry-run"]):
        assert cli.run(["log", "trim", "a", "--before-seq", "5", *more]) == 2
        assert (
            "Invalid value for --before-seq: segment 5 lies beyond the end of log 'a', whose last segment is 3" in capsys.readouterr().err
        )
    assert len(read_log(client, "a").listed.segments) == 4
    trim_log(client, "a", before=Position(4))
    assert read_log(client, "a").listed.segments == ()


# --- clients that are closed, and what is shown ---------------------------------------------------------------------------


def closed_link() -> Any:
    link = Link("127.0.0.1:1", 1.0, lambda _: None)
    link.close(60.0)
    return link.call(lambda: None, 60.0)


def closed_keeper() -> None:
    keeper = Keeper()
    keeper.close()
    keeper.add(None)  # type: ignore[arg-type]


def closed_lazy() -> None:
    store = LazyStore(lambda: open_store("memory://nobody"), "none", "/ledgers")
    store.close()
    store.read_ledger(0)


@pytest.mark.parametrize("call", [closed_link, closed_keeper, closed_lazy, *(["ledger", "log", "open", "logs"])])
def test_every_call_of_a_closed_client_says_that_the_client_was_closed(uri: str, call: str | Callable[[], Any]) -> None:
    client = bk_core.connect(uri)
    client.close()
    calls: dict[object, Callable[[], Any]] = {
        "ledger": client.create_ledger,
        "log": lambda: create_log(client, "q"),
        "open": lambda: client.open_ledger(0),
        "logs": lambda: list_logs(client),
    }
    with pytest.raises(ClientClosedError) as caught:
        (call if callable(call) else calls[call])()
    assert caught.value.args[0] == "this client was closed, by this program or because the process ends"


def test_what_is_shown_of_a_ledger_does_not_look_like_protection() -> None:
    shown = repr(LedgerMetadata(1, 1, 1, LedgerState.OPEN, (Fragment(0, ("a",)),), password=b"hunter2"))
    assert "password" not in shown and "hunter2" not in shown
