"""The model of the project's own, loaded once."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokkata import Model


def demo() -> str:
    own = Path(__file__).resolve().parents[3] / "demo" / "demo.gguf"
    return os.environ.get("TOKKATA_TEST_MODEL", str(own))


@pytest.fixture(scope="session")
def path() -> str:
    return demo()


@pytest.fixture(scope="session")
def model(path: str) -> Iterator[Model]:
    yield Model(path, n_seqs=8, n_logit_rows=64, purpose="both", taps=True, n_ctx=512)


@pytest.fixture(scope="session")
def speech_path() -> str:
    found = os.environ.get("TOKKATA_TEST_SPEECH")
    if found is None:
        pytest.skip("TOKKATA_TEST_SPEECH names no model for speech; `cargo xtask python` writes one")
    return found
