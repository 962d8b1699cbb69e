"""SASL DIGEST-MD5 to bookies: what is said, and what is taken for a proof (wire-protocol.md 10.3)."""

from __future__ import annotations

import hashlib
import pickle
import re
import sys
from typing import Any

import pytest

import bk_core
from bk_core import BookieSasl, SecretFile, Security
from bk_core.errors import BookieAuthError, InvalidArgumentError, MissingPackageError, SecretUnavailableError
from bk_core.net.entering import prepare
from bk_core.sasl import DigestMd5

CHALLENGE = b'realm="bookkeeper",nonce="n0nce",qop="auth",charset=utf-8,algorithm=md5-sess'


def of(data: bytes) -> bytes:
    return hashlib.md5(data).hexdigest().encode()


def digest(user: bytes, password: bytes, cnonce: bytes, what: bytes) -> bytes:
    """RFC 2831, 2.1.2.1, written down once more."""
    secret = of(hashlib.md5(user + b":bookkeeper:" + password).digest() + b":n0nce:" + cnonce)
    return of(secret + b":n0nce:00000001:" + cnonce + b":auth:" + of(what + b"bookkeeper/bookkeeper"))


@pytest.mark.parametrize(("user", "password"), [("bookkeeper-ann", "moss-3310"), ("bookkeeper-zoë", "mößs")])
def test_the_response_is_that_of_the_rfc_and_the_proof_is_checked(user: str, password: str) -> None:
    exchange = DigestMd5(user, password)
    assert exchange.plugin == "sasl" and exchange.first() == b"" and not exchange.done
    response = exchange.answer(CHALLENGE)
    assert response is not None
    found = dict(re.findall(rb'([a-z-]+)="?([^",]*)"?', response))
    assert found[b"digest-uri"] == b"bookkeeper/bookkeeper" and found[b"nc"] == b"00000001" and found[b"qop"] == b"auth"
    name, secret = user.encode("latin-1"), password.encode("latin-1")
    assert found[b"username"] == name and found[b"response"] == digest(name, secret, found[b"cnonce"], b"AUTHENTICATE:")
    assert not exchange.done
    assert exchange.answer(b"rspauth=" + digest(name, secret, found[b"cnonce"], b":")) is None and exchange.done


@pytest.mark.parametrize("proof", [b"rspauth=" + b"0" * 32, b"rspauth="])
def test_a_bookie_that_does_not_know_the_password_is_found_out(proof: bytes) -> None:
    exchange = DigestMd5("ann", "moss-3310")
    exchange.answer(CHALLENGE)
    with pytest.raises(BookieAuthError, match="proof is not that of one which knows the password of user 'ann': it may be another") as told:
        exchange.answer(proof)
    assert "moss" not in str(told.value) and not exchange.done


def test_a_proof_before_a_challenge_proves_nothing() -> None:
    exchange = DigestMd5("ann", "moss-3310")
    with pytest.raises(Exception):  # noqa: B017 - of pure-sasl, whatever it is
        exchange.answer(b"rspauth=" + b"0" * 32)
    assert not exchange.done


def test_secrets_are_in_no_repr_and_files_of_them_in_no_pickle(tmp_path: Any) -> None:
    file = tmp_path / "secret"
    assert "moss" not in f"{BookieSasl('ann', 'moss-3310')!r} {DigestMd5('ann', 'moss-3310')!r} {Security(auth=BookieSasl('a', 'moss'))!r}"
    assert str(DigestMd5("ann", "moss")) == "SASL user 'ann'"
    file.write_text("moss-3310\n")
    auth = BookieSasl("ann", SecretFile(str(file)))
    assert b"moss" not in pickle.dumps(Security(auth=auth)) and pickle.loads(pickle.dumps(auth)) == auth


class Own:
    """A program's own way; its exchange is of no matter here."""

    def exchange(self, host: str) -> Any:
        raise KeyError(f"moss-3310 for {host}")


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: BookieSasl("", "x"), InvalidArgumentError, "needs user and password"),
        (lambda: BookieSasl("ann", ""), InvalidArgumentError, "needs user and password"),
        (lambda: BookieSasl("ann", 5), InvalidArgumentError, "password must be text, bytes or a function"),  # type: ignore[arg-type]
        (lambda: Security(auth="ann"), InvalidArgumentError, "auth must be BookieSasl"),  # type: ignore[arg-type]
        (
            lambda: bk_core.connect("memory://x", security=Security(auth=BookieSasl("ann", "\u2603"))),
            InvalidArgumentError,
            "only have characters of ISO-8859-1",
        ),
        (
            lambda: bk_core.connect("memory://x", security=Security(auth=BookieSasl("ann", SecretFile("/absent")))),
            SecretUnavailableError,
            "/absent",
        ),
        (lambda: bk_core.connect("memory://x", security=Security(auth=Own())), KeyError, "moss-3310 for "),
    ],
)
def test_what_can_never_work_is_told_before_anything_is_asked(make: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as told:
        make()
    assert "\u2603" not in str(told.value)


def test_later_a_failure_of_a_program_is_told_without_its_words() -> None:
    with pytest.raises(bk_core.errors.BookieAuthError, match=r"no authentication at bookie b: .* failed \(KeyError\)") as told:
        prepare(Security(auth=Own()), "b", "h")
    assert "moss" not in str(told.value) and told.value.__context__ is None


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "puresasl", None)
    with pytest.raises(MissingPackageError, match="SASL to bookies needs pure-sasl"):
        BookieSasl("ann", "x").exchange("h")
