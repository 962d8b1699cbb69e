"""Settings and addresses of ``checkpoint_location``, without a Spark."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bk_spark
from bk_core.errors import (
    ArgumentTypeError,
    BkError,
    InvalidArgumentError,
    NoSuchFileStoreError,
    NotEnoughBookiesError,
    OperationTimeoutError,
    ReadTimeoutError,
)
from bk_spark.checkpoint import checkpoint_location, close, hadoop_conf, location
from bk_spark.checkpoint.location import READ_TIMEOUT_MIN_S, _addresses, _Application, _applications, _is_open_here
from bk_spark.checkpoint.secret import Secret
from bk_spark.checkpoint.staging import CheckpointFiles
from tests.unit.spark.memory_files import MemoryFiles

ROOT = Path(__file__).resolve().parents[3]
SPARK_REDACTS = re.compile("(?i)secret|password|token|access[.]?key")  # spark.redaction.regex


class Context:
    """The two things of a SparkContext that say where the driver is."""

    def __init__(self, master: str, **conf: str) -> None:
        self._jsc = object()
        self.master, self.conf = master, {f"spark.driver.{key}": value for key, value in conf.items()}

    def getConf(self) -> dict[str, str]:  # noqa: N802  # Spark's name
        return self.conf


def test_the_secret_stands_under_a_name_that_spark_redacts_and_nowhere_else() -> None:
    secret = Secret().reveal()
    made = hadoop_conf.settings("http://127.0.0.1:4000", secret, 240)
    assert [key for key, value in made.items() if secret in value] == [hadoop_conf.REFRESH_TOKEN]
    assert SPARK_REDACTS.search(hadoop_conf.REFRESH_TOKEN)
    assert secret not in hadoop_conf.location("flights") == "webhdfs://bookkeeper-checkpoints/flights"


def test_other_name_services_stay_known_and_ours_is_there_once() -> None:
    once = hadoop_conf.settings("http://127.0.0.1:4000", "x", 240, "mine, theirs")
    assert once["dfs.nameservices"] == "mine,theirs,bookkeeper-checkpoints"
    again = hadoop_conf.settings("http://127.0.0.1:4001", "x", 240, once["dfs.nameservices"])
    assert again["dfs.nameservices"] == once["dfs.nameservices"]
    assert again["dfs.namenode.http-address.bookkeeper-checkpoints.gateway"] == "127.0.0.1:4001"
    assert again["dfs.webhdfs.socket.read-timeout"] == "240000ms" and again["dfs.http.client.failover.max.attempts"] == "0"


def test_another_webhdfs_with_oauth_is_not_broken() -> None:
    theirs = {hadoop_conf.OAUTH: "true", "dfs.webhdfs.oauth2.client.id": "theirs"}
    with pytest.raises(InvalidArgumentError, match="for a WebHDFS that is not ours"):
        hadoop_conf.check(theirs)
    hadoop_conf.check({})
    hadoop_conf.check(hadoop_conf.settings("http://127.0.0.1:4000", "x", 240))


@pytest.mark.parametrize(
    ("context", "host", "bind", "expected"),
    [
        (Context("local[2]", host="192.0.2.7"), None, None, ("127.0.0.1", "127.0.0.1")),
        (Context("local", host="192.0.2.7"), None, None, ("127.0.0.1", "127.0.0.1")),
        (Context("local[2]", host="192.0.2.7"), None, "0.0.0.0", ("0.0.0.0", "192.0.2.7")),
        (Context("local-cluster[2,1,1024]", host="192.0.2.7"), None, None, ("192.0.2.7", "192.0.2.7")),
        (Context("spark://master:7077", host="driver", bindAddress="0.0.0.0"), None, None, ("0.0.0.0", "driver")),
        (Context("yarn", host="driver", bindAddress="10.0.0.1"), "outside", "10.0.0.2", ("10.0.0.2", "outside")),
    ],
)
def test_tasks_find_the_driver_where_spark_says(context: Any, host: str | None, bind: str | None, expected: tuple[str, str]) -> None:
    assert _addresses(context, host, bind) == expected


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"name": 7}, ArgumentTypeError, "name"),
        ({"name": "a/b"}, InvalidArgumentError, "letters, digits"),
        ({"name": "../x"}, InvalidArgumentError, "letters, digits"),
        ({"patience_s": 0}, InvalidArgumentError, "patience_s"),
        ({"port": 70_000}, InvalidArgumentError, "port"),
        ({"password": 57}, ArgumentTypeError, "password"),
        ({}, ArgumentTypeError, "spark must be the SparkSession of the driver, not of type object"),
    ],
)
def test_arguments_are_looked_at_before_anything_is_done(given: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told) as caught:
        checkpoint_location(object(), **{"name": "x", **given})
    assert "57" not in str(caught.value)


class Opened:
    """An application with a checkpoint that is open."""

    def __init__(self, **asked: Any) -> None:
        self.asked = {"x": asked}
        self.gateway = SimpleNamespace(files={"x": SimpleNamespace(store=SimpleNamespace(is_open=True))})


def test_a_checkpoint_that_is_being_closed_is_opened_behind_that() -> None:
    """Else it would be taken over from itself."""
    waited: list[str] = []
    application: Any = SimpleNamespace(gateway=SimpleNamespace(files={}, close_files=waited.append), asked={})
    assert not _is_open_here(application, "x", {}) and waited == ["x"]


@pytest.mark.parametrize(
    "other", [{"password": b"hush2"}, {"protocol": "v3"}, {"patience_s": 5}, {"take_over": False}, {"ensemble_size": 5}]
)
def test_an_open_checkpoint_is_not_opened_with_other_options(other: dict[str, Any]) -> None:
    asked = {"uri": "zk://a/l", "password": b"hush1", "protocol": "v2", "patience_s": None, "take_over": True}
    application: Any = Opened(**asked)
    assert _is_open_here(application, "x", dict(asked))
    with pytest.raises(InvalidArgumentError, match=rf"with other options \({next(iter(other))}\)") as caught:
        _is_open_here(application, "x", {**asked, **other})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ReadTimeoutError("a read of ledger 22 did not finish in time", ledger=22), "checkpoint 'x' cannot be opened: a read of ledger 22"),
        (
            NotEnoughBookiesError("2 of 3 bookies"),
            "checkpoint 'x' cannot be opened: 2 of 3 bookies. The sizes asked for are those of a new",
        ),
        (NoSuchFileStoreError("there is no file store 'x'"), "there is no checkpoint 'x'"),
        (InvalidArgumentError("ack_quorum_size 4 is above 3"), "ack_quorum_size 4 is above 3"),
        (OperationTimeoutError("it took too long"), "checkpoint 'x' cannot be opened: it took too long"),
    ],
)
def test_an_open_that_fails_names_the_checkpoint(error: BkError, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user knows the name, and no ledger's number."""

    def fail(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(location, "_open", fail)
    application: Any = SimpleNamespace(read_timeout_s=1.0, gateway=SimpleNamespace(is_closing=False), has_ended=lambda: False)
    with pytest.raises(type(error)) as caught:
        location._open_or_leave(application, "x", {}, {"password": b""})
    assert caught.value.args[0].startswith(told) and caught.value.context.items() >= error.context.items()
    assert caught.value.outcome_unknown == error.outcome_unknown and caught.value.__cause__ is error


class Java:
    """Counts the file systems that were asked for, and those that were closed."""

    def __init__(self) -> None:
        self.got = self.closed = 0
        self.properties: dict[str, str] = {}

    def getProperty(self, key: str) -> str | None:  # noqa: N802  # Java's name
        return self.properties.get(key)

    def setProperty(self, key: str, value: str) -> None:  # noqa: N802  # Java's name
        self.properties[key] = value

    def get(self, place: Any, configuration: Any) -> Any:
        self.got += 1
        return self

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *arguments: Any) -> Any:
        return self

    def close(self) -> None:
        self.closed += 1


