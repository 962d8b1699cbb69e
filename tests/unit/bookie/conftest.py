from __future__ import annotations

import pytest

from tests.unit.bookie.host import Bookie


@pytest.fixture
def bookie() -> Bookie:
    return Bookie()
