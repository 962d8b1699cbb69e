"""Mistakes that users of ``bk checkpoint`` make, and what they are told: in words of checkpoints, with the next step."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import bk_core
from bk_core.client.files.names import store_log
from bk_core.client.files.store import FileStore
from bk_core.client.log.check import repair_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.errors import FileDataLostError, FileStoreTakenOverError, InvalidArgumentError
from tests.unit.bk_core.conftest import Bk

NOT_THERE = "[BK-FILES-NO-STORE] there is no checkpoint 'fligths'; did you mean 'flights'?"
NEEDS_PASSWORD = (
    "[BK-PASSWORD] checkpoint 'hush' was made with a password, and none was given: "
    "--password, --password-file, or BOOKKEEPER_LEDGER_PASSWORD"
)
OTHER_PASSWORD = (
    "[BK-PASSWORD] the password given is not that of checkpoint 'hush'; one that was made without a password is opened without one"
)
NO_PATH = "[BK-FILES-NO-PATH] checkpoint 'flights' has no /nope; / has commits, metadata, offsets"
ALIVE = "[BK-LOG-WRITER-ALIVE] checkpoint 'live' is open in this program, process {pid} on host"
WHOLE = "this takes a whole checkpoint: flights, not {} in it. Nothing was done"

MISTAKES: list[tuple[str, int, str]] = [
    # names
    ("show fligths", 1, NOT_THERE),
    ("ls fligths", 1, NOT_THERE),
    ("tail fligths", 1, NOT_THERE),
    ("cat fligths metadata", 1, NOT_THERE),
    ("export fligths OUT", 1, NOT_THERE),
    ("rm fligths --yes", 1, NOT_THERE),
    ("gc fligths", 1, NOT_THERE),
    ("show files.flights", 1, "[BK-FILES-NO-STORE] there is no checkpoint 'files.flights'; did you mean 'flights'?"),
    ("show s3://bucket/flights", 2, "s3://bucket/flights is no checkpoint in ledgers: give NAME, NAME/PATH, "),
    ("import a~b DIR", 2, "checkpoint name 'a~b': use letters, digits, '.', '_', '-' (at most 194)"),
    # paths
    ("ls flights/nope", 1, NO_PATH),
    ("ls flights nope", 1, NO_PATH),
    ("show flights/nope", 1, NO_PATH),
    ("tail flights/nope", 1, NO_PATH),
    ("export flights/nope OUT", 1, NO_PATH),
    ("ls flights/offset", 1, "[BK-FILES-NO-PATH] checkpoint 'flights' has no /offset; did you mean /offsets?"),
    ("cat flights ofsets/0", 1, "[BK-FILES-NO-PATH] checkpoint 'flights' has no /ofsets/0; did you mean /offsets?"),
    ("cat flights offsets/7", 1, "[BK-FILES-NO-PATH] checkpoint 'flights' has no /offsets/7; /offsets has 0"),
    ("cat flights/metadata/x", 1, "[BK-FILES-NO-PATH] checkpoint 'flights' has no /metadata/x"),
    ("cat flights offsets", 1, "/offsets of checkpoint 'flights' is a directory; `bk checkpoint ls flights/offsets` lists it"),
    ("cat flights", 2, "which file of flights? `bk checkpoint cat flights/offsets/0`, say; `bk checkpoint ls flights` lists them"),
    ("cat flights ../x", 1, "[BK-FILES-PATH] path '/../x' has the part '..'"),
    ("rm flights/offsets --yes", 2, WHOLE.format("/offsets")),
    ("gc flights/offsets", 2, WHOLE.format("/offsets")),
    ("import flights/sub DIR", 2, WHOLE.format("/sub")),
    ("export flights/offsets/0 OUT", 1, "/offsets/0 of checkpoint 'flights' is a file; `bk checkpoint cat` writes one"),
    # what is there already, or is none
    ("import flights DIR", 1, "[BK-FILES-EXISTS] there is a checkpoint 'flights' already; --replace puts these files in place of its own"),
    ("import new EMPTY", 1, "is no checkpoint of a streaming query: it has neither a file metadata nor a folder offsets"),
    ("import DIR new", 2, " is a place on this machine, and no checkpoint in ledgers"),
    ("export flights DIR", 1, "is there already and no empty folder; give one that is not there"),
    ("gc --even-if-alive", 2, "--even-if-alive needs the names of the checkpoints whose owners are to be fenced"),
    # owners
    ("rm live --yes", 1, ALIVE),
    ("gc live", 1, ALIVE),
    ("import live DIR --replace --yes", 1, ALIVE),
    # passwords
    ("ls hush", 1, NEEDS_PASSWORD),
    ("show hush", 1, NEEDS_PASSWORD),
    ("rm hush --yes", 1, NEEDS_PASSWORD),
    ("gc hush", 1, NEEDS_PASSWORD),
    ("export hush OUT", 1, NEEDS_PASSWORD),
    ("import hush DIR --replace --yes", 1, NEEDS_PASSWORD),
    ("show hush --password wrong", 1, OTHER_PASSWORD),
    ("rm hush --yes --password wrong", 1, OTHER_PASSWORD),
    ("gc", 1, f"checkpoint hush is left out: {NEEDS_PASSWORD}"),
    ("ls", 0, f"checkpoint hush is left out: {NEEDS_PASSWORD}"),
]  # fmt: skip


ODD_NAMES = (
    " ", "a b", "%", "a%20b", "prüf", "\U0001f600", "'quo\"te'", "..", ".", "/", "/flights", "../flights", "x" * 195, "x" * 255,
    "a\nb", "a\x1b[31mb",
    "bk:///", "bk:///offsets", "bk://fl ights", "bk://flights#old", "bk://flights?uri=zk://there/ledgers", "bk://flights%2Foffsets", "bk://[::1",
    "webhdfs://bookkeeper-checkpoints/", "webhdfs://bookkeeper-checkpoints/flights#old", "webhdfs://bookkeeper-checkpoints/a%20b",
)  # fmt: skip
ODD_FILES = ("a b", "50%", "a%20b", "x?y#z", "prüf \U0001f600", "'quo\"te'", "x" * 255, "-n", "a+b&c=d;e", "back\\slash")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    for path, text in {"metadata": '{"id":"q"}', "offsets/0": "v1\n{}\n-", "commits/0": "v1\n{}"}.items():
        (made / path).parent.mkdir(parents=True, exist_ok=True)
        (made / path).write_text(text)
    return made


def test_each_mistake_is_told_in_words_of_checkpoints(bk: Bk, client: bk_core.BookKeeper, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    places = {"DIR": folder, "OUT": tmp_path / "out", "EMPTY": tmp_path / "empty"}
    bk("import", "flights", folder)
    bk("import", "hush", folder, "--password", "s3cret")
    with FileStore.open(client, "live") as live:
        live.put("/offsets/0", b"v1\n{}\n-")
        before = bk.json("ls")[0]
        for line, status, told in MISTAKES:
            bk(*(str(places.get(word, word)) for word in line.split()), status=status)
            said = bk.err
            assert told.format(pid=os.getpid()) in said, (line, said)
            if told is ALIVE:
                assert said.endswith("close that owner of this program, or fence it: --even-if-alive\n")
            for riddle in ("files.", "file store", "log '", "ledger 0", "s3cret", "wrong'", "=True"):
                assert riddle not in said.replace("files.flights'; did", ""), (line, said)
        assert bk.json("ls")[0] == before and len(bk.out.splitlines()) == 2 and not (tmp_path / "out").exists()  # and nothing was done


GIVEN = "give NAME, NAME/PATH or bk://NAME/PATH"


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_of_odd_characters_is_refused_and_never_cut_to_another_one(bk: Bk, folder: Path, tmp_path: Path, name: str) -> None:
    """The part of it behind a ``#`` was dropped once, and `rm` deleted the checkpoint of the rest."""
    bk("import", "flights", folder)
    before = bk.json("ls", "flights")
    for command in ("show", "tail -F", "ls", "cat", "export", "rm --yes", "gc"):
        more = {"cat": ["offsets/0"], "export": [str(tmp_path / "out")]}.get(command, [])
        bk(*command.split(), name, *more, status=2)
        if name.startswith(("/", "../")):
            assert f"': {name} is a place on this machine, and no checkpoint in ledgers: {GIVEN}\n" in bk.err
            continue
        assert "': checkpoint name '" in bk.err and "use letters, digits" in bk.err
    bk("lag", name if "://" in name else f"bk://{name}", group="query", status=1)
    assert bk.err.startswith("error: [BK-ARGUMENT] checkpoint name '")
    assert bk.json("ls", "flights") == before and not (tmp_path / "out").exists()