def test_a_client_that_queries_may_use_is_not_closed_and_none_is_made_to_be_closed() -> None:
    class Configuration(dict[str, str]):
        def set(self, key: str, value: str) -> None:
            self[key] = value

    jvm = Java()
    hadoop_conf.apply(jvm, Configuration(), "http://127.0.0.1:4000", "x", 600, forget=True)
    assert jvm.got == 0  # it would load Hadoop's classes for nothing
    configuration = Configuration()  # of another SparkContext; clients are the JVM's
    hadoop_conf.apply(jvm, configuration, "https://127.0.0.1:4000", "x", 600, forget=True)
    assert jvm.got == 0  # of the other scheme
    hadoop_conf.apply(jvm, configuration, "http://127.0.0.1:4000", "x", 600, forget=True)
    assert jvm.got == jvm.closed == 1
    hadoop_conf.apply(jvm, configuration, "http://127.0.0.1:4000", "x", 900, forget=False)
    assert jvm.closed == 1 and configuration["dfs.webhdfs.socket.read-timeout"] == "900000ms"


def test_the_package_exports_it_without_loading_it() -> None:
    assert bk_spark.checkpoint_location is checkpoint_location and "checkpoint_location" in bk_spark.__all__
    program = "import sys, bk_spark; print([name for name in sys.modules if name.startswith('bk_spark.checkpoint')])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("webhdfs://bookkeeper-checkpoints/flights", "is the place of a checkpoint, not its name: give 'flights'$"),
        ("swebhdfs://bookkeeper-checkpoints/flights/", "is the place of a checkpoint, not its name: give 'flights'$"),
        ("webhdfs://bookkeeper-checkpoints/flights/a/b", "give 'flights', and put /a/b behind the place that checkpoint_location returns"),
        ("webhdfs://bookkeeper-checkpoints/", "is the place of a checkpoint, not its name: give a name such as 'flights'$"),
        ("bk://flights", "bk://flights is the place of a checkpoint, not its name: give 'flights'$"),
        ("bk://flights/a", "give 'flights', and put /a behind the place"),
        ("bk://", "bk:// is a place, and not the name of a checkpoint in ledgers: give a name such as 'flights'"),
        ("webhdfs://other/flights", "webhdfs://other/flights is a place, and not the name of a checkpoint in ledgers"),
        ("hdfs://namenode/flights", "is a place, and not the name .* is given that place itself, without bk_spark"),
        ("s3a://bucket/flights", "is a place, and not the name"),
        ("file:/tmp/x", "is a place, and not the name"),
        ("/tmp/x", "/tmp/x is a place, and not the name"),
        ("hdfs://[x/flights", "is a place, and not the name"),
        ("a b", "checkpoint name 'a b': use letters"),
        ("", "checkpoint name '': use letters"),
    ],
)
def test_a_name_that_is_none_is_told_so_when_opening_and_closing(name: str, told: str) -> None:
    for call in (checkpoint_location, close):
        with pytest.raises(InvalidArgumentError, match=told):
            call(object(), name)


