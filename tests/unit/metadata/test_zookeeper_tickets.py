"""Kerberos to ZooKeeper as far as it goes without a KDC. ``make kerberos`` plays the rest at a real ZooKeeper."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest

from bk_core.errors import BookieKerberosError, InvalidArgumentError, MetadataAuthError
from bk_core.metadata.access import ZooKeeperAuth, tls_of, zookeeper_auth_of
from bk_core.metadata.zookeeper import tickets
from tests.unit.link.test_gssapi_recorded import CHOICE, OFFER, PROOF, TICKET, Recorded

client = pytest.importorskip("puresasl.client")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"user": "ann"}, "takes neither user nor password"),
        ({"password": "x"}, "takes neither user nor password"),
        ({"keytab": "/k"}, "needs the principal that the keytab is for"),
        ({"principal": "ann", "keytab": "/k", "ticket_cache": "FILE:/t"}, "by a keytab or from a ticket_cache, not both"),
        ({"ticket_cache": ""}, "must not be empty"),
        ({"service": "zookeeper/host"}, "service is the part of a principal before its slash"),
        ({"keytab": 5}, "keytab must be a path as text"),
        ({"scheme": "x509", "principal": "ann"}, "principal means nothing without scheme='kerberos'"),
        ({"scheme": "sasl", "user": "a", "password": "b", "service": "s"}, "service means nothing without scheme='kerberos'"),
    ],
)
def test_what_says_no_source_of_tickets_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        ZooKeeperAuth(**{"scheme": "kerberos", **fields})


def test_the_uri_names_files() -> None:
    query = {"auth": "kerberos", "principal": "ann@R", "keytab_file": "/k", "service": "zk", "acl": "creator"}
    auth = zookeeper_auth_of(query)
    assert auth == ZooKeeperAuth("kerberos", principal="ann@R", keytab="/k", service="zk", acl="creator")
    assert pickle.loads(pickle.dumps(auth)) == auth and str(auth) == "Kerberos ticket of ann@R by the keytab /k"
    assert str(zookeeper_auth_of({"auth": "kerberos"})) == "Kerberos ticket in the default ticket cache"


def test_what_a_uri_lacks_is_told_by_its_options() -> None:
    with pytest.raises(InvalidArgumentError, match="the URI needs the principal that the keytab_file is for"):
        zookeeper_auth_of({"auth": "kerberos", "keytab_file": "/k"})
    with pytest.raises(InvalidArgumentError, match="key_file and key_password_file mean nothing without cert_file"):
        tls_of({"key_file": "/k"})
    with pytest.raises(InvalidArgumentError, match="tls_minimum must be one of"):
        tls_of({"tls_minimum": "1.1"})


@dataclass(frozen=True)
class Tickets:
    """The identity of an exchange that was recorded at a bookie, whose tokens are the same at ZooKeeper."""

    service: str = "zookeeper"
    asked: list[str] = field(default_factory=list)
    failure: str = ""

    def begin(self, host: str, peer: str) -> Any:
        from bk_core.protocol.link.gssapi_exchange import GssapiExchange

        self.asked.append(host)
        if self.failure:
            raise BookieKerberosError(self.failure)
        return GssapiExchange("ann@R", f"{self.service}/{host}", Recorded(), TICKET, peer)


def begun(identity: Tickets) -> Any:
    return client.SASLClient(host="zoo1", **tickets.options(identity))  # type: ignore[arg-type]  # stands for one with a KDC


def test_what_was_said_is_said_by_the_library_of_kazoo() -> None:
    identity = Tickets()
    exchange = begun(identity)
    assert exchange.process(None) == TICKET and not exchange.complete
    assert exchange.process(PROOF) == b"" and not exchange.complete
    assert exchange.process(OFFER) == CHOICE and exchange.complete
    exchange.dispose()
    assert identity.asked == ["zoo1"]


def test_a_server_without_the_key_is_refused() -> None:
    exchange = begun(Tickets())
    exchange.process(None)
    with pytest.raises(BookieKerberosError, match="gives no proof"):
        exchange.process(PROOF[:-1] + b"?")
    assert not exchange.complete


def test_a_server_that_wants_a_password_is_told_apart() -> None:
    exchange = begun(Tickets())
    exchange.process(None)
    with pytest.raises(BookieKerberosError, match="ZooKeeper wants a password"):
        exchange.process(b'realm="zk",nonce="1234"')


def test_no_ticket_is_the_error_of_the_metadata_store() -> None:
    with pytest.raises(MetadataAuthError, match="no connection to ZooKeeper was tried: there is no ticket"):
        tickets.check(Tickets(failure="there is no ticket"))  # type: ignore[arg-type]
    with pytest.raises(BookieKerberosError, match="there is no ticket"):
        begun(Tickets(failure="there is no ticket"))
