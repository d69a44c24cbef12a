"""A model for guidance: ``lm = TokkataModel(Model("model.gguf")); lm += gen(regex=…)``."""

from __future__ import annotations

from typing import Any

import numpy as np
from guidance.models._base import Model as GuidanceModel
from guidance.models._engine import Engine, EngineInterpreter, LogitsOutput, Tokenizer
from guidance.models._engine._tokenizer import TokenizerWrappable

from tokkata import Model

__all__ = ["TokkataEngine", "TokkataModel"]


class TokkataTokenizer(Tokenizer):
    """The model's tokenizer as guidance asks it."""

    def __init__(self, model: Model, chat_template: Any) -> None:
        tokens, special = model._model.vocabulary()
        # Special tokens are told by a byte that no text has, so that they are never matched as text.
        shown = [b"\xff" + t if is_special else t for t, is_special in zip(tokens, special, strict=True)]
        ends = model.end_tokens
        bos = model.special_tokens.get("bos")
        wrapped = TokenizerWrappable(
            eos_token_id=ends[0],
            bos_token_id=bos,
            tokens=shown,
            special_token_ids=[i for i, is_special in enumerate(special) if is_special],
            encode_callable=lambda text: model.tokenize(text.decode("utf-8", "ignore"), add_special=False),
        )
        super().__init__(
            ll_tokenizer=wrapped.as_ll_tokenizer(), chat_template=chat_template, bos_token_id=bos
        )


class TokkataEngine(Engine):
    """Logits for guidance, of a session that keeps what prompts share."""

    def __init__(self, model: Model, chat_template: Any = None, **options: Any) -> None:
        self.model = model
        self._session = model.session()
        self._newest: tuple[list[int], Any] | None = None
        super().__init__(TokkataTokenizer(model, chat_template or model.chat_template), **options)

    def get_logits(self, token_ids: list[int], include_all_uncached_tokens: bool = False) -> LogitsOutput:
        """The logits after these tokens, [1, n_vocab], or after each that was not computed before."""
        if not token_ids:
            raise ValueError("token_ids: found none, expected one at least")
        held = self._session.tokens
        shared = 0
        while shared < min(len(held), len(token_ids) - 1) and held[shared] == token_ids[shared]:
            shared += 1
        if include_all_uncached_tokens:
            logits = np.asarray(self.model.logits(token_ids))[shared:]
            return {"logits": logits, "n_tokens": len(token_ids), "n_cached": shared}
        if self._newest is not None and self._newest[0] == token_ids:
            return {"logits": self._newest[1], "n_tokens": len(token_ids), "n_cached": len(token_ids)}
        if shared < len(held):
            self._session.rollback(shared)
        logits = np.asarray(self._session.prefill(token_ids[shared:]))
        self._newest = (list(token_ids), logits)
        return {"logits": logits, "n_tokens": len(token_ids), "n_cached": shared}


class TokkataModel(GuidanceModel):
    """:class:`tokkata.Model` as guidance's models are."""

    def __init__(self, model: Model, echo: bool = False, sampling_params: Any = None, **options: Any) -> None:
        engine = TokkataEngine(model, enable_token_probabilities=echo, enable_top_k=echo, **options)
        super().__init__(
            interpreter=EngineInterpreter(engine), sampling_params=sampling_params or {}, echo=echo
        )
