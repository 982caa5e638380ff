"""Where the documents and the results of the project are."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def project() -> Path:
    return Path(__file__).resolve().parents[2]