def test_a_place_that_is_no_url_is_told_in_a_line(bk: Bk) -> None:
    bk("lag", "http://[::1", group="query", status=1)
    assert bk.err == "error: [BK-ARGUMENT] http://[::1 is neither a folder nor a URL: Invalid IPv6 URL\n"


def test_files_of_odd_names_are_shown_and_copied(bk: Bk, folder: Path, tmp_path: Path) -> None:
    for name in ODD_FILES:
        (folder / "sources" / name).mkdir(parents=True)
        (folder / "sources" / name / name).write_text(name)
    bk("import", "odd", folder)
    assert sorted(one["path"] for one in bk.json("ls", "odd/sources")) == sorted(f"/sources/{name}" for name in ODD_FILES)
    for name in ODD_FILES:
        assert bk("cat", "odd", f"sources/{name}/{name}") == bk("cat", f"odd/sources/{name}/{name}") == name
        quoted = name.replace("%", "%25")
        assert (
            bk("cat", f"bk://odd/sources/{quoted}/{quoted}")
            == bk("cat", f"webhdfs://bookkeeper-checkpoints/odd/sources/{quoted}", "--", name)
            == name
        )
    bk("export", "odd", tmp_path / "out")
    assert {path.name: path.read_text() for path in (tmp_path / "out" / "sources").glob("*/*") if not path.name.endswith(".crc")} == {
        name: name for name in ODD_FILES
    }


