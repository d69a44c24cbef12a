import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tokkata
from tokkata import Model, TokkataError

HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"temperature": 0.0, "max_tokens": 12, "ignore_end": True}


def test_importing_is_quick_and_leaves_numpy_alone() -> None:
    code = "import sys, time; t = time.process_time(); import tokkata; print(time.process_time() - t, 'numpy' in sys.modules)"
    said = [subprocess.check_output([sys.executable, "-c", code], text=True).split() for _ in range(5)]
    assert all(numpy == "False" for _, numpy in said)
    # Of the processor's time, which other programs do not stretch.
    assert min(float(seconds) for seconds, _ in said) < 0.08


def test_tokens_go_there_and_back(model: Model) -> None:
    ids = model.tokenize("Hello there", add_special=False)
    assert model.detokenize(ids) == "Hello there"
    assert model.n_vocab > max(ids) and model.end_tokens
    with pytest.raises(ValueError, match="vocabulary"):
        model.detokenize([10**9 % 2**32])


def test_pieces_make_the_same_text_alone_among_others_and_as_tasks(model: Model) -> None:
    prompt = "Once upon a time there was"
    alone = model.generate(prompt, **GREEDY)
    text = alone.text()
    assert text and len(alone.tokens) == 12 and alone.finish == "length"
    assert alone.stats is not None and alone.stats.generated_tokens == 12
    with ThreadPoolExecutor(8) as pool:
        others = list(pool.map(lambda _: model.generate(prompt, **GREEDY).text(), range(24)))
    assert others == [text] * 24

    async def one() -> str:
        return "".join([piece.text async for piece in model.generate(prompt, **GREEDY)])

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(one() for _ in range(12)))

    assert asyncio.run(all_of_them()) == [text] * 12


def test_chats_are_openais(model: Model) -> None:
    whole = model.create_chat_completion(HELLO, temperature=0, max_tokens=12)
    assert whole["object"] == "chat.completion" and whole["usage"]["completion_tokens"] <= 12
    assert model.chat(HELLO, temperature=0, max_tokens=12) == whole["choices"][0]["message"]["content"]
    chunks = list(model.stream({"messages": HELLO, "temperature": 0, "max_tokens": 12}))
    said = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert said == whole["choices"][0]["message"]["content"]

    async def streamed() -> str:
        body = {"messages": HELLO, "temperature": 0, "max_tokens": 12}
        texts = [c["choices"][0]["delta"].get("content") or "" async for c in model.stream(body)]
        answer = await model.ask_async(body)
        assert answer["choices"][0]["message"]["content"] == said
        return "".join(texts)

    assert asyncio.run(streamed()) == said
    with pytest.raises(ValueError, match="messages"):
        model.chat([])


def test_logits_are_numpys_without_a_copy(model: Model) -> None:
    ids = model.tokenize("Once upon a time")
    floats = model._model.logits(ids)
    array = np.asarray(floats)
    assert array.shape == (len(ids), model.n_vocab) == floats.shape and array.dtype == np.float32
    again = np.asarray(floats)
    assert array.__array_interface__["data"] == again.__array_interface__["data"]
    assert not array.flags.owndata and not array.flags.writeable
    scores = model.scores(ids)
    assert scores.shape == (len(ids) - 1,) and (scores < 0).all()
    answer = model.generate(ids, max_tokens=1, temperature=0, ignore_end=True)
    answer.text()
    assert answer.tokens == [int(array[-1].argmax())]


def test_a_function_between_logits_and_draw(model: Model) -> None:
    ids = model.tokenize("Once upon a time")
    plain = model.generate(ids, **GREEDY)
    plain.text()
    same = model.generate(ids, **GREEDY, logits_processor=lambda tokens, logits: logits)
    same.text()
    assert same.tokens == plain.tokens
    banned = plain.tokens[0]

    def without(tokens: list[int], logits: np.ndarray) -> np.ndarray:
        logits[banned] = -np.inf
        return logits

    other = model.generate(ids, **GREEDY, logits_processor=without)
    other.text()
    assert banned not in other.tokens and len(other.tokens) == 12


def test_a_function_may_end_the_answer(model: Model) -> None:
    answer = model.generate("Once", temperature=0, ignore_end=True, until=lambda tokens, text: len(tokens) >= 3)
    answer.text()
    assert answer.finish == "cancelled" and 3 <= len(answer.tokens) < 30


