"""The options of a URI about the connections to bookies."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import BookieKerberos, BookieSasl, BookieTls, MetadataTls, SecretFile, Security
from bk_core.config import ClientConfig
from bk_core.errors import InvalidArgumentError, KeyStoreError, MetadataUnavailableError
from bk_core.metadata import open_store, secured
from bk_core.metadata.access import tls_of
from bk_core.protocol.session.reach import AT_ODDS, Reach
from bk_core.secrets import SecretVariable
from bk_core.security import URI_OPTIONS, security_of
from tests.integration.secured_zookeeper import Authority

STORES = Security(BookieTls(key_store="/k", key_store_password=SecretFile("/p"), trust_store="/t", trust_store_password=SecretFile("/q")))
NOWHERE = "zk://127.0.0.1:1/ledgers"


@pytest.mark.parametrize(
    ("query", "security"),
    [
        ("", None),
        ("chroot=/a", None),
        ("bookie_tls=true", Security(BookieTls())),
        ("bookie_ca_file=/a%20b.pem", Security(BookieTls("/a b.pem"))),
        (
            "bookie_cert_file=/c&bookie_key_file=/k&bookie_key_password_file=/p&bookie_verify_host=false",
            Security(BookieTls(None, "/c", "/k", SecretFile("/p"), False)),
        ),
        ("bookie_tls_minimum=1.3", Security(BookieTls(minimum="1.3"))),
        ("bookie_user=ann&bookie_password_file=/p", Security(auth=BookieSasl("ann", SecretFile("/p")))),
        ("bookie_user=ann", Security(auth=BookieSasl("ann", SecretVariable("BK_BOOKIE_PASSWORD")))),
        ("bookie_principal=bookkeeper-ann&bookie_keytab_file=/k", Security(auth=BookieKerberos("bookkeeper-ann", "/k"))),
        ("bookie_ticket_cache=FILE:/t&bookie_service=ledgers", Security(auth=BookieKerberos(None, None, "FILE:/t", "ledgers"))),
        ("bookie_ca_file=/a&bookie_kerberos=true", Security(BookieTls("/a"), BookieKerberos())),
        (
            "bookie_key_store_file=/k&bookie_key_store_password_file=/p&bookie_trust_store_file=/t&bookie_trust_store_password_file=/q",
            Security(
                BookieTls(key_store="/k", key_store_password=SecretFile("/p"), trust_store="/t", trust_store_password=SecretFile("/q"))
            ),
        ),
        ("bookie_ca_file=/a&bookie_user=ann&user=bob", Security(BookieTls("/a"), BookieSasl("ann", SecretVariable("BK_BOOKIE_PASSWORD")))),
    ],
)
def test_it_names_files(query: str, security: Security | None) -> None:
    uri = f"{NOWHERE}?{query}" if query else NOWHERE
    assert security_of(uri) == security and ClientConfig(uri).bookie_security == security


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("bookie_tls=yes", "bookie_tls must be true or false"),
        ("bookie_tls=false", "bookie_tls=false says nothing"),
        ("bookie_verify_host=0", "bookie_verify_host must be true or false"),
        ("bookie_key_file=/k", "bookie_key_file and bookie_key_password_file mean nothing without bookie_cert_file"),
        ("bookie_cert_file=/c&bookie_key_store_file=/k", "bookie_cert_file is a file of PEM and bookie_key_store_file one of PKCS#12"),
        ("bookie_ca_file=/c&bookie_trust_store_file=/k", "bookie_ca_file is a file of PEM and bookie_trust_store_file one of PKCS#12"),
        ("bookie_password_file=/p", "means nothing without bookie_user"),
        ("bookie_usr=ann&bookie_password_file=/p", "unknown option 'bookie_usr'; did you mean 'bookie_user'"),
        ("bookie_key_password_file=/p&bookie_kye_file=/k", "unknown option 'bookie_kye_file'; did you mean 'bookie_key_file'"),
        ("bookie_user=ann&bookie_password=moss-3310", "a URI never holds a password"),
        ("bookie_ca_file=/absent.pem", "ca of BookieTls, /absent.pem, cannot be used"),
        ("bookie_ca_file=", "the option 'bookie_ca_file' of the URI has no value"),
        ("bookie_tls_minimum=1.1", "bookie_tls_minimum must be one of 1.2, 1.3, not '1.1'"),
        ("bookie_kerberos=false", "bookie_kerberos=false says nothing"),
        ("bookie_kerberos=1", "bookie_kerberos must be true or false"),
        ("bookie_keytab_file=/k", "the URI needs the bookie_principal that the bookie_keytab_file is for"),
        (
            "bookie_principal=ann&bookie_keytab_file=/k&bookie_ticket_cache=c",
            "by a bookie_keytab_file or from a bookie_ticket_cache, not both",
        ),
        ("bookie_service=bk@R", "bookie_service is the part of a principal before its slash"),
        ("bookie_user=ann&bookie_principal=ann", "take one of them"),
        ("bookie_trust_store_password_file=/p", "bookie_trust_store_password_file means nothing without bookie_trust_store_file"),
        ("bookie_trust_store_file=/absent.p12", "trust_store of BookieTls, '/absent.p12', cannot be used"),
        ("bookie_trust_store_password=moss-3310", "a URI never holds a password"),
        ("bookie_caa_file=/a", "unknown option 'bookie_caa_file'; did you mean 'bookie_ca_file'"),
        ("bookie_cert=/a", "unknown option 'bookie_cert'; did you mean 'bookie_cert_file'"),
        ("bookie_colour=red", "unknown option 'bookie_colour'; there are bookie_tls, bookie_ca_file, .*, bookie_password_file$"),
        ("bookie_password=moss-3310", "name a file, bookie_password_file=PATH"),
    ],
)
def test_what_can_never_work_is_told_before_anything_is_asked(query: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BK_BOOKIE_PASSWORD", "x")
    with pytest.raises(InvalidArgumentError, match=text) as told:
        bk_core.connect(f"{NOWHERE}?{query}")
    assert "moss" not in str(told.value)


def test_it_stands_in_one_place() -> None:
    with pytest.raises(InvalidArgumentError, match="in the URI or beside it, not in both"):
        bk_core.connect(f"{NOWHERE}?bookie_tls=true", security=Security(BookieTls()))


def test_whoever_opens_the_store_alone_lets_them_pass() -> None:
    options: Any = "&".join(f"{name}=true" for name in URI_OPTIONS)
    with pytest.raises(MetadataUnavailableError):
        open_store(f"{NOWHERE}?{options}", timeout_s=1)


@pytest.mark.parametrize("made", [BookieTls, MetadataTls])
@pytest.mark.parametrize("name", ["ca", "cert", "key", "key_store", "trust_store"])
def test_an_empty_path_is_none(made: Any, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name} must be the path of a file, not empty"):
        made(**{name: ""})


def test_the_certificate_of_x509_may_stand_in_a_key_store() -> None:
    for query, kind, text in (
        ("key_store_file=/absent.p12", KeyStoreError, "key_store of MetadataTls, '/absent.p12', cannot be used"),
        ("ca_file=/a", InvalidArgumentError, "client certificate of MetadataTls .cert or key_store."),
    ):
        with pytest.raises(kind, match=text):
            open_store(f"zk+tls://127.0.0.1:1/ledgers?auth=x509&{query}", timeout_s=1)


def test_the_lowest_version_to_a_metadata_store_stands_in_the_uri_too() -> None:
    found = tls_of({"tls_minimum": "1.3"})
    assert found == MetadataTls(minimum="1.3") and found.context().minimum_version is ssl.TLSVersion.TLSv1_3
    assert MetadataTls().context().minimum_version is ssl.TLSVersion.TLSv1_2
    for uri, text in (
        ("zk+tls://127.0.0.1:1/ledgers?tls_minimum=1.0", "minimum must be one of 1.2, 1.3, not '1.0'"),
        ("zk://127.0.0.1:1/ledgers?tls_minimum=1.3", "is without TLS, but certificates are given"),
        ("etcd+tls://127.0.0.1:1/ledgers?tls_minimum=1.3", "minimum of MetadataTls cannot be set with etcd"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            open_store(uri, timeout_s=1)


def test_a_server_whose_versions_do_not_fit_is_told_as_such(tmp_path: Path) -> None:
    ca = Authority.made(tmp_path, "ca")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ca.signed("server", ["IP:127.0.0.1"]))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError), context.wrap_socket(listener.accept()[0], server_side=True):
                pass

        server = threading.Thread(target=serve)
        server.start()
        with pytest.raises(ssl.SSLError) as told:
            secured.connect(MetadataTls(ca.certificate, minimum="1.3"), listener.getsockname(), "127.0.0.1", 60.0)
        server.join(60.0)
    reach, words = secured.reach_of(told.value)
    assert reach is Reach.OTHER_TLS and "protocol version" in words and reach in AT_ODDS
