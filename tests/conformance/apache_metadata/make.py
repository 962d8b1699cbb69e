"""Make ``vectors.json`` again: ledger metadata as Apache's own releases serialize it. Needs Java, javac and Maven.

    python -m tests.conformance.apache_metadata.make

Each release is resolved by Maven into a temporary directory; a small program is compiled against it and prints names and bytes.
In the file each byte is one character (latin-1), since most of them are text.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from bk_core.bookie.apache import COPY_DEPENDENCIES

HERE = Path(__file__).resolve().parent
OLD_RELEASES = ("4.0.0", "4.1.0", "4.2.0", "4.3.2", "4.4.0", "4.5.1")  # LedgerMetadata.serialize
NEW_RELEASES = ("4.14.7", "4.18.0")  # LedgerMetadataSerDe
_POM = """\
<project><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>metadata</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.bookkeeper</groupId><artifactId>bookkeeper-server</artifactId><version>{version}</version></dependency>
</dependencies></project>
"""


def main() -> None:
    vectors = {version: _vectors(version, "OldMetadata", "org.apache.bookkeeper.client.OldMetadata") for version in OLD_RELEASES}
    vectors |= {version: _vectors(version, "NewMetadata", "NewMetadata") for version in NEW_RELEASES}
    (HERE / "vectors.json").write_text(json.dumps(vectors, indent=1) + "\n")


def _vectors(version: str, source: str, main_class: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "pom.xml").write_text(_POM.format(version=version))
        _run("mvn", "-q", "-B", "-f", f"{work}/pom.xml", COPY_DEPENDENCIES, f"-DoutputDirectory={work}/lib")
        path = f"{work}/classes:{work}/lib/*"
        _run("javac", "-nowarn", "-cp", path, "-d", f"{work}/classes", str(HERE / f"{source}.java"))
        lines = _run("java", "-cp", path, main_class).splitlines()
    pairs = (line.split("\t") for line in lines if "\t" in line)
    return {name: bytes.fromhex(stored).decode("latin-1") for name, stored in pairs}


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
