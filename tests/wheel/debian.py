"""Debian's packages of any suite and architecture, unpacked into a folder: nothing is installed on the machine.

``python -m tests.wheel.debian FOLDER VERSION SUITE`` puts an interpreter of Python there (3.15 of sid, say) and prints its path.
The packages come from where the machine takes its own. The interpreter runs with the C library that came with it.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
# `$0` is what Python takes for its own path, so that environments made of this one find their home.
HERE = '#!/bin/sh\nexec "{loader}" --argv0 "$0" --library-path "{libraries}" "{binary}" "$@"\n'
ELSEWHERE = '#!/bin/sh\nexec qemu-{machine} -L "{root}" -0 "$0" "{binary}" "$@"\n'


class NoSourcesError(Exception):
    """The machine's package manager knows no Debian."""


def unpack(folder: Path, suite: str, machine: str, *packages: str) -> Path:
    """These packages with all that they depend on, below ``folder``/root."""
    state = folder / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    (state / "status").write_text("")
    (state / "sources.list").write_text(f"deb {_source()} {suite} main\n")
    options = {
        "APT::Architecture": ARCHITECTURES[machine],
        "APT::Architectures": ARCHITECTURES[machine],
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Debug::NoLocking": "true",
    }
    apt = ["apt-get", "-q", "-y", *(f"-o{name}={value}" for name, value in options.items())]
    _run(*apt, "update")
    _run(*apt, "install", "--download-only", "--no-install-recommends", *packages)
    root = folder / "root"
    root.mkdir(exist_ok=True)
    for package in sorted((state / "cache" / "archives").glob("*.deb")):
        _run("dpkg-deb", "-x", str(package), str(root))
    shutil.rmtree(state)
    return root


def interpreter(folder: Path, version: str, suite: str, machine: str = platform.machine()) -> Path:
    """Python of this version; made once. For another machine than this one it runs in qemu."""
    binaries = folder / "root" / "usr" / "bin"
    starter = binaries / "python3"
    if starter.exists():
        return starter
    root = unpack(folder, suite, machine, f"python{version}", f"libpython{version}-dev")
    headers = root / "usr/include" / f"python{version}" / f"{machine}-linux-gnu"  # where Python.h asks for the machine's own part
    headers.mkdir()
    (headers / f"python{version}").symlink_to(f"../../{machine}-linux-gnu/python{version}")
    binary = binaries / f"python{version}"
    if machine == platform.machine():
        loader = next(path for path in (root / "usr/lib64" / LOADERS[machine], root / "lib64" / LOADERS[machine]) if path.exists())
        libraries = f"{root}/usr/lib/{machine}-linux-gnu:{root}/lib/{machine}-linux-gnu"
        text = HERE.format(loader=loader, libraries=libraries, binary=binary)
    else:
        text = ELSEWHERE.format(machine=machine, root=root, binary=binary)
    starter.write_text(text)
    starter.chmod(0o755)
    return starter


def _source() -> str:
    """Return the place from which this machine takes Debian's packages. Their signatures are checked with the keys that the machine has."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(LABEL)", "Created-By: Packages"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except FileNotFoundError as error:
        raise NoSourcesError("there is no apt-get here") from error
    for line in found:
        uri, codename, label = line.split(" ", 2)
        if label == "Debian" and "-" not in codename:
            return uri
    raise NoSourcesError("apt-get knows no package source of Debian's; try apt-get update")


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(done.stdout, file=sys.stderr, flush=True)
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout)


if __name__ == "__main__":
    print(interpreter(Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]))
