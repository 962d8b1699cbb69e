"""Certificates and a user for a local cluster, made by the program ``openssl``: an authority, the bookies' certificate, a client's. A
principal of Kerberos is one that somebody else has made."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from bk_core.bookie.door import Door
from bk_core.bookie.kerberos_service import KerberosService
from bk_core.bookie.private import FILE_MODE, make_directory
from bk_core.errors import BookieUnavailableError
from bk_core.protocol.link.providers import SERVICE

USER = "bookkeeper-local"
"""The one user of a local cluster."""
_DAYS = "3650"
_TIMEOUT_S = 60
_HOSTS = "subjectAltName=IP:127.0.0.1,DNS:localhost"


@dataclass(frozen=True, slots=True)
class LocalSecurity:
    """The files of one local cluster, in ``directory``; those that are there are used again."""

    directory: Path
    tls: bool
    sasl: bool
    kerberos: KerberosService | None = None

    def make(self) -> None:
        """Make what is missing. Raises BookieUnavailableError without ``openssl``."""
        make_directory(self.directory)
        if self.tls and not self._path("client.pem").exists():
            self._make_certificates()
        if self.sasl and not self._path("users").exists():
            password = secrets.token_urlsafe(18)
            for name, text in (("password", password), ("users", f"{USER}:{password}")):
                self._write(name, f"{text}\n")

    @property
    def door(self) -> Door:
        """The door of each bookie: with TLS, clients show a certificate."""
        certificate, key, ca = ((str(self._path(name)) if self.tls else None) for name in ("bookie.pem", "bookie.key", "ca.pem"))
        return Door(certificate, key, ca, str(self._path("users")) if self.sasl else None, kerberos=self.kerberos)

    def query(self) -> str:
        """Return the options of a URI with which a client comes in. With Kerberos it is the bookies' own principal, by which they ask each
        other."""
        files = {"bookie_ca_file": "ca.pem", "bookie_cert_file": "client.pem", "bookie_key_file": "client.key"} if self.tls else {}
        said = [f"{name}={quote(str(self._path(file)))}" for name, file in files.items()]
        if self.sasl:
            said += [f"bookie_user={USER}", f"bookie_password_file={quote(str(self._path('password')))}"]
        if self.kerberos is not None:
            service = self.kerberos.principal.partition("/")[0]
            said += [f"bookie_principal={quote(self.kerberos.principal)}", f"bookie_keytab_file={quote(self.kerberos.keytab)}"]
            said += [] if service == SERVICE else [f"bookie_service={quote(service)}"]
        return "&".join(said)

    def _path(self, name: str) -> Path:
        return self.directory / name

    def _write(self, name: str, text: str) -> None:
        path = self._path(name)
        path.touch(mode=FILE_MODE)
        path.write_text(text)

    def _make_certificates(self) -> None:
        for name in ("ca.key", "bookie.key", "client.key"):
            self._write(name, "")  # private before there is a key in it
        new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        self._openssl("req", "-x509", *new_key, "-days", _DAYS, "-subj", "/CN=bk local", "-keyout", "ca.key", "-out", "ca.pem")
        self._write("hosts", f"{_HOSTS}\n")
        self._write("nobody", "basicConstraints=CA:FALSE\n")
        for name, extensions in (("bookie", "hosts"), ("client", "nobody")):
            self._openssl("req", *new_key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
            signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", _DAYS)
            self._openssl("x509", "-req", "-in", f"{name}.csr", *signing, "-extfile", extensions, "-out", f"{name}.pem")

    def _openssl(self, *arguments: str) -> None:
        program = shutil.which("openssl")
        if program is None:
            raise BookieUnavailableError("certificates are made by the program openssl, and there is none on the PATH")
        done = subprocess.run(
            [program, *arguments], cwd=self.directory, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            raise BookieUnavailableError(f"openssl could not make certificates in {self.directory}: {done.stderr.strip()[-500:]}")
