"""Models as Python speaks of them."""

from __future__ import annotations

import codecs
import json
import math
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tokkata import _tokkata
from tokkata._speech import Transcription, awaited
from tokkata._tokkata import Answer, Floats, Grammar, Reply, Session, TokkataError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[np.float32]

Message: TypeAlias = Mapping[str, Any]
"""A message of a conversation: ``{"role": …, "content": …}``, as OpenAI's API has it."""

Completion: TypeAlias = dict[str, Any]
"""An answer, or a chunk of one, as OpenAI's API has it."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What an answer cost."""

    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    prompt_seconds: float
    generate_seconds: float
    drafted_tokens: int = 0
    """Tokens that were guessed and tried."""
    accepted_tokens: int = 0
    """Those of them that were right."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A token of an answer, and the text that became certain with it."""

    text: str
    token: int | None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Generation:
    """The pieces of an answer: iterate over them with ``for`` or ``async for``, or take the rest with :meth:`text`."""

    def __init__(self, answer: Answer, until: Callable[[list[int], str], bool] | None) -> None:
        self._answer = answer
        self._until = until
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._said = ""
        self._ended = False
        self.tokens: list[int] = []

    def _took(self, item: _tokkata.Item | None) -> Piece | None:
        if item is None:
            if self._ended:
                return None
            self._ended = True
            rest = self._decoder.decode(self._answer.rest, final=True)
            return Piece(rest, None) if rest else None
        token, data, logprob, top = item
        text = self._decoder.decode(data)
        self.tokens.append(token)
        if self._until is not None:
            self._said += text
            if self._until(self.tokens, self._said):
                self._until = None
                self._answer.cancel()
        return Piece(text, token, logprob, tuple(top))

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        piece = self._took(next(self._answer, None))
        if piece is None:
            raise StopIteration
        return piece

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        piece = self._took(await awaited(self._answer))
        if piece is None:
            raise StopAsyncIteration
        return piece

    def text(self) -> str:
        """The text of all pieces that have not been taken yet."""
        return "".join(piece.text for piece in self)

    def cancel(self) -> None:
        """Ends the answer, from any thread; its last pieces still come."""
        self._answer.cancel()

    @property
    def finish(self) -> str | None:
        """Why it ended: ``stop``, ``length``, ``context`` or ``cancelled``; None before."""
        return self._answer.finish

    @property
    def stats(self) -> Stats | None:
        """What it cost; None before the end."""
        stats = self._answer.stats
        return None if stats is None else Stats(*stats)


