"""Metadata stores: where ledgers, logs, bookies and cookies are recorded."""

from __future__ import annotations

from typing import TypedDict

from bk_core.arguments import POSITIVE_SECONDS, checked
from bk_core.errors import InvalidArgumentError
from bk_core.metadata.access import (
    METADATA_AUTH,
    EtcdAuth,
    MetadataAuth,
    MetadataTls,
    ZooKeeperAuth,
    etcd_auth_of,
    tls_of,
    zookeeper_auth_of,
)
from bk_core.metadata.memory import MemoryStore
from bk_core.metadata.store import BookieView, MetadataStore, Registration, RegistryWatch, Version, Versioned, Watch
from bk_core.metadata.uri import APACHE, StoreUri, joined_hosts, parse

__all__ = [
    "BookieView",
    "EtcdAuth",
    "MetadataStore",
    "MetadataTls",
    "Registration",
    "RegistryWatch",
    "Version",
    "Versioned",
    "Watch",
    "ZooKeeperAuth",
    "open_store",
]


@checked(timeout_s=POSITIVE_SECONDS, auth=METADATA_AUTH)
def open_store(
    uri: str,
    *,
    timeout_s: float = 10.0,
    log_root: str | None = None,
    patient: bool = False,
    auth: MetadataAuth | None = None,
    tls: MetadataTls | None = None,
) -> MetadataStore:
    """The store that ``uri`` names (metadata.md 1.1).

    ``memory://name`` is shared by all that open the same name within this process. ``zk://h1:2181;h2:2181/ledgers`` is ZooKeeper with
    the ledgers root ``/ledgers``; ``zk+hierarchical``, ``zk+longhierarchical`` and ``zk+flat`` also demand that layout. Hosts may be
    separated by ``;`` or ``,``. Query: ``chroot=/x`` puts everything below ``/x``; ``session_timeout_ms`` is the ZooKeeper session's;
    ``log_root=/x`` is where logs live, unless ``log_root`` says so. ``zk+tls://`` (and ``zk+tls+flat://``) is ZooKeeper by TLS, at port
    2281 where none is named. ``auth`` is who this client is at ZooKeeper, ``tls`` is about the certificates; without it those of the system
    are trusted. Both may stand in the query as well (docs/site/pages/guides/secrets.md has the list), with the names of files for all
    that is secret. The files are read in each process that opens the store. Options that begin with ``bookie_`` are about the connections
    to bookies, and of no matter here.

    ``etcd://h1:2379;h2:2379/ledgers`` is etcd with the same paths as keys, as Pulsar keeps them, and the same options and suffixes, at port
    2379 in any case. Its identity is an EtcdAuth: ``user``, and ``password_file`` or the variable BK_ETCD_PASSWORD. It needs the package
    grpcio (``pip install "bk-spark[etcd]"``), or MissingPackageError says so.

    ``etcd+apache://h1:2379/scope`` (and ``etcd+tls+apache://``) is etcd with the keys of Apache BookKeeper's own driver. ``bookies`` in
    the query names those that count as writable although they are not registered: ``host:port`` of each, or ``cookies`` for all that have
    a cookie; with that driver bookies may lose their registration while they serve (metadata.md 6.1).

    No call on the store takes much longer than ``timeout_s``; only here a function for a secret is called on this very thread, for as long
    as it takes. By default logs live beside the ledgers root, at ``<ledgers root>-logs``;
    clusters that have logs at ``bk-logs``, the default of earlier versions, keep them there (OWN-8). Raises InvalidArgumentError,
    MetadataUnavailableError, LayoutMismatchError; MetadataAuthError, MetadataDeniedError, MetadataTlsError and MetadataHostNameError of
    servers that do not take this client, or that this client does not trust.

    MetadataUnavailableError says of each address what is the matter with it; where all refuse or are unknown, it comes at once, unless
    ``patient``, which waits for a store that is starting again (SES-11).
    """
    found = parse(uri)
    if found.driver == "memory":
        if auth is not None or tls is not None:
            raise InvalidArgumentError(f"{found.shown!r} is no ZooKeeper and no etcd: it takes neither credentials nor TLS")
        return MemoryStore(found.hosts)
    auth, tls = _access(found, auth, tls)
    of_all = _OfAll(
        root=found.root,
        chroot=found.options.get("chroot", ""),
        manager=found.layout,
        timeout_s=timeout_s,
        session_timeout_s=found.session_timeout_s,
        log_root=log_root or found.options.get("log_root"),
        patient=patient,
        tls=tls,
    )
    if isinstance(auth, EtcdAuth) or found.driver == "etcd":
        from bk_core.metadata.etcd.apache import ApacheEtcdStore  # grpcio is needed only here
        from bk_core.metadata.etcd.store import EtcdStore

        assert auth is None or isinstance(auth, EtcdAuth)
        if found.layout == APACHE:
            return ApacheEtcdStore(hosts=found.hosts, auth=auth, bookies=found.bookies, **of_all)
        return EtcdStore(hosts=found.hosts, auth=auth, **of_all)
    from bk_core.metadata.zookeeper.probe import TLS_PORT
    from bk_core.metadata.zookeeper.store import ZooKeeperStore  # kazoo is needed only here

    hosts = found.hosts if tls is None else joined_hosts(found.hosts, TLS_PORT)
    return ZooKeeperStore(hosts=hosts, auth=auth, **of_all)


class _OfAll(TypedDict):
    root: str
    chroot: str
    manager: str | None
    timeout_s: float
    session_timeout_s: float
    log_root: str | None
    patient: bool
    tls: MetadataTls | None


def _access(uri: StoreUri, auth: MetadataAuth | None, tls: MetadataTls | None) -> tuple[MetadataAuth | None, MetadataTls | None]:
    """Return the identity and the certificates that hold, of the URI or of the arguments."""
    found_auth = etcd_auth_of(uri.options) if uri.driver == "etcd" else zookeeper_auth_of(uri.options)
    found_tls = tls_of(uri.options)
    if (auth is not None and found_auth is not None) or (tls is not None and found_tls is not None):
        raise InvalidArgumentError("identity and certificates stand in the URI or beside it, not in both")
    auth, tls = auth or found_auth, tls or found_tls
    if auth is not None and isinstance(auth, EtcdAuth) != (uri.driver == "etcd"):
        wanted = "EtcdAuth" if uri.driver == "etcd" else "ZooKeeperAuth"
        raise InvalidArgumentError(f"{uri.shown!r} takes an identity of the class {wanted}, not {type(auth).__name__}")
    if tls is not None and not uri.by_tls:
        raise InvalidArgumentError(
            f"{uri.shown!r} is without TLS, but certificates are given: write {uri.driver}+tls://, or leave them out"
        )
    if isinstance(auth, ZooKeeperAuth) and auth.scheme == "x509" and (tls is None or (tls.cert is None and tls.key_store is None)):
        raise InvalidArgumentError("scheme='x509' needs the client certificate of MetadataTls (cert or key_store) and a URI with zk+tls://")
    return auth, (tls or MetadataTls()) if uri.by_tls else None
