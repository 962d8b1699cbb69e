"""Metadata stores: where ledgers, logs, bookies and cookies are recorded."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from bk_core.arguments import POSITIVE_SECONDS, checked
from bk_core.errors import InvalidArgumentError
from bk_core.metadata.access import URI_OPTIONS, MetadataTls, ZooKeeperAuth, access_of
from bk_core.metadata.memory import MemoryStore
from bk_core.metadata.store import BookieView, MetadataStore, Registration, Version, Versioned, Watch

__all__ = ["BookieView", "MetadataStore", "MetadataTls", "Registration", "Version", "Versioned", "Watch", "ZooKeeperAuth", "open_store"]

_ZK_MANAGERS = {"": None, "null": None, "hierarchical": "hierarchical", "longhierarchical": "longhierarchical", "flat": "flat"}
_ZK_OPTIONS = ("chroot", "log_root", "session_timeout_ms", *URI_OPTIONS)
_SESSION_TIMEOUT_MS = 10_000


@checked(timeout_s=POSITIVE_SECONDS)
def open_store(
    uri: str,
    *,
    timeout_s: float = 10.0,
    log_root: str | None = None,
    patient: bool = False,
    auth: ZooKeeperAuth | None = None,
    tls: MetadataTls | None = None,
) -> MetadataStore:
    """The store that ``uri`` names (metadata.md 1.1).

    ``memory://name`` is shared by all that open the same name within this process. ``zk://h1:2181;h2:2181/ledgers`` is ZooKeeper with
    the ledgers root ``/ledgers``; ``zk+hierarchical``, ``zk+longhierarchical`` and ``zk+flat`` also demand that layout. Hosts may be
    separated by ``;`` or ``,``. Query: ``chroot=/x`` puts everything below ``/x``; ``session_timeout_ms`` is the ZooKeeper session's;
    ``log_root=/x`` is where logs live, unless ``log_root`` says so. ``zk+tls://`` (and ``zk+tls+flat://``) is ZooKeeper by TLS, at port
    2281 where none is named. ``auth`` is who this client is at ZooKeeper, ``tls`` is about the certificates; without it those of the system
    are trusted. Both may stand in the query as well: ``auth`` (sasl, digest, x509), ``user``, ``password_file`` (or the variable
    BK_ZOOKEEPER_PASSWORD), ``acl``, ``readers`` (with commas); ``ca_file``, ``cert_file``, ``key_file``, ``key_password_file``,
    ``verify_host=false``. The files are read in each process that opens the store.

    No call on the store takes much longer than ``timeout_s``. By default logs live beside the ledgers root, at ``<ledgers root>-logs``;
    clusters that have logs at ``bk-logs``, the default of earlier versions, keep them there (OWN-8). Raises InvalidArgumentError,
    MetadataUnavailableError, LayoutMismatchError; MetadataAuthError, MetadataDeniedError, MetadataTlsError and MetadataHostNameError of a
    ZooKeeper that does not take this client, or that this client does not trust.

    MetadataUnavailableError says of each address what is the matter with it; where all refuse or are unknown, it comes at once, unless
    ``patient``, which waits for a store that is starting again (SES-11).
    """
    scheme, separator, rest = uri.partition("://")
    driver, *words = scheme.lower().split("+")
    by_tls = words[:1] == ["tls"]
    manager = "+".join(words[1:] if by_tls else words)
    if not separator:
        raise InvalidArgumentError(f"{_shown(uri)!r} is not the URI of a metadata store, like zk://host:2181/ledgers")
    if driver == "memory" and not words:
        if auth is not None or tls is not None:
            raise InvalidArgumentError(f"{_shown(uri)!r} is no ZooKeeper: it takes neither credentials nor TLS")
        if not rest:
            raise InvalidArgumentError("memory:// needs a name: all that open the same name share one store")
        return MemoryStore(rest)
    if driver != "zk" or manager not in _ZK_MANAGERS:
        raise InvalidArgumentError(f"no metadata store is known for {scheme!r}; there are zk, zk+tls, zk+<layout> and memory")
    return _open_zookeeper(uri, rest, _ZK_MANAGERS[manager], by_tls, timeout_s, log_root, patient, auth, tls)


def _shown(uri: str) -> str:
    """Return a URI without what stands before its hosts and behind its path, where somebody may have written a password."""
    head, separator, rest = uri.partition("://")
    place, mark, _ = rest.partition("?") if "?" in rest else rest.partition("#")
    if not separator:
        return head.rpartition("@")[2].partition("?")[0]
    return f"{head}://{place.rpartition('@')[2]}{mark and mark + '...'}"


def _options(text: str) -> dict[str, str]:
    """Return the options of a URI by name. Raises InvalidArgumentError for one without a value, and for one that is given twice."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name in found:
            raise InvalidArgumentError(f"the URI has the option {name!r} twice: leave one of them out")
        if not value:
            raise InvalidArgumentError(f"the option {name!r} of the URI has no value: write {name}=..., or leave it out")
        found[name] = value
    return found


