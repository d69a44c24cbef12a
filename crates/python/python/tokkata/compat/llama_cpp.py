"""llama-cpp-python's ``Llama``, for the calls that most scripts make.

``from tokkata.compat.llama_cpp import Llama`` in the place of ``from llama_cpp import Llama``. What a caller asks for
and cannot have is refused by name; what changes no answer is taken in silence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from tokkata._model import Completion, Message, Model, pulled

_SILENT = frozenset(
    "split_mode main_gpu tensor_split use_mmap use_mlock n_threads_batch n_ubatch offload_kqv flash_attn "
    "op_offload swa_full numa verbose logits_all vocab_only last_n_tokens_size mul_mat_q no_perf chat_format".split()
)
_REFUSED = frozenset(
    "lora_base chat_handler draft_model tokenizer rope_scaling_type rope_freq_base rope_freq_scale "
    "kv_overrides yarn_ext_factor yarn_attn_factor yarn_beta_fast yarn_beta_slow yarn_orig_ctx".split()
)


class Llama:
    """A model behind llama-cpp-python's names."""

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        n_ctx: int = 512,
        n_batch: int = 512,
        n_threads: int | None = None,
        n_gpu_layers: int = 0,
        lora_path: str | None = None,
        lora_scale: float = 1.0,
        seed: int | None = None,
        embedding: bool = False,
        **options: Any,
    ) -> None:
        for name, value in options.items():
            if name in _REFUSED and value not in (None, 0, 0.0, False):
                raise ValueError(f"{name}: cannot be honoured by tokkata")
            if name not in _SILENT and name not in _REFUSED:
                raise TypeError(f"{name}: not a known argument")
        self.model_path = os.fspath(model_path)
        self._seed = None if seed in (None, 0xFFFFFFFF, -1) else seed
        # 0 stands for as much as the model was trained for.
        self.model = Model(
            self.model_path,
            n_ctx=n_ctx or None,
            n_rows=n_batch,
            threads=n_threads,
            # As there, none go to a GPU unless they are asked for, and a negative number stands for all.
            device="auto" if n_gpu_layers else None,
            gpu_layers="auto" if not n_gpu_layers else "all" if n_gpu_layers < 0 else n_gpu_layers,
            adapters=[] if lora_path is None else [(lora_path, lora_scale)],
            purpose="both" if embedding else "text",
        )

    @classmethod
    def from_pretrained(cls, repo_id: str, filename: str | None = None, **options: Any) -> Llama:
        """Downloads a model, or the file of that name in its repository, into the cache if need be, and loads it."""
        return cls(pulled(repo_id, filename), **options)

    def __call__(self, prompt: str, **fields: Any) -> Any:
        """As :meth:`create_completion`."""
        return self.create_completion(prompt, **fields)

    def create_completion(self, prompt: str | Sequence[int], **fields: Any) -> Completion | Iterator[Completion]:
        """A completion in OpenAI's shape, or with ``stream`` its chunks."""
        if fields.get("max_tokens", 16) in (None, -1):
            fields["max_tokens"] = self.model.n_ctx
        body = {"prompt": prompt if isinstance(prompt, str) else list(prompt)}
        return self._ask({**body, **self._fields(fields)})

    def create_chat_completion(
        self, messages: Sequence[Message], **fields: Any
    ) -> Completion | Iterator[Completion]:
        """A chat completion in OpenAI's shape, or with ``stream`` its chunks."""
        if fields.get("max_tokens", 0) in (None, -1):
            del fields["max_tokens"]
        return self._ask({"messages": list(messages), **self._fields(fields)})

    def _fields(self, given: Mapping[str, Any]) -> dict[str, Any]:
        fields = {name: value for name, value in given.items() if value is not None}
        for name in ("logits_processor", "stopping_criteria"):
            if fields.pop(name, None):
                raise ValueError(f"{name}: use tokkata.Model.generate, which takes functions")
        for name in ("mirostat_mode", "mirostat_tau", "mirostat_eta", "tfs_z", "model"):
            value = fields.pop(name, None)
            if name == "mirostat_mode" and value:
                raise ValueError("mirostat_mode: cannot be honoured by tokkata")
        grammar = fields.pop("grammar", None)
        if isinstance(grammar, LlamaGrammar):
            fields.update(grammar.fields)
        elif grammar is not None:
            fields["grammar"] = grammar
        if self._seed is not None:
            fields.setdefault("seed", self._seed)
        return fields

    def _ask(self, body: dict[str, Any]) -> Completion | Iterator[Completion]:
        if body.pop("stream", False):
            return iter(self.model.stream(body))
        return self.model.ask(body)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of a text in bytes."""
        return self.model.tokenize(text.decode("utf-8", "replace"), add_special=add_bos, parse_special=special)

    def detokenize(self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False) -> bytes:
        """The bytes of tokens."""
        return self.model.detokenize_bytes(tokens, special=special, continues=bool(prev_tokens))

    def embed(self, input: str | Sequence[str], normalize: bool = False, truncate: bool = True) -> Any:
        """Vectors of texts: of one a list of numbers, of several a list of lists."""
        del truncate
        rows = self.model.embed(input, normalize=normalize).tolist()
        return rows[0] if isinstance(input, str) else rows

    def create_embedding(self, input: str | Sequence[str], model: str | None = None) -> Completion:
        """Vectors of texts in OpenAI's shape."""
        texts = [input] if isinstance(input, str) else list(input)
        rows = cast("list[list[float]]", self.embed(texts))
        used = sum(len(self.model.tokenize(text)) for text in texts)
        return {
            "object": "list",
            "data": [{"object": "embedding", "embedding": row, "index": i} for i, row in enumerate(rows)],
            "model": model or self.model_path,
            "usage": {"prompt_tokens": used, "total_tokens": used},
        }

    def reset(self) -> None:
        """Forgets what is stored of earlier prompts."""
        self.model.forget()

    def n_ctx(self) -> int:
        """Positions of a sequence."""
        return self.model.n_ctx

    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self.model.n_vocab

    def n_embd(self) -> int:
        """Width of its rows."""
        return self.model.info["n_embd"]

    def token_bos(self) -> int:
        """The token that begins a text; -1 without one."""
        return self.model.special_tokens.get("bos", -1)

    def token_eos(self) -> int:
        """The token that ends one; -1 without one."""
        return self.model.special_tokens.get("eos", -1)

    def close(self) -> None:
        """Lets go of the model."""
        del self.model


class LlamaGrammar:
    """A grammar for ``grammar=``."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar in GBNF."""
        del verbose
        return cls({"grammar": grammar})

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar that follows a JSON Schema."""
        del verbose
        return cls({"json_schema": json_schema})
