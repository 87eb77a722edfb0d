import os
from pathlib import Path

import pytest


@pytest.fixture
def reached(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run that its workers share."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own) / "failpoints"
