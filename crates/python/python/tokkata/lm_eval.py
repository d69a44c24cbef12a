"""A model for EleutherAI's lm-eval: ``simple_evaluate(model=TokkataLM("model.gguf"), tasks=[…])``."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from tokkata import Model


@register_model("tokkata")
class TokkataLM(TemplateLM):
    """``LM`` over :class:`tokkata.Model`; requests run beside each other, ``n_seqs`` at once."""

    def __init__(self, path: str | os.PathLike[str], max_gen_toks: int = 256, **options: Any) -> None:
        super().__init__()
        self._max_gen_toks = int(max_gen_toks)
        self.model = Model(path, **options)

    @property
    def eot_token_id(self) -> int:
        """The token between documents."""
        special = self.model.special_tokens
        return special.get("eos", special.get("bos", 0))

    @property
    def prefix_token_id(self) -> int:
        """The token before a text that has none."""
        return self.model.special_tokens.get("bos", self.eot_token_id)

    @property
    def tokenizer_name(self) -> str:
        """What keeps stored requests apart."""
        return self.model.path

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Tokens of a text, without what begins a text unless that is asked for."""
        return self.model.tokenize(string, add_special=bool(add_special_tokens))

    def _logits(self, ids: list[int]) -> Any:
        """The logits after each of these tokens, [tokens, n_vocab]."""
        return self.model.logits(ids)

    def _each(self, act: Any, items: list[Any]) -> list[Any]:
        with ThreadPoolExecutor(max(1, self.model.info["n_seqs"])) as pool:
            return list(pool.map(act, items))

    def _loglikelihood_tokens(self, requests: list[Any], **_: Any) -> list[tuple[float, bool]]:
        def one(request: Any) -> tuple[float, bool]:
            _, context, continuation = request
            ids = (list(context) + list(continuation))[-(self.model.n_ctx) :]
            n = min(len(continuation), len(ids) - 1)
            logits = self._logits(ids[:-1])[-n:].astype(np.float64)
            top = logits.max(axis=1)
            norm = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
            wanted = np.array(ids[-n:])
            score = float((logits[np.arange(n), wanted] - norm).sum())
            return score, bool((logits.argmax(axis=1) == wanted).all())

        return self._each(one, requests)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of whole texts, in windows of the context."""
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        totals = []
        for request in requests:
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.model.n_ctx - 1,
                context_len=1,
            )
            parts = [(None, *make_disjoint_window(window)) for window in windows]
            totals.append(sum(score for score, _ in self._loglikelihood_tokens(parts)))
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers that end at texts."""

        def one(request: Instance) -> str:
            prompt, given = request.args
            until = given.get("until") or []
            most = int(given.get("max_gen_toks", self._max_gen_toks))
            ids = self.tok_encode(prompt)[-(self.model.n_ctx - most) :]
            temperature = float(given.get("temperature", 0)) if given.get("do_sample") else 0.0
            answer = self.model.generate(
                ids or [self.prefix_token_id], max_tokens=most, stop=until, temperature=temperature, seed=0
            )
            return answer.text()

        return self._each(one, requests)