def test_grammars_are_followed(model: Model) -> None:
    from pydantic import BaseModel

    class Place(BaseModel):
        name: str
        big: bool

    grammar = model.grammar(pydantic=Place)
    text = model.generate("A place: ", grammar=grammar, max_tokens=200, seed=1).text()
    Place.model_validate_json(text)
    assert model.generate("x", grammar=model.grammar(regex="[0-9]{4}"), seed=2).text().isdigit()
    assert model.generate("x", grammar=model.grammar(lark='start: "a" | "b"'), seed=2).text() in "ab"
    made = model.generate("x", grammar=model.grammar(regex="(yes|no)"), seed=2, logits_processor=lambda t, x: x)
    assert made.text() in ("yes", "no")
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False})
    json.loads(model.generate("x", grammar=model.grammar(json_schema=schema), max_tokens=100, seed=3).text())
    with pytest.raises(ValueError, match="expected one"):
        model.grammar()
    walk = grammar.start()
    allowed = np.unpackbits(np.frombuffer(walk.mask(), dtype=np.uint8), bitorder="little")
    with pytest.raises(ValueError):
        walk.accept(int(np.flatnonzero(allowed[: model.n_vocab] == 0)[0]))


def test_sessions_stay_fork_go_back_and_are_saved(model: Model, tmp_path: Path) -> None:
    ids = model.tokenize("Once upon a time there was a")
    session = model.session()
    session.append(ids)
    assert session.position == len(ids) and session.tokens == ids
    copy = session.fork()
    file = str(tmp_path / "session")
    session.save(file)
    read = model.load_session(file)
    logits = model.step([(session, [5]), (copy, [5]), (read, [5])])
    assert logits.shape == (3, model.n_vocab)
    assert (logits[0] == logits[1]).all() and (logits[0] == logits[2]).all()
    copy.rollback(2)
    assert copy.tokens == ids[:2]
    with pytest.raises(TokkataError):
        copy.rollback(100)
    (tmp_path / "other").write_bytes(b"nothing")
    with pytest.raises(TokkataError, match="session"):
        model.load_session(tmp_path / "other")
    answer = model.generate([*session.tokens, 7], session=session, max_tokens=3, ignore_end=True)
    answer.text()
    assert answer.stats is not None and answer.stats.reused_tokens >= len(ids)


def test_vectors_and_taps(model: Model) -> None:
    rows = np.asarray(model.embed(["a cat", "a dog", "a cat"]))
    assert rows.shape == (3, model.info["vector_width"])
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5) and (rows[0] == rows[2]).all()
    taps = model.taps(model.tokenize("Hello"))
    name, values = next(iter(taps.items()))
    assert name.startswith("blk.0.") and values.shape[0] == len(model.tokenize("Hello"))
    with pytest.raises(TokkataError, match="rank"):
        model.rerank("a", ["b"])


def test_scores_are_the_commands(words_path: str) -> None:
    texts = ["the cat sat on the mat", "the red dog ran", "what is the mat"]
    model = Model(words_path, purpose="vectors", pooling="rank")
    scores = model.rerank("who sat?", texts)
    args = [word for text in texts for word in ("-p", text)]
    said = subprocess.run(
        [sys.executable, "-m", "tokkata", "rerank", "-m", words_path, "--query", "who sat?", *args, "-o", "json"],
        capture_output=True, text=True, check=True,
    )
    theirs = {one["index"]: one["relevance_score"] for one in json.loads(said.stdout)["results"]}
    assert scores == pytest.approx([theirs[i] for i in range(3)], abs=1e-6)
    pooled = Model(words_path, purpose="vectors")
    assert pooled.embed("the cat", normalize=False).shape == (1, pooled.info["vector_width"])
    with pytest.raises(TokkataError):
        pooled.generate("x")


def test_perplexity_is_the_commands(model: Model, path: str, tmp_path: Path) -> None:
    text = "Once upon a time there was a little cat who lived in a house. " * 40
    file = tmp_path / "text"
    file.write_text(text)
    ours = model.perplexity(text, n_ctx=64)
    said = subprocess.run(
        [sys.executable, "-m", "tokkata", "perplexity", "-m", path, "-f", str(file), "-c", "64"],
        capture_output=True, text=True, check=True,
    )
    assert f"PPL = {ours:.4f} " in said.stdout


def test_draws_are_the_engines(model: Model) -> None:
    ids = model.tokenize("Once upon a time")
    logits = model.logits(ids)[-1]
    answer = model.generate(ids, max_tokens=1, seed=11, ignore_end=True)
    answer.text()
    ends = {id: float("-inf") for id in model.end_tokens}
    drawn = tokkata.sample(logits, position=len(ids) - 1, recent=ids, seed=11, logit_bias=ends)
    assert answer.tokens == [drawn]