class _Chunks:
    """The chunks of a streamed request."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def __iter__(self) -> Iterator[Completion]:
        return self

    def __next__(self) -> Completion:
        return cast(Completion, json.loads(next(self._reply)))

    def __aiter__(self) -> AsyncIterator[Completion]:
        return self

    async def __anext__(self) -> Completion:
        text = await awaited(self._reply)
        if text is None:
            raise StopAsyncIteration
        return cast(Completion, json.loads(text))

    def cancel(self) -> None:
        """Ends the answers, from any thread."""
        self._reply.cancel()


def _picking(
    temperature: float = 0.8,
    top_k: int = 40,
    top_p: float = 0.95,
    min_p: float = 0.05,
    typical_p: float = 1.0,
    repeat_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    repeat_last_n: int = 64,
    logit_bias: Mapping[int, float] | None = None,
    seed: int | None = None,
) -> _tokkata.Picking:
    return {
        "temperature": temperature,
        "top_k": max(top_k, 0),
        "top_p": top_p,
        "min_p": min_p,
        "typical_p": typical_p,
        "repeat_penalty": repeat_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "repeat_last_n": repeat_last_n,
        "logit_bias": list((logit_bias or {}).items()),
        "seed": int.from_bytes(os.urandom(4), "little") if seed is None else seed,
    }


def sample(
    logits: Any,
    *,
    position: int = 0,
    recent: Sequence[int] = (),
    mask: bytes | None = None,
    **sampling: Any,
) -> int:
    """Draws a token from logits, float32 of shape [n_vocab], as the engine would on any device.

    ``position`` and ``seed`` decide the draw; penalties see ``recent``; ``mask`` is what :meth:`Matcher.mask` gives.
    """
    return _tokkata.sample(logits, _picking(**sampling), position, list(recent), mask)


def pulled(name: str, file: str | None = None) -> str:
    """Where ``user/name`` (or ``user/name:Q4_K_M``), or a file of it, lies after it was downloaded if need be."""
    import subprocess
    import sys

    chosen = [] if file is None else ["--hf-file", file]
    # A process of its own, so that its progress and its signals are those of the command.
    command = [sys.executable, "-m", "tokkata", "pull", name, *chosen]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise TokkataError(f"{name}: cannot be downloaded")
    return lines[-1]


class Model:
    """A loaded model, for any number of threads and tasks.

    ``path`` is a GGUF file, or a directory of Hugging Face or MLX. ``n_seqs`` requests run at once, each with up to
    ``n_ctx`` tokens; more wait. ``purpose`` is ``text``, ``vectors`` or ``both``; ``pooling`` is ``mean``, ``cls``,
    ``last``, ``none`` or ``rank``, and as the file says without one. ``progress`` hears bytes read and bytes in all;
    what it raises ends the load. ``taps`` keeps what :meth:`taps` gives. With ``purpose="speech"`` it hears ``n_seqs``
    recordings at once, for :meth:`transcribe` alone; ``words`` lets words be timed. ``speculation`` is ``auto``, ``none``,
    ``ngram``, ``mtp`` or ``draft``, the last with the file of a smaller model; no choice changes a text. Of a model that ``device``
    cannot hold it takes the last ``gpu_layers``, which are a number, ``all``, or ``auto`` for as many as its memory holds;
    the processor has the others, and the experts of the first ``cpu_experts`` layers.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        purpose: str = "text",
        pooling: str | None = None,
        n_ctx: int | None = None,
        n_seqs: int = 4,
        n_rows: int | None = None,
        n_logit_rows: int = 0,
        threads: int | None = None,
        device: str | None = None,
        gpu_layers: int | str = "auto",
        cpu_experts: int = 0,
        kv_type: str = "f16",
        kv_memory: int | None = None,
        cpu_features: str | None = None,
        adapters: Iterable[str | tuple[str, float]] = (),
        taps: bool = False,
        words: bool = False,
        speculation: str = "auto",
        draft_model: str | os.PathLike[str] | None = None,
        draft_max: int | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        pairs = [(a, 1.0) if isinstance(a, str) else a for a in adapters]
        self.path = os.fspath(path)
        self._model = _tokkata.Model(
            self.path,
            {
                "purpose": purpose,
                "pooling": pooling,
                "n_ctx": n_ctx,
                "n_seqs": n_seqs,
                "n_rows": n_rows,
                "n_logit_rows": n_logit_rows,
                "threads": threads,
                "device": device,
                "gpu_layers": str(gpu_layers),
                "cpu_experts": cpu_experts,
                "kv_type": kv_type,
                "kv_memory": kv_memory,
                "cpu_features": cpu_features,
                "adapters": pairs,
                "taps": taps,
                "words": words,
                "speculation": speculation,
                "draft_model": None if draft_model is None else os.fspath(draft_model),
                "draft_max": draft_max,
            },
            progress,
        )
        self._info = self._model.info()

    @classmethod
    def from_hub(cls, name: str, **options: Any) -> Model:
        """Downloads ``user/name`` (or ``user/name:Q4_K_M``) into the cache if need be, and loads it."""
        return cls(pulled(name), **options)

    @property
    def n_vocab(self) -> int:
        """Width of its logits."""
        return self._info["n_vocab"]

    @property
    def n_ctx(self) -> int:
        """Positions of a sequence, as it was loaded."""
        return self._info["n_ctx"]

    @property
    def info(self) -> dict[str, int]:
        """Numbers that describe it: ``n_vocab``, ``n_embd``, ``n_params``, ``memory_bytes`` and so on."""
        return dict(self._info)

    @property
    def metadata(self) -> dict[str, str]:
        """The file's metadata under GGUF's keys, as text."""
        return self._model.metadata()

    @property
    def tensors(self) -> list[tuple[str, str, list[int]]]:
        """Name, type and shape of each tensor of the file."""
        return self._model.tensors()

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template."""
        return self._model.template()

    @property
    def special_tokens(self) -> dict[str, int]:
        """Special tokens that the file has: ``bos``, ``eos`` and so on."""
        return self._model.special_tokens()

    @property
    def end_tokens(self) -> list[int]:
        """The tokens that end an answer."""
        return self._model.end_tokens()

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text. Special tokens are recognised only with ``parse_special``."""
        return self._model.tokenize(text, add_special, parse_special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; with ``special``, special ones are spelled out."""
        return self._model.detokenize(list(ids), special, False).decode("utf-8", "replace")

    def detokenize_bytes(self, ids: Sequence[int], *, special: bool = False, continues: bool = False) -> bytes:
        """The bytes of tokens, which need not be whole characters; with ``continues``, of a text that goes on."""
        return self._model.detokenize(list(ids), special, continues)

    def apply_template(self, messages: Sequence[Message], **fields: Any) -> str:
        """The prompt of a conversation, as text."""
        return self._model.render(json.dumps({"messages": list(messages), **fields}))[0]

    def chat_tokens(self, messages: Sequence[Message], **fields: Any) -> list[int]:
        """The prompt of a conversation, as tokens."""
        return self._model.render(json.dumps({"messages": list(messages), **fields}))[1]

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        stop_tokens: Sequence[int] = (),
        ignore_end: bool = False,
        logprobs: int | None = None,
        grammar: Grammar | None = None,
        session: Session | None = None,
        until: Callable[[list[int], str], bool] | None = None,
        logits_processor: Callable[[list[int], Array], Array] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        **sampling: Any,
    ) -> Generation:
        """Asks for what follows a text or tokens, and gives its pieces as they come.

        ``until`` is asked after each token with all tokens and the text so far; True ends the answer. With a
        ``logits_processor``, a function of the tokens so far and the logits, float32 of shape [n_vocab], that gives
        logits to draw from, tokens are computed one by one, by hand. ``sampling`` may say ``temperature``, ``top_k``,
        ``top_p``, ``min_p``, ``typical_p``, ``repeat_penalty``, ``frequency_penalty``, ``presence_penalty``,
        ``repeat_last_n``, ``logit_bias`` and ``seed``.
        """
        ids = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        picking = _picking(**sampling)
        ends: _tokkata.Ends = {
            "max_tokens": max_tokens,
            "stop": [stop] if isinstance(stop, str) else list(stop),
            "stop_tokens": list(stop_tokens),
            "ignore_end": ignore_end,
            "logprobs": logprobs,
            "priority": priority,
            "timeout": timeout,
        }
        if logits_processor is not None:
            from tokkata._by_hand import ByHand

            matcher = None if grammar is None else grammar.start()
            by_hand = ByHand(self, ids, picking, ends, logits_processor, matcher, session)
            return Generation(cast(Answer, by_hand), until)
        return Generation(self._model.generate(ids, picking, ends, grammar, session), until)

    def chat(self, messages: Sequence[Message], **fields: Any) -> str:
        """The answer to a conversation, as text. Fields are those of OpenAI's chat completions."""
        answer = self.create_chat_completion(messages, **fields)
        return cast(str, answer["choices"][0]["message"]["content"] or "")

    def create_chat_completion(self, messages: Sequence[Message], **fields: Any) -> Completion:
        """A chat completion in OpenAI's shape, whole."""
        return self.ask({"messages": list(messages), **fields, "stream": False})

    def create_completion(self, prompt: str | Sequence[int], **fields: Any) -> Completion:
        """A completion in OpenAI's shape, whole."""
        return self.ask({"prompt": prompt if isinstance(prompt, str) else list(prompt), **fields, "stream": False})

    def ask(self, body: Mapping[str, Any]) -> Completion:
        """Answers a request in OpenAI's shape: of a chat if it has ``messages``, else a completion."""
        reply = self._model.ask(json.dumps({**body, "stream": False}))
        return cast(Completion, json.loads(next(reply)))

    async def ask_async(self, body: Mapping[str, Any]) -> Completion:
        """The same for a task."""
        reply = self._model.ask(json.dumps({**body, "stream": False}))
        return cast(Completion, json.loads(await awaited(reply)))

    def stream(self, body: Mapping[str, Any]) -> _Chunks:
        """The chunks of such an answer, for ``for`` and ``async for``."""
        return _Chunks(self._model.ask(json.dumps({**body, "stream": True})))

    def embed(self, texts: str | Sequence[str], *, normalize: bool = True) -> Floats:
        """Vectors of texts, shape [texts, width]; of length 1 with ``normalize``. Needs ``purpose="vectors"``."""
        return self._model.embed([texts] if isinstance(texts, str) else list(texts), normalize)

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """How well each text fits a query. Needs ``purpose="vectors", pooling="rank"``."""
        return self._model.rerank(query, list(texts))

    def transcribe(
        self,
        audio: str | os.PathLike[str] | bytes | Any,
        *,
        rate: int = 16_000,
        language: str | None = None,
        translate: bool = False,
        prompt: str | None = None,
        beams: int = 5,
        best_of: int = 5,
        temperature: float | Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
        words: bool = False,
        timestamps: bool = True,
        context: bool = True,
        channel: int | None = None,
        clips: Sequence[float] = (),
        seed: int = 0,
    ) -> Transcription:
        """Asks what is said in a recording, and gives its segments as they come. Needs ``purpose="speech"``.

        ``audio`` is a file (WAV, FLAC, MP3, OGG, M4A, MKV, WebM, AIFF), the bytes of one, or float32 samples of one channel
        in -1 to 1, ``rate`` of them per second. The language is found where none is given. A window whose text is too
        repetitive or too unlikely is tried again at each further temperature, ``best_of`` texts at once. ``words`` need
        ``Model(words=True)``. ``clips`` are stretches to hear, in seconds: from, to, from, to.
        """
        sound: _tokkata.Sound = {"path": None, "data": None, "samples": None, "rate": rate}
        if isinstance(audio, (str, os.PathLike)):
            sound["path"] = os.fspath(cast(str, audio))
        elif isinstance(audio, bytes):
            sound["data"] = audio
        else:
            sound["samples"] = audio
        asked: _tokkata.Hear = {
            "language": language,
            "translate": translate,
            "prompt": prompt,
            "beams": beams,
            "best_of": best_of,
            "temperatures": [temperature] if isinstance(temperature, (int, float)) else list(temperature),
            "words": words,
            "timestamps": timestamps,
            "context": context,
            "channel": channel,
            "clips": list(clips),
            "seed": seed,
        }
        return Transcription(self._model.transcribe(sound, asked), language)

    def logits(self, ids: Sequence[int]) -> Array:
        """The logits after each of these tokens: float32 of shape [tokens, n_vocab], without a copy."""
        import numpy as np

        return np.asarray(self._model.logits(list(ids)))

    def scores(self, ids: Sequence[int]) -> Array:
        """The log-probability of each token after those before it: float32 of shape [tokens - 1]."""
        import numpy as np

        ids = list(ids)
        if len(ids) < 2:
            return np.zeros(0, dtype=np.float32)
        logits = self.logits(ids[:-1]).astype(np.float64)
        top = logits.max(axis=1)
        norm = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        picked = logits[np.arange(len(ids) - 1), ids[1:]]
        return cast("Array", (picked - norm).astype(np.float32))

    def taps(self, ids: Sequence[int]) -> dict[str, Array]:
        """What goes into every product, by the name of its weight: float32 of shape [tokens, width]. Needs ``taps``."""
        import numpy as np

        return {name: np.asarray(values) for name, values in self._model.taps(list(ids))}

    def perplexity(self, text: str, n_ctx: int | None = None) -> float:
        """How well it predicts a text, by llama-perplexity's rules: chunks of ``n_ctx`` tokens that each begin as a
        text does, of which the second half is scored."""
        ids = self.tokenize(text)
        first = self.tokenize("")[:1]
        ctx = min(n_ctx or 512, self.n_ctx)
        chunks = [ids[i : i + ctx] for i in range(0, len(ids) - ctx + 1, ctx)]
        if not chunks:
            raise ValueError(f"the text has {len(ids)} tokens, expected {ctx} at least")
        total, count = 0.0, 0
        for chunk in chunks:
            if first:
                chunk[0] = first[0]
            scored = self.scores(chunk)[ctx // 2 :]
            total -= float(scored.sum(dtype="float64"))
            count += len(scored)
        return math.exp(total / count)

    def session(self) -> Session:
        """Opens an empty sequence whose cache stays."""
        return self._model.open_session()

    def load_session(self, path: str | os.PathLike[str]) -> Session:
        """Reads a session that :meth:`Session.save` wrote."""
        return self._model.load_session(os.fspath(path))

    def step(self, feeds: Sequence[tuple[Session, Sequence[int]]], *, answers: bool = True) -> Array:
        """One step of many sessions, by hand: feeds each its tokens, and gives the logits of the last token of each,
        float32 of shape [sessions, n_vocab], without a copy. It waits until no request is under way."""
        import numpy as np

        return np.asarray(self._model.step([(s, list(ids)) for s, ids in feeds], answers))

    def grammar(
        self,
        *,
        json_schema: str | Mapping[str, Any] | None = None,
        pydantic: Any = None,
        regex: str | None = None,
        lark: str | None = None,
        gbnf: str | None = None,
    ) -> Grammar:
        """Compiles a grammar: a JSON Schema, a Pydantic model, a regular expression, Lark or GBNF."""
        if pydantic is not None:
            json_schema = cast("dict[str, Any]", pydantic.model_json_schema())
        if json_schema is not None and not isinstance(json_schema, str):
            json_schema = json.dumps(json_schema)
        given = [
            (kind, text)
            for kind, text in (("json_schema", json_schema), ("regex", regex), ("lark", lark), ("gbnf", gbnf))
            if text is not None
        ]
        if len(given) != 1:
            raise ValueError(f"found {len(given)} sources, expected one")
        kind, text = given[0]
        return self._model.grammar(kind, text)

    def forget(self) -> None:
        """Forgets every stored prefix."""
        self._model.forget()


def quantize(
    source: str | os.PathLike[str], target: str | os.PathLike[str], kind: str, *, allow_requantize: bool = False
) -> None:
    """Writes a model in smaller element types, such as ``Q4_K_M``; one that is quantised already only where the further
    loss is allowed."""
    allowed = ["--allow-requantize"] if allow_requantize else []
    _command(["quantize", os.fspath(source), os.fspath(target), kind, *allowed])


def convert(source: str | os.PathLike[str], target: str | os.PathLike[str], kind: str = "auto") -> None:
    """Writes a model in another container, which the target's ending tells: ``.gguf`` or ``.safetensors``; ``kind`` is a type,
    such as ``f16``, or a mix, such as ``q8_0``."""
    _command(["convert", os.fspath(source), os.fspath(target), "--outtype", kind])


def _command(args: list[str]) -> None:
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-m", "tokkata", *args], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise TokkataError(lines[-1] if lines else f"{args[0]} failed")
