"""A KDC of MIT Kerberos of our own, with its realm, its ports and its configuration in one directory."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bk_core.bookie.children import Child, accepts_connections, free_port

REALM = "BK.TEST"
SERVICE = f"bookkeeper/127.0.0.1@{REALM}"
"""The principal of the bookies, which all are registered with this address. Java's client asks for it as it stands there."""
AS_IT_STANDS = " dns_canonicalize_hostname = false\n"
ANN = f"bookkeeper-ann@{REALM}"
PROGRAMS = ("kdb5_util", "kadmin.local", "krb5kdc", "kinit", "klist")
_TIMEOUT_S = 60
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


def missing_programs() -> list[str]:
    """The programs that this machine lacks (Debian: krb5-kdc, krb5-admin-server, krb5-user)."""
    return [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]


class Kdc:
    """A KDC for ``REALM``; ``profile`` is what clients need in KRB5_CONFIG. A ticket lasts ``life``, as MIT writes durations."""

    def __init__(self, directory: Path, *, life: str = "8h") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.port = free_port()
        self.profile = self.written("krb5.conf", self.port)
        self._child: Child | None = None
        lines = f"max_life = {life}\n  key_stash_file = {directory}/stash\n  database_name = {directory}/principals"
        (directory / "kdc.conf").write_text(
            f"[kdcdefaults]\n  kdc_listen = 127.0.0.1:{self.port}\n  kdc_tcp_listen = 127.0.0.1:{self.port}\n"
            f"[realms]\n {REALM} = {{\n  {lines}\n }}\n[logging]\n kdc = FILE:{directory}/requests.log\n"
        )
        self.run("kdb5_util", "create", "-s", "-P", "of the database", "-r", REALM)

    def written(self, name: str, port: int | None, more: str = AS_IT_STANDS) -> Path:
        """Write a configuration for clients, whose KDC is at ``port``, and return its path."""
        path = self.directory / name
        kdc = "" if port is None else f"kdc = 127.0.0.1:{port}"
        path.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n{more}"
            f"[realms]\n {REALM} = {{\n  {kdc}\n }}\n"
        )
        return path

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": _PATH, "KRB5_CONFIG": str(self.profile), "KRB5_KDC_PROFILE": str(self.directory / "kdc.conf")}

    def run(self, *command: str, text: str | None = None, env: Mapping[str, str] | None = None) -> str:
        """Run one of Kerberos' programs, and return what it prints."""
        program = shutil.which(command[0], path=_PATH)
        assert program is not None, command[0]
        done = subprocess.run(
            [program, *command[1:]],
            env={**os.environ, **self.env, **(env or {})},
            input=text or "",
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def admin(self, query: str) -> str:
        return self.run("kadmin.local", "-r", REALM, "-q", query)

    def add(self, principal: str, password: str | None = None, options: str = "") -> None:
        """Add a principal, with a random key unless there is a password."""
        key = "-randkey" if password is None else f'-pw "{password}"'
        self.admin(f"addprinc {options} {key} {principal}")

    def keytab(self, principal: str, name: str) -> Path:
        """Give a principal a new key, and return the keytab that holds it."""
        path = self.directory / name
        path.unlink(missing_ok=True)
        self.admin(f"ktadd -k {path} {principal}")
        assert path.exists()
        return path

    def tickets(self, principal: str, keytab: Path, name: str, *options: str) -> str:
        """Make a ticket cache by ``kinit``, and return its name."""
        cache = f"FILE:{self.directory / name}"
        self.run("kinit", "-c", cache, "-k", "-t", str(keytab), *options, principal)
        return cache

    def is_valid(self, cache: str) -> bool:
        """Return True if a ticket cache has a ticket that has not expired."""
        program = shutil.which("klist", path=_PATH)
        assert program is not None
        return subprocess.run([program, "-s", "-c", cache], env={**os.environ, **self.env}, timeout=_TIMEOUT_S).returncode == 0

    def start(self) -> None:
        program = shutil.which("krb5kdc", path=_PATH)
        assert program is not None
        self._child = Child(
            "KDC", [program, "-n", "-r", REALM, "-P", str(self.directory / "pid")], self.directory / "kdc.log", env=self.env
        )
        self._child.wait_until(lambda: accepts_connections(self.port), _TIMEOUT_S)

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def __enter__(self) -> Kdc:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()


def jaas(path: Path, **sections: tuple[str, Path]) -> str:
    """Write a JAAS file whose sections log in by principal and keytab, and return the JVM's option for it."""
    module = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true doNotPrompt=true"
    path.write_text(
        "".join(f'{name} {{\n  {module} principal="{who}" keyTab="{keytab}";\n}};\n' for name, (who, keytab) in sections.items())
    )
    return f"-Djava.security.auth.login.config={path}"
