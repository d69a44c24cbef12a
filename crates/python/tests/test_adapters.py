"""Adapters with the real packages; one that is not installed is skipped by name."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import tokkata
from tokkata import Model


def test_llama_cpp_s_calls(path: str) -> None:
    from tokkata.compat.llama_cpp import Llama, LlamaGrammar

    llm = Llama(model_path=path, n_ctx=256, n_gpu_layers=-1, verbose=False, seed=7, embedding=True)
    whole = llm("Once upon a time", max_tokens=8, temperature=0, echo=False, stop=["\n\n\n"])
    assert whole["object"] == "text_completion" and whole["usage"]["completion_tokens"] <= 8
    chunks = list(llm("Once upon a time", max_tokens=8, temperature=0, stream=True))
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole["choices"][0]["text"]
    chat = llm.create_chat_completion([{"role": "user", "content": "Hi"}], max_tokens=8)
    assert chat["choices"][0]["message"]["role"] == "assistant"
    ids = llm.tokenize(b"Hello", add_bos=False)
    assert llm.detokenize(ids) == b"Hello" and llm.n_ctx() == 256 and llm.n_vocab() > 0
    assert len(llm.embed("a cat")) == llm.n_embd() and len(llm.embed(["a", "b"])) == 2
    grammar = LlamaGrammar.from_string('root ::= "yes" | "no"')
    assert llm("x", grammar=grammar, max_tokens=8)["choices"][0]["text"] in ("yes", "no")
    with pytest.raises(ValueError, match="lora_base"):
        Llama(model_path=path, lora_base="x")
    with pytest.raises(tokkata.TokkataError, match="no-adapter"):
        Llama(model_path=path, lora_path="no-adapter")
    with pytest.raises(TypeError, match="nonsense"):
        Llama(model_path=path, nonsense=1)


def test_llama_cpp_s_answers(path: str, tmp_path: Path) -> None:
    """The same script with the real package says the same."""
    llama_cpp = pytest.importorskip("llama_cpp")
    from tokkata.compat.llama_cpp import Llama

    plain = str(tmp_path / "plain.gguf")
    tokkata.convert(path, plain, kind="f32")

    def script(kind: Any) -> list[Any]:
        llm = kind(model_path=plain, n_ctx=256, seed=1, verbose=False)
        whole = llm("Once upon a time there was", max_tokens=12, temperature=0.0)
        chunks = list(llm("Once upon a time there was", max_tokens=12, temperature=0.0, stream=True))
        chat = llm.create_chat_completion([{"role": "user", "content": "Hello"}], max_tokens=12, temperature=0.0)
        return [
            llm.tokenize(b"Hello there"),
            llm.detokenize(llm.tokenize(b"Hello there", add_bos=False)),
            llm.tokenize("gr\u00fc\u00df dich".encode(), add_bos=False),
            (llm.n_ctx(), llm.n_vocab(), llm.n_embd(), llm.token_bos(), llm.token_eos()),
            whole["choices"][0]["text"],
            whole["choices"][0]["finish_reason"],
            whole["usage"],
            "".join(chunk["choices"][0]["text"] for chunk in chunks),
            chat["choices"][0]["message"]["content"],
        ]

    ours, theirs = script(Llama), script(llama_cpp.Llama)
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, dict):
            one = {name: value for name, value in one.items() if name in other}
        assert one == other


def test_outlines(model: Model) -> None:
    outlines = pytest.importorskip("outlines")
    from pydantic import BaseModel

    from tokkata.outlines import AsyncTokkata, from_tokkata

    class Pet(BaseModel):
        name: str
        furry: bool

    asked = from_tokkata(model)
    assert asked("Is it so?", Literal["yes", "no"], max_tokens=10) in ("yes", "no")
    Pet.model_validate_json(outlines.Generator(asked, Pet)("A pet:", max_tokens=200, seed=1))
    assert asked("A number", outlines.regex("[0-9]{3}"), max_tokens=10).isdigit()
    assert set(asked.batch(["a", "b"], Literal["yes", "no"], max_tokens=10)) <= {"yes", "no"}
    assert "".join(asked.stream("Once upon a time", max_tokens=5, temperature=0))
    chat = outlines.inputs.Chat([{"role": "user", "content": "Hello"}])
    assert asked(chat, max_tokens=5, temperature=0)

    async def several() -> list[str]:
        tasks = AsyncTokkata(model)
        return list(await asyncio.gather(*(tasks(str(i), Literal["yes", "no"], max_tokens=10) for i in range(4))))

    assert set(asyncio.run(several())) <= {"yes", "no"}


def test_guidance(model: Model) -> None:
    pytest.importorskip("guidance")
    from guidance import gen, select

    from tokkata.guidance import TokkataModel

    lm = TokkataModel(model)
    lm += "The answer is " + select(["yes", "no"], name="answer")
    assert lm["answer"] in ("yes", "no")
    lm += " and the number " + gen("number", regex="[0-9]{3}", max_tokens=10)
    assert lm["number"].isdigit() and len(lm["number"]) == 3


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "data.jsonl").write_text(
        "\n".join(
            f'{{"question": "Once upon a time there was a little {a}. The", "choices": [" {b}", " {c}"], "label": {right}}}'
            for a, b, c, right in [("cat", "cat", "xyz", 0), ("dog", "qqq", "dog", 1), ("boy", "boy", "zzz", 0)] * 4
        )
    )
    (tmp_path / "task.yaml").write_text(
        f"""task: tokkata_local
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path / "data.jsonl"}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
target_delimiter: ""
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
    )
    yield tmp_path