def test_a_name_in_the_place_of_the_session_is_told_so() -> None:
    for call in (checkpoint_location, close):
        with pytest.raises(ArgumentTypeError, match=r"name must be .*\(spark comes first, the name behind it\).*, not of type object"):
            call("flights", object())


class Connect:
    """A session of Spark Connect: it has no SparkContext."""

    __module__ = "pyspark.sql.connect.session"

    @property
    def sparkContext(self) -> Any:  # noqa: N802  # Spark's name
        raise AttributeError("not there")


STOPPED = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))


@pytest.mark.parametrize(
    ("session", "error", "told"),
    [
        (None, ArgumentTypeError, "the SparkSession of the driver, not None: SparkSession.builder.getOrCreate.. gives it in the driver"),
        (7, ArgumentTypeError, "the SparkSession of the driver, not of type int"),
        ("flights", ArgumentTypeError, "the SparkSession of the driver, not of type str"),
        (Connect(), InvalidArgumentError, "a session of Spark Connect's client, .* which is elsewhere"),
        (
            STOPPED,
            InvalidArgumentError,
            "this session was stopped, and the gateway of its checkpoints has ended with it: take one that runs",
        ),
    ],
)
def test_each_wrong_session_is_told_in_its_own_words(session: Any, error: type[Exception], told: str) -> None:
    calls: list[Any] = [lambda: checkpoint_location(session, "flights", uri="zk://localhost/ledgers")]
    for call in calls if session is STOPPED else [*calls, lambda: close(session)]:
        with pytest.raises(error, match=told) as caught:
            call()
        assert ("Connect" in str(caught.value)) == isinstance(session, Connect)


