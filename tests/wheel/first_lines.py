"""The Python of the README as the installed package carries it, on the cluster of ``bk local`` that the README names.

    ENVIRONMENT/bin/python first_lines.py [--without-spark]

Uses only what the wheel declares; with ``--without-spark``, what it declares without extras. The environment must be activated, as the
README asks. Works where this file lies, prints what it found as JSON, and ends with status 0 if all of it held.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from importlib.metadata import entry_points, metadata, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ADDRESS = "zk://127.0.0.1:2181/ledgers"  # what the README's lines for Spark name; the cluster here has a port that is free
ROWS = ["carrier,dest,delay", "LH,FRA,5", "UA,EWR,-3"]


def snippets(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def run(program: str, name: str, names: dict[str, Any]) -> str:
    """Run a program and return its output."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(program, name, "exec"), names)
    return said.getvalue()


def of_spark(programs: list[str]) -> int:
    """Return the number of rows that the log has in the end, read as the README reads it."""
    Path("incoming").mkdir()
    Path("incoming", "flights.csv").write_text("\n".join(ROWS[1:]) + "\n")
    command = [Path(sys.executable).with_name("bk"), "local", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as local:
        try:
            assert local.stdout is not None
            uri = json.loads(local.stdout.readline())["uri"]
            names: dict[str, Any] = {}
            for number, program in enumerate(programs):
                run(program.replace(ADDRESS, uri), f"README.md, Spark {number}", names)
            read = names["spark"].read.format("bookkeeper").option("bookkeeper.metadataServiceUri", uri).load("flights")
            rows = sorted(map(tuple, read.collect()))
            assert rows == [("LH", "FRA", 5), ("LH", "FRA", 5), ("UA", "EWR", -3)], rows
            names["spark"].stop()
        finally:
            local.terminate()
    return len(rows)


def main() -> None:
    import bk_core
    from bk_core import kernels

    here = Path(bk_core.__file__).resolve()
    assert here.is_relative_to(Path(sys.prefix).resolve()), f"{here} is not of this environment"
    assert not list(Path().glob("bk_*")), "a checkout is on the path"
    assert kernels.IMPLEMENTATION == "native", kernels.IMPLEMENTATION
    found: dict[str, Any] = {"version": version("bk-spark"), "kernels": kernels.CRC32C_KERNEL}
    said = subprocess.run([Path(sys.executable).with_name("bk"), "--version"], capture_output=True, text=True, check=True).stdout
    assert said == f"bk, version {found['version']}\n" == f"bk, version {bk_core.__version__}\n", said
    assert {entry.name for entry in entry_points(group="fsspec.specs") if entry.value.startswith("bk_core.")} == {"bk"}

    page = metadata("bk-spark")["Description"]
    assert page.startswith("# bk-spark\n") and 'pip install "bk-spark[spark]"' in page.partition("\n#")[0]
    programs = snippets(page)
    spark = [program for program in programs if "spark" in program]
    assert ADDRESS in "".join(spark) and len(programs) - len(spark) >= 2
    if "--without-spark" in sys.argv:
        if find_spec("pyarrow"):
            from bk_spark.arrow import schemas

            assert schemas.__file__
        for absent in ("pyspark", "fsspec", *([] if find_spec("pyarrow") else ["pyarrow"])):
            assert absent not in sys.modules, absent
    else:
        plain = [program for program in programs if program not in spark]
        said = "".join(run(program, f"README.md, Python {number}", {}) for number, program in enumerate(plain))
        assert "[b'hello']" in said and "b'payload 999'" in said and "b'the last one'" in said, said
        found["rows"] = of_spark(spark)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    main()
