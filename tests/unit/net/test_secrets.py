"""Functions of a program that are to return a secret and do not: the class of what they raise is told at once, and nothing of its words."""

from __future__ import annotations

import logging
import pickle
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from bk_core import BookieSasl, BookieTls, MetadataTls, Security
from bk_core.errors import BkError, BookieSecurityError, LedgerClosedError, SecretUnavailableError
from bk_core.metadata import secured
from bk_core.metadata.access import EtcdAuth, ZooKeeperAuth
from bk_core.metadata.etcd.link import Link as EtcdLink
from bk_core.metadata.zookeeper.link import Link as ZooKeeperLink
from bk_core.net.entering import prepare
from bk_core.secrets import is_another, revealed, text_of
from tests.integration.secured_zookeeper import Authority

WORDS = "moss-3310"
RAISED = [OSError, KeyError, ValueError, SystemExit, GeneratorExit]


def raising(kind: type[BaseException]) -> Callable[[], bytes]:
    def given() -> bytes:
        raise kind(f"vault: no lease for {WORDS}")

    return given


def everything_of(error: BaseException) -> str:
    """All that a log or another process may get of an error, and what hangs on it."""
    return (
        f"{error!r} {error} {''.join(traceback.format_exception(error))} {pickle.dumps(error)!r} {error.__context__!r} {error.__cause__!r}"
    )


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """An authority, and a certificate with its key."""
    ca = Authority.made(tmp_path_factory.mktemp("ca"), "ca")
    return (ca.certificate, *ca.signed("client"))


@pytest.mark.parametrize("kind", RAISED)
def test_the_words_of_a_function_that_fails_are_left_behind(kind: type[BaseException]) -> None:
    with pytest.raises(SecretUnavailableError, match=rf"the function of the password failed \({kind.__name__}\)") as told:
        revealed("the password", raising(kind))
    assert WORDS not in everything_of(told.value)
    assert not is_another("the password", raising(kind), b"shown")


@pytest.mark.parametrize("given", [b"\xff" + WORDS.encode(), "\udc80" + WORDS])
def test_what_is_no_text_is_not_kept_in_the_error(given: Any) -> None:
    with pytest.raises(SecretUnavailableError) as told:
        text_of("the password", given)
    assert WORDS not in everything_of(told.value)


def test_errors_of_this_project_and_an_interrupt_stay_what_they_are() -> None:
    def closed() -> bytes:
        raise LedgerClosedError("the ledger of secrets is closed")

    def interrupted() -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(LedgerClosedError, match="the ledger of secrets"):
        revealed("the password", closed)
    with pytest.raises(KeyboardInterrupt):
        revealed("the password", interrupted)
    found: list[BaseException] = []

    def elsewhere() -> None:
        try:
            revealed("the password", interrupted)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(60)
    assert isinstance(found[0], SecretUnavailableError)  # no Ctrl-C: that comes to the main thread alone


@pytest.mark.parametrize("kind", RAISED)
def test_at_bookies(kind: type[BaseException], locked: tuple[str, str, str]) -> None:
    tls = BookieTls(locked[0], *locked[1:], key_password=raising(kind))
    for security in (Security(tls=tls), Security(auth=BookieSasl("ann", raising(kind))), Security(auth=_Own(raising(kind)))):
        with pytest.raises(BookieSecurityError, match=rf"failed \({kind.__name__}\)") as told:
            prepare(security, "b", "h")
        assert WORDS not in everything_of(told.value)


class _Own:
    """A program's own way, which fails while it makes an exchange."""

    def __init__(self, fails: Callable[[], bytes]) -> None:
        self._fails = fails

    def exchange(self, host: str) -> Any:
        self._fails()


@pytest.mark.parametrize("kind", RAISED)
def test_a_connection_to_a_metadata_store_by_tls(kind: type[BaseException], locked: tuple[str, str, str]) -> None:
    tls = MetadataTls(locked[0], *locked[1:], key_password=raising(kind))
    with pytest.raises(OSError, match=rf"failed \({kind.__name__}\)") as told:
        secured.connect(tls, ("127.0.0.1", 1), "127.0.0.1", 1.0)
    assert WORDS not in f"{told.value!r} {''.join(traceback.format_exception(told.value))}"


class _Turns:
    """A function that gives a secret once, and fails from then on."""

    def __init__(self, kind: type[BaseException]) -> None:
        self._fails, self._asked = raising(kind), 0

    def __call__(self) -> bytes:
        self._asked += 1
        return b"first" if self._asked == 1 else self._fails()


@pytest.mark.parametrize("kind", RAISED)
def test_reconnects_to_zookeeper(kind: type[BaseException]) -> None:
    link = ZooKeeperLink("127.0.0.1:1", 1.0, lambda connected: None, auth=ZooKeeperAuth("digest", "ann", _Turns(kind)))
    try:
        with pytest.raises(OSError, match="a secret could not be read") as told:
            link._prepare()
        assert isinstance(link._trouble, BkError) and f"({kind.__name__})" in str(link._trouble)
        assert WORDS not in f"{told.value!r} {everything_of(link._trouble)}"
    finally:
        link.close(5.0)


@pytest.mark.parametrize("kind", RAISED)
def test_connections_to_etcd_and_their_log(kind: type[BaseException], tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    store = tmp_path / "trust.p12"
    store.write_bytes(b"\x30\x03\x02\x01\x03")
    caplog.set_level(logging.DEBUG, logger="bk_core")
    failing = [
        EtcdLink("127.0.0.1:1", 1.0, lambda connected: None, auth=EtcdAuth("ann", raising(kind))),
        EtcdLink("127.0.0.1:1", 1.0, lambda connected: None, tls=MetadataTls(trust_store=str(store), trust_store_password=raising(kind))),
    ]
    for link in failing:
        try:
            assert not link._try_server("127.0.0.1", 1)
            assert link._trouble is not None and f"({kind.__name__})" in str(link._trouble)
            assert WORDS not in everything_of(link._trouble)
        finally:
            link.close(5.0)
    assert WORDS not in caplog.text and "no connection to 127.0.0.1:1" in caplog.text
