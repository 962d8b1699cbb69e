"""A ZooKeeper that asks for certificates and passwords, and the certificates for it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bk_core.bookie.apache import find_java
from bk_core.bookie.ports import listens
from bk_core.bookie.zookeeper_process import ZooKeeperProcess, _free_port

USERS = {"flights": "ink-7041", "spark": "paper-1932"}
"""The users of SASL, and their passwords."""
_NETTY = "-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"


@dataclass(frozen=True)
class Authority:
    """A certificate authority in ``directory``."""

    directory: Path
    name: str

    @classmethod
    def made(cls, directory: Path, name: str) -> Authority:
        directory.mkdir(parents=True, exist_ok=True)
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", str(directory / f"{name}.key"), "-out", str(directory / f"{name}.pem")),
        )
        return cls(directory, name)

    @property
    def certificate(self) -> str:
        return str(self.directory / f"{self.name}.pem")

    def signed(self, name: str, hosts: Sequence[str] = (), key_password: str = "", subject: str = "") -> tuple[str, str]:
        """Make a certificate for ``hosts`` (``IP:127.0.0.1``, ``DNS:localhost``), and return its path and its key's. ``subject`` is more of
        its subject than the name, as ``openssl`` takes it: ``/OU=0:writer``."""
        paths = [str(self.directory / f"{name}.{kind}") for kind in ("pem", "key", "csr", "ext")]
        certificate, key, request, extensions = paths
        hidden = ["-passout", f"pass:{key_password}"] if key_password else ["-nodes"]
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *hidden, "-subj", f"/CN={name}{subject}"),
            *("-keyout", key, "-out", request),
        )
        Path(extensions).write_text(f"subjectAltName={','.join(hosts)}\n" if hosts else "basicConstraints=CA:FALSE\n")
        mine = ["-CA", self.certificate, "-CAkey", str(self.directory / f"{self.name}.key"), "-CAcreateserial", "-days", "2"]
        _openssl("x509", "-req", "-in", request, *mine, "-extfile", extensions, "-out", certificate)
        return certificate, key

    def key_store(self, pair: tuple[str, str], name: str, password: str, *more: str, key_password: str = "") -> str:
        """Put a certificate, its key and this authority's certificate into a PKCS#12 file of ``openssl``, and return its path."""
        path = str(self.directory / name)
        certificate, key = pair
        files = ("-in", certificate, "-inkey", key, "-passin", f"pass:{key_password}", "-certfile", self.certificate)
        _openssl("pkcs12", "-export", *files, "-passout", f"pass:{password}", "-out", path, *more)
        return path

    def trust_store(self, name: str, password: str, *more: str) -> str:
        """Put this authority's certificate into a PKCS#12 file as Java's ``keytool`` makes them, and return its path."""
        path = self.directory / name
        path.unlink(missing_ok=True)
        keytool = str(Path(find_java()).with_name("keytool"))
        command = [keytool, "-importcert", "-noprompt", "-alias", "ca", "-file", self.certificate, "-storetype", "PKCS12"]
        command += ["-keystore", str(path), "-storepass", password, *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout
        return str(path)


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


class SecuredZooKeeper:
    """A ZooKeeper with a port for SASL and, given a certificate, another for TLS. Without ``client_authority`` it asks nobody for a
    certificate."""

    def __init__(
        self,
        directory: Path,
        *,
        server: tuple[str, str] | None = None,
        client_authority: str | None = None,
        settings: dict[str, str] | None = None,
    ) -> None:
        self.tls_port = 0
        lines = {"authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider", **(settings or {})}
        directory.mkdir(parents=True, exist_ok=True)
        java = [f"-Djava.security.auth.login.config={directory / 'jaas.conf'}"]
        if server is not None:
            self.tls_port = _free_port()
            both = directory / "server.pem"
            both.write_text("".join(Path(path).read_text() for path in reversed(server)))
            java.append(_NETTY)
            here = lines.get("clientPortAddress", "127.0.0.1")
            lines |= {"secureClientPort": str(self.tls_port), "secureClientPortAddress": here, "ssl.keyStore.location": str(both)}
            lines |= {"ssl.trustStore.location": client_authority or server[0], "ssl.clientAuth": "need" if client_authority else "none"}
        self.directory = directory
        self.users = dict(USERS)
        self.write_users()
        self.process = ZooKeeperProcess(directory, settings=lines, java_options=java)

    def write_users(self) -> None:
        """Write down who the users are. The server reads that when it starts."""
        users = "\n".join(f'  user_{name}="{password}"' for name, password in self.users.items())
        text = f"Server {{\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n{users};\n}};\n"
        (self.directory / "jaas.conf").write_text(text)

    def __enter__(self) -> SecuredZooKeeper:
        self.process.start()
        if self.tls_port:
            assert self.process.pid is not None and listens(self.process.pid, self.tls_port)
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.stop()

    def uri(self, root: str = "/ledgers") -> str:
        return f"zk://{self.process.connect_string}{root}"

    def tls_uri(self, root: str = "/ledgers", host: str = "127.0.0.1") -> str:
        return f"zk+tls://{host}:{self.tls_port}{root}"