def scores(lm: Any, task: Path) -> dict[str, float]:
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(task), include_defaults=False)
    found = lm_eval.simple_evaluate(model=lm, tasks=["tokkata_local"], task_manager=manager, bootstrap_iters=0)
    return {name: value for name, value in found["results"]["tokkata_local"].items() if isinstance(value, float)}


def test_lm_eval(path: str, task: Path) -> None:
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance

    from tokkata.lm_eval import TokkataLM

    lm = TokkataLM(path, n_ctx=256)
    assert scores(lm, task)["acc,none"] > 0.6

    def asked(kind: Any, *args: Any) -> Instance:
        return Instance(request_type=kind, doc={}, arguments=args, idx=0)

    rolled = lm.loglikelihood_rolling([asked("loglikelihood_rolling", "Once upon a time there was a cat. " * 60)])
    assert len(rolled) == 1 and -20_000 < rolled[0] < -100
    until = {"until": ["."], "max_gen_toks": 20}
    said = lm.generate_until([asked("generate_until", "Once upon a time", until)])
    assert len(said) == 1 and said[0] and "." not in said[0]


def test_lm_eval_scores_as_over_llama_cpps_logits(path: str, task: Path, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    llama_cpp = pytest.importorskip("llama_cpp")
    from tokkata.lm_eval import TokkataLM

    # In 32 bits on both sides, so that rounding alone is left: block types meet activations that each rounds its own way.
    plain = str(tmp_path / "plain.gguf")
    tokkata.convert(path, plain, kind="f32")

    class Theirs(TokkataLM):
        """The same questions, answered from llama.cpp's logits."""

        def __init__(self) -> None:
            super().__init__(plain, n_ctx=256)
            self.llama = llama_cpp.Llama(
                model_path=plain, n_ctx=256, logits_all=True, type_k=0, type_v=0, verbose=False
            )
            self.lock = threading.Lock()

        def _logits(self, ids: list[int]) -> Any:
            with self.lock:
                self.llama.reset()
                self.llama.eval(ids)
                return self.llama.scores[: len(ids)].copy()

    class Ours(TokkataLM):
        pass

    told: dict[str, list[tuple[float, bool]]] = {}
    for name, lm in (("ours", Ours(plain, n_ctx=256, kv_type="f32")), ("theirs", Theirs())):
        one = lm._loglikelihood_tokens

        def kept(requests: list[Any], one: Any = one, name: str = name, **more: Any) -> Any:
            told[name] = one(requests, **more)
            return told[name]

        lm._loglikelihood_tokens = kept
        told[name + " score"] = scores(lm, task)  # type: ignore[assignment]
    assert told["ours score"] == told["theirs score"]
    apart = [abs(a[0] - b[0]) for a, b in zip(told["ours"], told["theirs"], strict=True)]
    print(f"log-likelihoods of {len(apart)} answers differ by {max(apart):.1e} at most")
    assert max(apart) < 1e-3
    assert [a[1] for a in told["ours"]] == [b[1] for b in told["theirs"]]