def test_the_end_of_the_process_closes_gateways_behind_what_the_program_does_then() -> None:
    program = """
import atexit, os
from types import SimpleNamespace
import bk_core
atexit.register(lambda: print("program"))
from bk_spark.checkpoint import location
gateway = SimpleNamespace(close=lambda: print("gateway"))
location._applications[0] = SimpleNamespace(pid=os.getpid(), gateway=gateway)
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["program", "gateway"], ended.stderr


def test_closing_what_is_not_open_does_nothing() -> None:
    close(STOPPED)
    close(STOPPED, "flights")
    close(SimpleNamespace(sparkContext=Context("local")))


def test_closing_a_name_that_was_never_opened_is_a_mistake() -> None:
    made = application()
    session = SimpleNamespace(sparkContext=made.context)
    try:
        with pytest.raises(InvalidArgumentError, match="no checkpoint 'flights' to close.* open here: none is$"):
            close(session, "flights")
        _applications[id(made.context)] = made
        for name in ("flights", "delays"):
            made.asked[name] = {}
            made.gateway.files[name] = CheckpointFiles(MemoryFiles(), 10)
        for _ in range(2):
            close(session, "delays")
        with pytest.raises(
            InvalidArgumentError, match=r"no checkpoint 'fligths' to close.* open here: 'flights'\. Did you mean 'flights'\?"
        ):
            close(session, "fligths")
        assert list(made.gateway.files) == ["flights"]
    finally:
        made.gateway.close()
    assert made not in _applications.values()


def application(master: str = "local[2]", **where: Any) -> _Application:
    where = {"host": None, "bind_address": None, "port": 0, "tls": None} | where
    return _Application(Context(master), "127.0.0.1", where["port"], "127.0.0.1", where)


def test_where_the_gateway_listens_is_decided_once() -> None:
    made = application(host="driver")
    try:
        made.check_where({"host": "driver", "bind_address": None, "port": 0, "tls": None})
        made.check_where({"host": None, "bind_address": None, "port": 0, "tls": None})
        with pytest.raises(InvalidArgumentError, match=r"host cannot change: .*\. Give it in that call$"):
            made.check_where({"host": "other", "bind_address": None, "port": 0, "tls": None})
        with pytest.raises(InvalidArgumentError, match=r"bind_address, port cannot change: the first checkpoint_location.* Give them in"):
            made.check_where({"host": "driver", "bind_address": "0.0.0.0", "port": 4000, "tls": None})
    finally:
        made.gateway.close()


@pytest.mark.parametrize(("master", "is_refused"), [("local[2]", False), ("local-cluster[1,1,1024]", True), ("yarn", True)])
def test_a_later_checkpoint_has_no_more_patience_than_clients_that_are_kept(master: str, is_refused: bool) -> None:
    made = application(master)
    try:
        made.check_wait(9000, 900)
        made.read_timeout_s = READ_TIMEOUT_MIN_S
        made.check_wait(READ_TIMEOUT_MIN_S, 300)
        made.gateway.files["first"] = CheckpointFiles(MemoryFiles(), 10)
        with pytest.raises(InvalidArgumentError, match="patience_s=900 is more than Spark's clients wait for .3600 s"):
            made.check_wait(9000, 900)
        made.gateway.files.clear()
        if is_refused:  # the JVMs of the executors keep theirs
            with pytest.raises(InvalidArgumentError, match="Open the one with the most patience first"):
                made.check_wait(9000, 900)
        else:
            made.check_wait(9000, 900)
    finally:
        made.gateway.close()
