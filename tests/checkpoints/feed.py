"""The input of a case: one file for each batch, the same for all plays of it."""

from __future__ import annotations

import json
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.checkpoints.queries import ROWS_PER_BATCH

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
STEP_S = 2.0
TWICE = 0.3


def write_files(directory: Path, batches: int, rng: random.Random) -> None:
    """Event time goes on by two seconds a file. Some rows come again, some come too late, and keys fall silent for a while."""
    directory.mkdir(parents=True)
    before: list[dict[str, object]] = []
    for number in range(batches):
        rows: list[dict[str, object]] = []
        keys = rng.sample([f"k{i}" for i in range(8)], 4)
        for _ in range(ROWS_PER_BATCH):
            if before and rng.random() < TWICE:
                rows.append(rng.choice(before))
                continue
            at = BEGIN + timedelta(
                seconds=STEP_S * number + rng.choice((-12.0, -4.0, -1.0, 0.0, 0.5, 1.0)), milliseconds=rng.randrange(1000)
            )
            rows.append({"k": rng.choice(keys), "v": rng.randrange(100), "t": at.isoformat(timespec="milliseconds")})
        before = (before + rows)[-3 * ROWS_PER_BATCH :]
        path = directory / f"{number:04d}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_700_000_000 + number,) * 2)  # the order in which Spark takes them