def _access(
    uri: str, query: Mapping[str, str], by_tls: bool, auth: ZooKeeperAuth | None, tls: MetadataTls | None
) -> tuple[ZooKeeperAuth | None, MetadataTls | None]:
    """Return the identity and the certificates that hold, of the URI or of the arguments."""
    found_auth, found_tls = access_of(query)
    if (auth is not None and found_auth is not None) or (tls is not None and found_tls is not None):
        raise InvalidArgumentError("identity and certificates stand in the URI or beside it, not in both")
    auth, tls = auth or found_auth, tls or found_tls
    if tls is not None and not by_tls:
        raise InvalidArgumentError(f"{_shown(uri)!r} is without TLS, but certificates are given: write zk+tls://, or leave them out")
    if auth is not None and auth.scheme == "x509" and (tls is None or tls.cert is None):
        raise InvalidArgumentError("scheme='x509' needs the client certificate of MetadataTls (cert) and a URI with zk+tls://")
    return auth, (tls or MetadataTls()) if by_tls else None


def _open_zookeeper(
    uri: str,
    rest: str,
    manager: str | None,
    by_tls: bool,
    timeout_s: float,
    log_root: str | None,
    patient: bool,
    auth: ZooKeeperAuth | None,
    tls: MetadataTls | None,
) -> MetadataStore:
    from bk_core.metadata.zookeeper import secured
    from bk_core.metadata.zookeeper.probe import joined_hosts, split_hosts
    from bk_core.metadata.zookeeper.store import ZooKeeperStore  # kazoo is needed only here

    parts = urlsplit(f"//{rest}")
    if "@" in parts.netloc:  # it is not shown, because it may hold a password
        raise InvalidArgumentError("a URI has no user before its hosts: write zk://host:port/ledgers?user=NAME&password_file=PATH")
    hosts = parts.netloc.replace(";", ",").strip(",")
    if not hosts:
        raise InvalidArgumentError(f"{_shown(uri)!r} lacks hosts: zk://host:port/ledgers")
    if not parts.path.strip("/"):
        raise InvalidArgumentError(f"{_shown(uri)!r} lacks the ledgers root: zk://host:port/ledgers")
    if parts.path.endswith("/"):
        raise InvalidArgumentError(f"the ledgers root of {_shown(uri)!r} ends with a slash: write {parts.path.rstrip('/')}")
    split_hosts(hosts)
    query = _options(parts.query)
    unknown = sorted(query.keys() - set(_ZK_OPTIONS))
    if unknown or parts.fragment:
        name = (unknown or [parts.fragment])[0]
        if "password" in name:
            raise InvalidArgumentError(
                f"a URI never holds a password, as it does in {name.partition('=')[0]!r}: name a file, password_file=PATH"
            )
        raise InvalidArgumentError(f"{_shown(uri)!r} has an unknown option {name!r}; there are {', '.join(_ZK_OPTIONS)}")
    auth, tls = _access(uri, query, by_tls, auth, tls)
    if tls is not None:
        hosts = joined_hosts(hosts, secured.DEFAULT_PORT)
    session = query.get("session_timeout_ms", str(_SESSION_TIMEOUT_MS))
    if not session.isdecimal() or not 0 < int(session) < 2**31:
        raise InvalidArgumentError(f"session_timeout_ms {session!r} is not a number of milliseconds")
    return ZooKeeperStore(
        hosts=hosts,
        root=parts.path,
        chroot=query.get("chroot", ""),
        manager=manager,
        timeout_s=timeout_s,
        session_timeout_s=int(session) / 1000,
        log_root=log_root or query.get("log_root"),
        patient=patient,
        auth=auth,
        tls=tls,
    )