def test_a_checkpoint_may_be_named_in_each_way_that_a_user_knows(bk: Bk, folder: Path) -> None:
    bk("import", "bk://flights", folder)
    for name in ("flights", "bk://flights", "webhdfs://bookkeeper-checkpoints/flights", "swebhdfs://bookkeeper-checkpoints/flights"):
        assert [one["path"] for one in bk.json("ls", f"{name}/offsets")] == ["/offsets/0"]
        assert bk("ls", name, "offsets") == bk("ls", f"{name}/offsets/")
        assert bk("cat", name, "offsets/0") == bk("cat", f"{name}/offsets/0") == bk("cat", f"{name}/offsets", "0") == "v1\n{}\n-"
        assert json.loads(bk("show", name, "--json"))["checkpoint"] == "flights"
    assert "flights/commits has no folder offsets. Either it is no checkpoint of a query, or" in bk("show", "flights/commits")
    bk("rm", "--yes", "webhdfs://bookkeeper-checkpoints/flights")
    assert "0 checkpoints" in bk("ls")


def test_a_name_without_its_scheme_is_not_looked_for_on_this_machine_in_vain(bk: Bk, folder: Path) -> None:
    bk("import", "flights", folder)
    none = "there is no folder {} on this machine; a checkpoint in ledgers is given as bk://NAME"
    for name in ("flights", "flights/a"):
        bk("lag", name, group="query", status=1)
        assert bk.err == f"error: [BK-ARGUMENT] {none.format(name)}. There is one in ledgers: `bk query lag bk://{name}`\n"
    bk("lag", "fligths", group="query", status=1)
    assert bk.err == f"error: [BK-ARGUMENT] {none.format('fligths')}\n"
    bk("lag", "bk://fligths", group="query", status=1)
    assert NOT_THERE in bk.err


