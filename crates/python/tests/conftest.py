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


def named(variable: str) -> str:
    found = os.environ.get(variable)
    if found is None:
        pytest.skip(f"{variable} names no model; `cargo xtask python` makes one")
    return found


@pytest.fixture(scope="session")
def speech_path() -> str:
    return named("TOKKATA_TEST_SPEECH")


@pytest.fixture(scope="session")
def words_path() -> str:
    """A tiny BERT with a classifier."""
    return named("TOKKATA_TEST_WORDS")
