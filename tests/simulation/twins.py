"""``python -m tests.simulation.twins --seeds 10000``: every seed once with the kernels in C and once with those in Python.

Whatever happens in a run depends on what the kernels answer, so equal fingerprints of all messages mean equal kernels.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_CODE = """
import sys
from bk_core import kernels
from tests.simulation.runs import run_of
print(kernels.IMPLEMENTATION)
for seed in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
    run = run_of(seed)
    run.play()
    print(seed, run.world.fingerprint(), flush=True)
"""


def different(first: int, count: int) -> list[int]:
    """The seeds of first..first+count-1 whose runs differ between the twins. RuntimeError if one of the two does not run."""
    twins = [_play(kernels, first, count) for kernels in ("native", "pure")]
    outputs = [twin.communicate()[0].split("\n") for twin in twins]
    if any(twin.returncode for twin in twins) or [lines.pop(0) for lines in outputs] != ["native", "pure"]:
        raise RuntimeError(f"a twin did not run: {[twin.returncode for twin in twins]}")
    return [first + i for i, (native, pure) in enumerate(zip(*outputs, strict=True)) if native != pure]


def _play(kernels: str, first: int, count: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "BK_CORE_KERNELS": kernels, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _CODE, str(first), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.twins")
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--seeds", type=int, default=10_000)
    options = parser.parse_args()
    found = different(options.first, options.seeds)
    print(f"{options.seeds} seeds from {options.first}, native and pure: {len(found)} differ {found[:20]}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
