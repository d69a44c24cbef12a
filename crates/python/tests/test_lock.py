"""The interpreter lock is never held while something is computed: another thread goes on counting meanwhile.

Each act is one call into the library, during which a thread that holds the lock is never asked for it.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tokkata import Model


class Counter(threading.Thread):
    """Counts as fast as it may."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.turns = 0
        self.ends = False

    def run(self) -> None:
        while not self.ends:
            self.turns += 1


@pytest.fixture
def counter() -> Iterator[Counter]:
    counter = Counter()
    counter.start()
    yield counter
    counter.ends = True
    counter.join()


def share(counter: Counter, act: Callable[[], object]) -> tuple[float, float]:
    """How much of the time of `act` another thread computes, and that time."""
    assert counter.ident is not None
    clock = time.pthread_getcpuclockid(counter.ident)
    began, before = time.perf_counter(), time.clock_gettime(clock)
    act()
    took = time.perf_counter() - began
    return (time.clock_gettime(clock) - before) / took, took


CALLS = ["logits", "embed", "taps", "generate", "prefill", "step", "load", "chat", "save"]


@pytest.mark.parametrize("call", CALLS)
def test_others_run_meanwhile(model: Model, path: str, tmp_path: Path, counter: Counter, call: str) -> None:
    ids = (model.tokenize("Once upon a time there was a cat. ") * 60)[:400]
    session = model.session()
    if call == "save":
        session.append(ids)
    body = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40})
    reply = model._model.ask(body) if call == "chat" else None
    acts: dict[str, Callable[[], object]] = {
        "logits": lambda: model._model.logits(ids),
        "embed": lambda: model.embed("a cat " * 150),
        "taps": lambda: model._model.taps(ids),
        # Tokens that nobody asked for before, so that they must be computed.
        "generate": lambda: next(model.generate(ids[::-1], max_tokens=1, ignore_end=True)),
        "prefill": lambda: session.prefill(ids),
        "step": lambda: model._model.step([(session, ids)], False),
        "load": lambda: Model(path, n_ctx=64),
        "chat": lambda: next(reply) if reply else None,
        "save": lambda: session.save(str(tmp_path / "s")),
    }
    found, took = share(counter, acts[call])
    print(f"{call}: {took * 1e3:.1f} ms, others ran for {found:.0%} of it")
    # With the lock held it would be nothing. Workers and this thread share few cores.
    assert found > 0.03, f"{call}: another thread ran for {found:.1%} of {took * 1e3:.1f} ms"


def test_a_call_that_holds_the_lock_is_seen(counter: Counter) -> None:
    found, took = share(counter, lambda: sum(range(120_000_000)))
    assert found < 0.02 and took > 0.2, f"another thread ran for {found:.1%} of {took * 1e3:.1f} ms"


def test_transcripts_let_others_run(speech_path: str, counter: Counter) -> None:
    model = Model(speech_path, purpose="speech", n_seqs=1)
    tone = (np.sin(np.arange(48_000) * 0.1) / 3).astype(np.float32)
    found, took = share(counter, lambda: model.transcribe(tone, language="en", beams=1, temperature=0).text())
    assert found > 0.03, f"another thread ran for {found:.1%} of {took * 1e3:.1f} ms"
