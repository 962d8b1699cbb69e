"""Kerberos to bookies, as far as it goes without a KDC: its fields, what is missing, and what is told. ``make kerberos`` plays the rest."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

import bk_core
from bk_core import BookieKerberos, Security
from bk_core.errors import BookieAuthError, BookieKerberosError, InvalidArgumentError, MissingPackageError
from bk_core.kerberos import words_of
from bk_core.net.entering import prepare


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"keytab": "/k"}, "needs the principal that the keytab is for"),
        ({"principal": "ann", "keytab": "/k", "ticket_cache": "FILE:/t"}, "by a keytab or from a ticket_cache, not both"),
        ({"principal": ""}, "must not be empty"),
        ({"service": "bookkeeper/host"}, "service is the part of a principal before its slash"),
        ({"service": "bookkeeper@R"}, "service is the part of a principal before its slash"),
        ({"service": None}, "service must be text"),
        ({"keytab": 5}, "keytab must be a path as text"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        BookieKerberos(**fields)


def test_it_travels_and_shows_no_secret() -> None:
    auth = BookieKerberos("bookkeeper-ann@BK.TEST", "/etc/bk/ann.keytab")
    assert pickle.loads(pickle.dumps(auth)) == auth
    assert repr(auth) == (
        "BookieKerberos(principal='bookkeeper-ann@BK.TEST', keytab='/etc/bk/ann.keytab', ticket_cache=None, service='bookkeeper')"
    )


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(MissingPackageError, match=r"Kerberos needs the package gssapi, .*pip install 'bk-spark\[kerberos\]'.*libkrb5-dev"):
        bk_core.connect("memory://x", security=Security(auth=BookieKerberos()))


class Failing:
    """A way to authenticate that finds no ticket."""

    def exchange(self, host: str) -> Any:
        raise BookieKerberosError("no Kerberos ticket of ann by the keytab /k: no KDC answers")


def test_what_kerberos_says_of_one_bookie_keeps_its_class() -> None:
    with pytest.raises(BookieKerberosError, match=r"no authentication at bookie b: no Kerberos ticket of ann .*: no KDC answers") as told:
        prepare(Security(auth=Failing()), "b", "h")
    assert isinstance(told.value, BookieAuthError) and not told.value.retriable and told.value.context == {"bookie": "b"}


@dataclass
class GssError(Exception):
    """An error as the package gssapi has them, with the words of the library by code."""

    maj_code: int = 1
    min_code: int = 0
    words: dict[tuple[int, bool], list[bytes]] = field(default_factory=dict)

    def get_all_statuses(self, code: int, is_major: bool) -> list[bytes]:
        return self.words[code, is_major]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({(0, False): [b"Cannot contact any KDC "], (1, True): [b"Unspecified failure"]}, "Cannot contact any KDC"),
        ({(0, False): [b"Success"], (1, True): [b"A token was invalid"]}, "A token was invalid"),
        ({(0, False): [b"Unknown error"], (1, True): [b""]}, "GssError"),
        ({}, "GssError"),
    ],
)
def test_the_words_of_the_library_are_those_that_say_something(words: Any, told: str) -> None:
    assert words_of(GssError(words=words)) == told
