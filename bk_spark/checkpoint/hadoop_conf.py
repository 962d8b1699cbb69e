"""The settings of Hadoop that lead ``webhdfs://bookkeeper-checkpoints/...`` to the gateway, in the driver's JVM and with it in all tasks.

They are set while the application runs, in ``sc.hadoopConfiguration()``, of which each query takes a copy when it starts. The place is a
name, not an address, so it stays valid when the driver comes back under another port. The secret goes under a key that has "token" in it,
which Spark redacts wherever it shows settings (``spark.redaction.regex``).
"""

from __future__ import annotations

from typing import Any

from bk_core.client.files.words import GATEWAY_AUTHORITY as AUTHORITY
from bk_core.client.files.words import GATEWAY_SCHEME as SCHEME
from bk_core.client.files.words import GATEWAY_TLS_SCHEME as SECURE_SCHEME
from bk_core.errors import InvalidArgumentError

NAMENODE = "gateway"
CLIENT_ID = "bk-spark"
SERVICES = "dfs.nameservices"
REFRESH_URL = "dfs.webhdfs.oauth2.refresh.url"
OAUTH = "dfs.webhdfs.oauth2.enabled"
REFRESH_TOKEN = "dfs.webhdfs.oauth2.refresh.token"
PROVIDER = "org.apache.hadoop.hdfs.web.oauth2.ConfRefreshTokenBasedAccessTokenProvider"
SERVED = "bk.spark.checkpoint.served."  # a property of the JVM, with the scheme behind it: a client of an earlier gateway may be kept
WIRE_LOGGERS = ("org.apache.hadoop.shaded.org.apache.http", "org.apache.http", "sun.net.www.protocol.http")


def location(name: str, secure: bool = False) -> str:
    """The place of the checkpoint ``name``, for Spark. ``secure``: over TLS."""
    return f"{SECURE_SCHEME if secure else SCHEME}://{AUTHORITY}/{name}"


def settings(url: str, refresh_token: str, read_timeout_s: float, services: str = "") -> dict[str, str]:
    """All settings, for a gateway at ``url``, http or https. ``services``: the name services that are known already, which stay known.

    WebHDFS's retries are off: only the caller knows if a second request is right. The client waits for an answer for longer than the
    gateway takes for one.
    """
    protocol, _, address = url.partition("://")
    known = [name.strip() for name in services.split(",") if name.strip() and name.strip() != AUTHORITY]
    return {
        SERVICES: ",".join([*known, AUTHORITY]),
        f"dfs.ha.namenodes.{AUTHORITY}": NAMENODE,
        f"dfs.namenode.{protocol}-address.{AUTHORITY}.{NAMENODE}": address,
        f"dfs.client.failover.proxy.provider.{AUTHORITY}": "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider",
        "dfs.http.client.failover.max.attempts": "0",
        "dfs.http.client.retry.policy.enabled": "false",
        "dfs.webhdfs.socket.read-timeout": f"{int(read_timeout_s * 1000)}ms",
        OAUTH: "true",
        "dfs.webhdfs.oauth2.access.token.provider": PROVIDER,
        "dfs.webhdfs.oauth2.client.id": CLIENT_ID,
        REFRESH_URL: f"{url}/token",
        REFRESH_TOKEN: refresh_token,
        "dfs.webhdfs.oauth2.refresh.token.expires.ms.since.epoch": "0",
    }


def check(configuration: Any) -> None:
    """Raise InvalidArgumentError if the application uses WebHDFS with OAuth 2 for something else: Hadoop has one such setting for all."""
    others = configuration.get(f"dfs.client.failover.proxy.provider.{AUTHORITY}") is None and configuration.get(OAUTH) == "true"
    if others:
        raise InvalidArgumentError(
            f"{OAUTH} is set already, for a WebHDFS that is not ours, and Hadoop has one such setting for all of an application: "
            "keep the checkpoint there, or run the query in an application without it"
        )


def apply(jvm: Any, configuration: Any, url: str, refresh_token: str, read_timeout_s: float, forget: bool) -> None:
    """Set them. ``forget``: close the client that the JVM has kept from an earlier gateway; a query that uses it would end.

    Hadoop keeps clients for a JVM, and not for a SparkContext. Where no gateway was before, asking for one only loads Hadoop's classes.
    """
    _quieten(jvm)
    for key, value in settings(url, refresh_token, read_timeout_s, configuration.get(SERVICES) or "").items():
        configuration.set(key, value)
    place = location("", url.startswith("https:"))
    served = SERVED + place.partition(":")[0]
    if forget and jvm.java.lang.System.getProperty(served) is not None:
        jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI(place), configuration).close()
    jvm.java.lang.System.setProperty(served, "true")


def _quieten(jvm: Any) -> None:
    """Set the loggers of the JVM's HTTP clients to INFO, whatever the root logger has: at DEBUG they log what they send, and the secret
    with it."""
    level = jvm.org.apache.logging.log4j.Level.INFO
    for name in WIRE_LOGGERS:
        jvm.org.apache.logging.log4j.core.config.Configurator.setLevel(name, level)
