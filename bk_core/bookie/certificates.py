"""Certificates and a user for a local cluster, made by the program ``openssl``: an authority, the bookies' certificate, a client's. A
principal of Kerberos is one that somebody else has made."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from bk_core.bookie.door import Door
from bk_core.bookie.identity import sync_directory, write_durably
from bk_core.bookie.kerberos_service import KerberosService
from bk_core.bookie.private import make_directory
from bk_core.errors import BookieUnavailableError
from bk_core.protocol.link.providers import SERVICE

USER = "bookkeeper-local"
"""The one user of a local cluster."""
_CERTIFICATES = ("ca.pem", "bookie.key", "bookie.pem", "client.key", "client.pem")
_MAKING = ".making-"
_DAYS = "3650"
_TIMEOUT_S = 60
_HOSTS = "subjectAltName=IP:127.0.0.1,DNS:localhost"


@dataclass(frozen=True, slots=True)
class LocalSecurity:
    """The files of one local cluster, in ``directory``; those that are there are used again, if all are there that go together. For one
    process at a time."""

    directory: Path
    tls: bool
    sasl: bool
    kerberos: KerberosService | None = None

    def make(self) -> None:
        """Make what is missing, or was left half made by a process that was killed. Raises BookieUnavailableError without ``openssl``."""
        make_directory(self.directory)
        for left in self.directory.glob(f"{_MAKING}*"):
            shutil.rmtree(left, ignore_errors=True)
        if self.tls and not all(self._has(name, "-----END") for name in _CERTIFICATES):
            with tempfile.TemporaryDirectory(prefix=_MAKING, dir=self.directory) as making:
                _make_certificates(Path(making))
                self._put([(name, Path(making, name).read_bytes()) for name in ("ca.key", *_CERTIFICATES)])
        if self.sasl and not all(self._has(name, "") for name in ("password", "users")):
            password = secrets.token_urlsafe(18)
            self._put([("password", f"{password}\n".encode()), ("users", f"{USER}:{password}\n".encode())])

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

    def _has(self, name: str, last: str) -> bool:
        """Return True if there is a whole file: a last line that begins with ``last``."""
        try:
            lines = self._path(name).read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return False
        return any(lines) and lines[-1].startswith(last)

    def _put(self, files: list[tuple[str, bytes]]) -> None:
        """Replace files that go together. Without the last one they are not whole, so it goes first and comes last."""
        self._path(files[-1][0]).unlink(missing_ok=True)
        sync_directory(self.directory)
        for name, data in files:
            write_durably(self._path(name), data)


def _make_certificates(directory: Path) -> None:
    def openssl(*arguments: str) -> None:
        program = shutil.which("openssl")
        if program is None:
            raise BookieUnavailableError("certificates are made by the program openssl, and there is none on the PATH")
        done = subprocess.run(
            [program, *arguments], cwd=directory, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            raise BookieUnavailableError(f"openssl could not make certificates in {directory}: {done.stderr.strip()[-500:]}")

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new_key, "-days", _DAYS, "-subj", "/CN=bk local", "-keyout", "ca.key", "-out", "ca.pem")
    (directory / "hosts").write_text(f"{_HOSTS}\n")
    (directory / "nobody").write_text("basicConstraints=CA:FALSE\n")
    for name, extensions in (("bookie", "hosts"), ("client", "nobody")):
        openssl("req", *new_key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", _DAYS)
        openssl("x509", "-req", "-in", f"{name}.csr", *signing, "-extfile", extensions, "-out", f"{name}.pem")
