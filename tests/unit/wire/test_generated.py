"""The generated Python of the ``.proto`` files is what ``make proto`` makes of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROTOS = sorted(path.relative_to(ROOT) for path in (ROOT / "bk_core").rglob("*.proto"))
# The generator of `make proto` is older than the one in this environment, on purpose (requirements-proto.in). Each writes its own number.
NUMBER = re.compile(r"^# Protobuf Python Version: .*$|^    Domain\.PUBLIC,\n|^    \d+,$|^    '',$", re.M)


def generated(proto: Path, include: Path, out: Path) -> dict[str, str]:
    command = ["-m", "grpc_tools.protoc", f"-I{include}", f"--python_out={out}", f"--pyi_out={out}", str(proto)]
    subprocess.run([sys.executable, *command], cwd=include, check=True, timeout=60)
    return {end: without_number((out / proto).with_name(f"{proto.stem}_pb2.{end}")) for end in ("py", "pyi")}


def without_number(path: Path) -> str:
    """Return the text without what the two generators write differently: their number, and if a truth value may be None in the stub."""
    return NUMBER.sub("", path.read_text()).replace("_Optional[bool] = ...", "bool = ...")


def test_there_are_three() -> None:
    assert [path.name for path in PROTOS] == ["etcd.proto", "ledger_formats.proto", "bookie.proto"]


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.name)
def test_what_is_stored_is_what_the_generator_makes(proto: Path, tmp_path: Path) -> None:
    made = generated(proto, ROOT, tmp_path)
    assert made == {end: without_number(ROOT / proto.with_name(f"{proto.stem}_pb2.{end}")) for end in made}, "run: make proto"


def test_one_generator_made_them_all() -> None:
    found = {re.findall(r"Protobuf Python Version: (.*)", (ROOT / path.with_name(f"{path.stem}_pb2.py")).read_text())[0] for path in PROTOS}
    assert len(found) == 1


def test_a_changed_field_is_noticed(tmp_path: Path) -> None:
    (proto,) = (path for path in PROTOS if path.name == "ledger_formats.proto")
    changed = tmp_path / "changed" / proto
    changed.parent.mkdir(parents=True)
    text = (ROOT / proto).read_text()
    assert "ctime = 10" in text
    changed.write_text(text.replace("ctime = 10", "ctime = 13"))
    made = generated(proto, tmp_path / "changed", tmp_path)
    assert made["py"] != without_number((ROOT / proto).with_name(f"{proto.stem}_pb2.py"))
