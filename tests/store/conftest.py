from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.databases import DATABASES, fresh_database


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database; each story is told over both kinds."""
    with fresh_database(request.param, tmp_path) as url:
        yield url
