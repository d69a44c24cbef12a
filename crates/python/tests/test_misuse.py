"""Whatever is wrong raises an exception that says so, and leaves the model usable; nothing is left of what is closed."""

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokkata
from tokkata import Model, TokkataError

BEYOND = 2**32 - 1
NAN = float("nan")

CALLS: dict[str, Callable[[Any], object]] = {
    "no model": lambda m: Model(None),  # type: ignore[arg-type]
    "a folder without a model": lambda m: Model("/"),
    "an option that is none": lambda m: Model(m.path, nonsense=1),  # type: ignore[call-arg]
    "a negative context": lambda m: Model(m.path, n_ctx=-1),
    "a type that is none": lambda m: Model(m.path, kv_type="q17"),
    "a device that is none": lambda m: Model(m.path, device="tpu"),
    "layers that are no number": lambda m: Model(m.path, gpu_layers="half"),
    "an adapter that is none": lambda m: Model(m.path, adapters=["/nowhere"]),
    "no text": lambda m: m.tokenize(None),
    "half a character": lambda m: m.tokenize("\ud800"),
    "a token beyond": lambda m: m.detokenize([BEYOND]),
    "a token below": lambda m: m.detokenize([-1]),
    "tokens that are texts": lambda m: m.detokenize(["a"]),
    "a prompt beyond": lambda m: m.generate([BEYOND]).text(),
    "an empty prompt": lambda m: m.generate([]).text(),
    "a prompt that is too long": lambda m: m.generate([5] * 5000).text(),
    "a sampling that is none": lambda m: m.generate("x", nonsense=1),
    "a temperature that is none": lambda m: m.generate("x", temperature=NAN).text(),
    "a bias beyond": lambda m: m.generate("x", logit_bias={BEYOND: 1.0}, max_tokens=2).text(),
    "too many logprobs": lambda m: m.generate("x", logprobs=10**9, max_tokens=2).text(),
    "another model's grammar": lambda m: m.generate("x", grammar="root"),
    "a session that is none": lambda m: m.generate("x", session=m),
    "a request that is none": lambda m: m.ask({"nothing": 1}),
    "messages that are none": lambda m: m.create_chat_completion(7),
    "JSON that is none": lambda m: m._model.ask("{"),
    "logits of nothing": lambda m: m.logits([]),
    "logits beyond": lambda m: m.logits([BEYOND]),
    "more logits than rows": lambda m: m.logits([5] * 1000),
    "taps beyond": lambda m: m.taps([BEYOND]),
    "scores beyond": lambda m: m.scores([1, BEYOND]),
    "a step beyond": lambda m: m.step([(m.session(), [BEYOND])]),
    "a step of nothing": lambda m: m.step([(m.session(), [])]),
    "a step twice of one session": lambda m: (lambda s: m.step([(s, [5]), (s, [6])]))(m.session()),
    "a step of no session": lambda m: m.step([(None, [5])]),
    "a prefill beyond": lambda m: m.session().prefill([BEYOND]),
    "a prefill of nothing": lambda m: m.session().prefill([]),
    "an append beyond": lambda m: m.session().append([BEYOND]),
    "a rollback beyond": lambda m: m.session().rollback(10),
    "a rollback below": lambda m: m.session().rollback(-1),
    "a file of no session": lambda m: m.load_session("/nowhere"),
    "a folder for a session": lambda m: m.session().save("/"),
    "a schema that is none": lambda m: m.grammar(json_schema="{"),
    "a regex that is none": lambda m: m.grammar(regex="("),
    "a grammar that is none": lambda m: m.grammar(gbnf="x ::="),
    "a kind that is none": lambda m: m._model.grammar("yacc", "x"),
    "a token that may not come": lambda m: m.grammar(regex="a").start().accept(BEYOND),
    "more steps back than were made": lambda m: m.grammar(regex="a").start().rollback(5),
    "logits of no numbers": lambda m: tokkata.sample(np.full(8, NAN, np.float32)),
    "logits of doubles": lambda m: tokkata.sample(np.zeros(8)),
    "no logits": lambda m: tokkata.sample(np.zeros(0, np.float32)),
    "a mask of nothing": lambda m: tokkata.sample(np.zeros(80, np.float32), mask=b"\0"),
    "recent tokens beyond": lambda m: tokkata.sample(np.zeros(8, np.float32), recent=[99], repeat_penalty=2.0),
    "vectors of numbers": lambda m: m.embed([1]),
    "no audio": lambda m: m.transcribe(b""),
    "a text that is too short": lambda m: m.perplexity("x"),
    "no file to quantise": lambda m: tokkata.quantize("/nowhere", "/nowhere2", "Q4_0"),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_wrong_is_told(model: Model, call: str) -> None:
    # A panic is no Exception.
    with pytest.raises(Exception) as told:
        CALLS[call](model)
    assert str(told.value)
    assert len(model.generate("x", max_tokens=1, ignore_end=True).text()) >= 0


def test_times_that_cannot_be(model: Model) -> None:
    for timeout in (1e19, 1e300, NAN):
        model.generate("x", max_tokens=1, ignore_end=True, timeout=timeout).text()
    with pytest.raises(TokkataError):
        model.generate("x" * 400, max_tokens=100, ignore_end=True, timeout=0.0).text()


def test_an_answer_serves_one_thread_at_a_time(model: Model) -> None:
    answer = model.generate("Once", max_tokens=400, ignore_end=True, temperature=0)
    told: list[BaseException] = []

    def take() -> None:
        try:
            answer.text()
        except TokkataError as error:
            told.append(error)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert all("another thread" in str(error) for error in told)


def test_sessions_stay_with_their_model(model: Model, path: str) -> None:
    other = Model(path, n_ctx=64)
    with pytest.raises(ValueError, match="another model"):
        other.step([(model.session(), [5])])


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


def test_nothing_is_left_of_what_is_closed(path: str) -> None:
    begun = 0
    for cycle in range(150):
        model = Model(path, n_ctx=128, n_seqs=1, threads=1)
        session = model.session()
        session.append([5, 6])
        model.generate("Hello", max_tokens=2).text()
        # Whichever goes first.
        if cycle % 2:
            del model, session
        else:
            del session, model
        gc.collect()
        if cycle == 30:
            begun = resident_kib()
    grown = resident_kib() - begun
    assert grown < 8192, f"grown by {grown} KiB"