def test_grd_7_a_checkpoint_that_has_lost_changes_is_never_shown_as_another(bk: Bk, client: bk_core.BookKeeper, folder: Path) -> None:
    """The error told of `bk log repair`, which made it an empty one: a query would have begun anew without a word."""
    bk("import", "flights", folder)
    lost = read_ledger_list(client, store_log("flights")).segments[0].ledger_id
    client.store.delete_ledger(lost)
    with pytest.raises(
        FileDataLostError,
        match=rf"^\[BK-FILES-DATA-LOST\] ledger {lost}, which held changes .*\(bk checkpoint rm flights, with --even-if-alive where",
    ) as caught:
        FileStore.open(client, "flights")
    assert "repair" not in str(caught.value)
    for command in ("ls flights", "show flights", "tail flights", "cat flights metadata", "export flights OUT", "gc flights"):
        bk(*command.replace("OUT", str(folder.parent / "out")).split(), status=1)
        assert "[BK-FILES-DATA-LOST]" in bk.err and "checkpoint 'flights'" in bk.err and "file store" not in bk.err, command
    for flags in ([], ["--yes"]):
        bk("repair", "files.flights", *flags, group="log", status=1)
        assert "bk checkpoint rm flights deletes it (--even-if-alive where a lost ledger" in bk.err and "--even-if-files" in bk.err
    with pytest.raises(InvalidArgumentError, match="Nothing was done"):
        repair_log(client, "files.flights")
    with pytest.raises(FileDataLostError):
        FileStore.open(client, "flights")
    bk("repair", "files.flights", "--yes", "--even-if-files", group="log")
    assert "0 files" in bk("show", "flights") or "files                 0" in bk("show", "flights")
    client.store.delete_ledger(read_ledger_list(client, store_log("flights")).segments[-1].ledger_id)
    bk("rm", "flights", "--yes")
    bk("import", "flights", folder)
    assert bk("cat", "flights", "metadata") == '{"id":"q"}'


def test_a_checkpoint_that_has_lost_the_ledger_of_its_owner_is_deleted_as_the_advice_says(bk: Bk, client: bk_core.BookKeeper) -> None:
    """The lost ledger was to tell that its owner is gone, so that one may live, as far as anybody knows."""
    owner = FileStore.open(client, "flights")
    owner.put("/metadata", b"x")
    client.store.delete_ledger(read_ledger_list(client, store_log("flights")).segments[-1].ledger_id)
    owner.abandon()
    bk("rm", "flights", "--yes", status=1)
    assert "may be open in a process that is not named" in bk.err
    (told,) = [one for one in bk.json("doctor", group="cluster", status=1) if one.get("code") == "log-ledgers-missing"]
    command = "bk checkpoint rm flights --even-if-alive"
    assert f"`{command}` gives them up for good" in told["advice"]
    bk(*command.split()[2:], "--yes")
    assert "0 checkpoints" in bk("ls")


def test_sizes_of_a_store_are_told_as_they_were_given(client: bk_core.BookKeeper) -> None:
    for given, told in (
        ({"ack_quorum_size": 4}, "ack_quorum_size 4 is above write_quorum_size 3"),
        ({"ensemble_size": 2}, "write_quorum_size 3 is above ensemble_size 2"),
        ({"digest_type": "SHA"}, "digest_type must be one of"),
    ):
        with pytest.raises(InvalidArgumentError, match=told):
            FileStore.open(client, "q", **given)  # type: ignore[arg-type]
    with FileStore.open(client, "q"), pytest.raises(FileStoreTakenOverError, match="take_over=True"):
        FileStore.open(client, "q", take_over=False)


@pytest.mark.parametrize("command", ["ls", "show", "tail"])
def test_the_help_tells_when_a_change_shows(bk: Bk, command: str) -> None:
    bk(command, "--help")
    told = " ".join(bk.out.split())
    assert "The last changes of an owner that died may show only after the next owner has opened the checkpoint." in told