def test_an_interrupt_stops_an_answer(path: str) -> None:
    code = f"""
import os, signal, threading
from tokkata import Model
model = Model({path!r}, n_ctx=4096)
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    while True:
        model.generate("Once", temperature=0, ignore_end=True).text()
except KeyboardInterrupt:
    print("stopped", len(model.generate("x", max_tokens=2, ignore_end=True).text()) >= 0)
"""
    signals = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **signals)
    assert done.stdout.split() == ["stopped", "True"], done.stderr


def test_a_forked_child_is_refused(model: Model) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"?"
        try:
            model.generate("x")
        except TokkataError as error:
            said = str(error).encode()
        os.write(write, said)
        os._exit(0)
    os.waitpid(child, 0)
    assert b"fork" in os.read(read, 1000)


def _child(path: str) -> int:
    return len(Model(path, n_ctx=64).tokenize("Hello"))


def test_a_spawned_child_loads_its_own(path: str) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_child, (path,)) > 0


def test_a_subinterpreter_is_refused() -> None:
    name = "_xxsubinterpreters" if sys.version_info < (3, 13) else "_interpreters"
    for before in ("", "import tokkata; "):
        code = f"import {name} as s; {before}i = s.create(); print(s.run_string(i, 'import tokkata'))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        # Older ones raise what was raised inside, newer ones give it back.
        assert "subinterpreter" in done.stdout + done.stderr


def test_drafts_change_no_text(path: str) -> None:
    prompt = "one two three one two three one two"
    texts = []
    for speculation in ("none", "ngram", "auto"):
        model = Model(path, n_ctx=128, speculation=speculation, draft_max=4)
        answer = model.generate(prompt, temperature=0.7, seed=5, max_tokens=40, ignore_end=True)
        texts.append(answer.text())
        assert answer.stats is not None
        assert answer.stats.accepted_tokens <= answer.stats.drafted_tokens <= 40 * 4
        assert speculation != "none" or answer.stats.drafted_tokens == 0
    assert texts[0] == texts[1] == texts[2]
    own = Model(path, n_ctx=128, speculation="draft", draft_model=path)
    answer = own.generate(prompt, temperature=0.7, seed=5, max_tokens=40, ignore_end=True)
    assert answer.text() == texts[0]
    with pytest.raises(ValueError, match="speculation"):
        Model(path, speculation="nobody")
    with pytest.raises(ValueError, match="draft"):
        Model(path, speculation="draft")


def test_layers_on_two_devices_change_no_text(path: str) -> None:
    said = Model(path, n_ctx=64).generate("one two three", temperature=0, max_tokens=12).text()
    for layers in (1, 0, "all"):
        model = Model(path, n_ctx=64, device="ref", gpu_layers=layers)
        assert model.generate("one two three", temperature=0, max_tokens=12).text() == said


def test_loads_are_heard_and_ended(path: str) -> None:
    heard: list[tuple[int, int]] = []
    Model(path, n_ctx=64, progress=lambda done, total: heard.append((done, total)))
    assert heard and heard[-1][0] == heard[-1][1]

    def refuse(done: int, total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        Model(path, n_ctx=64, progress=refuse)
    with pytest.raises(TokkataError):
        Model("/nowhere.gguf")
    with pytest.raises(ValueError, match="purpose"):
        Model(path, purpose="nothing")


def test_the_command_line_is_the_same_library(path: str, tmp_path: Path) -> None:
    run = [sys.executable, "-m", "tokkata"]
    assert "tokkata" in subprocess.check_output([*run, "--version"], text=True)
    assert subprocess.run([*run, "nonsense"], capture_output=True).returncode == 2
    with pytest.raises(TokkataError, match="requantize"):
        tokkata.quantize(path, tmp_path / "small.gguf", "Q4_0")
    tokkata.quantize(path, tmp_path / "small.gguf", "Q4_0", allow_requantize=True)
    assert len(Model(tmp_path / "small.gguf", n_ctx=64).tokenize("Hello")) > 0
    with pytest.raises(TokkataError, match="outtype"):
        tokkata.convert(path, tmp_path / "model.safetensors")
    tokkata.convert(path, tmp_path / "model.safetensors", kind="f16")
    assert (tmp_path / "model.safetensors").stat().st_size > 1000
    with pytest.raises(TokkataError):
        tokkata.quantize(path, tmp_path / "x.gguf", "Q17")
