"""Adapters with the real packages; one that is not installed is skipped by name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

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
    with pytest.raises(ValueError, match="lora_path"):
        Llama(model_path=path, lora_path="x")
    with pytest.raises(TypeError, match="nonsense"):
        Llama(model_path=path, nonsense=1)


def test_outlines(model: Model) -> None:
    outlines = pytest.importorskip("outlines")
    from pydantic import BaseModel

    from tokkata.outlines import from_tokkata

    class Pet(BaseModel):
        name: str
        furry: bool

    asked = from_tokkata(model)
    assert asked("Is it so?", Literal["yes", "no"], max_tokens=10) in ("yes", "no")
    Pet.model_validate_json(outlines.Generator(asked, Pet)("A pet:", max_tokens=200, seed=1))
    assert asked("A number", outlines.regex("[0-9]{3}"), max_tokens=10).isdigit()
    assert asked.batch(["a", "b"], Literal["yes", "no"], max_tokens=10)


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
            f'{{"question": "Once upon a time there was a little {a}. The", "choices": [" {b}", " {c}"], "label": {i % 2}}}'
            for i, (a, b, c) in enumerate([("cat", "cat", "xyz"), ("dog", "qqq", "dog"), ("boy", "boy", "zzz")] * 4)
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


def test_lm_eval(path: str, task: Path) -> None:
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.tasks import TaskManager

    from tokkata.lm_eval import TokkataLM

    manager = TaskManager(include_path=str(task), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=TokkataLM(path, n_ctx=256), tasks=["tokkata_local"], task_manager=manager, bootstrap_iters=0
    )
    assert found["results"]["tokkata_local"]["acc,none"] > 0.6
