"""Answers whose tokens are computed one by one, with a Python function between logits and draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tokkata import _tokkata
from tokkata._tokkata import Matcher, Session

if TYPE_CHECKING:
    from tokkata._model import Array, Model


class ByHand:
    """What :class:`tokkata._tokkata.Answer` is, made of steps by hand."""

    def __init__(
        self,
        model: Model,
        ids: list[int],
        picking: _tokkata.Picking,
        ends: _tokkata.Ends,
        processor: Callable[[list[int], Array], Array],
        matcher: Matcher | None,
        session: Session | None,
    ) -> None:
        self._model, self._ids, self._picking, self._ends = model, ids, picking, ends
        self._processor, self._matcher = processor, matcher
        self._session = model.session() if session is None else session
        self._stop_ids = set(ends["stop_tokens"]) | (set[int]() if ends["ignore_end"] else set(model.end_tokens))
        self._begun = False
        self._prompt = len(ids)
        self._said = b""
        self._cancelled = False
        self.finish: str | None = None
        self.rest = b""
        self.stats: tuple[int, int, int, float, float, int, int] | None = None

    def cancel(self) -> None:
        """Ends the answer."""
        self._cancelled = True

    def __iter__(self) -> ByHand:
        return self

    def poll(self, call: Callable[[], object]) -> tuple[bool, Any]:
        """The next token; there is nothing to wait for but the step itself."""
        del call
        return True, next(self, None)

    def _end(self, finish: str) -> None:
        self.finish = finish
        made = len(self._ids) - self._prompt
        self.stats = (self._prompt, 0, made, 0.0, 0.0, 0, 0)

    def __next__(self) -> _tokkata.Item:
        if self.finish is not None:
            raise StopIteration
        made = len(self._ids) - self._prompt
        most = self._ends["max_tokens"]
        if self._cancelled or (most is not None and made >= most) or len(self._ids) >= self._model.n_ctx:
            self._end("cancelled" if self._cancelled else "length")
            raise StopIteration
        if not self._begun:
            held = self._session.tokens
            shared = 0
            while shared < min(len(held), len(self._ids) - 1) and held[shared] == self._ids[shared]:
                shared += 1
            if shared < len(held):
                self._session.rollback(shared)
            row: Array = np.asarray(self._session.prefill(self._ids[shared:]))[0]
            self._begun = True
        else:
            row = self._model.step([(self._session, self._ids[-1:])])[0]
        # The function may write to what it gets.
        logits = np.ascontiguousarray(self._processor(self._ids, row.copy()), dtype=np.float32)
        mask = None if self._matcher is None else self._matcher.mask()
        token = _tokkata.sample(logits, self._picking, len(self._ids) - 1, self._ids, mask)
        if token in self._stop_ids:
            self._end("stop")
            raise StopIteration
        if self._matcher is not None:
            self._matcher.accept(token)
        self._ids.append(token)
        data = self._model.detokenize_bytes([token], continues=True)
        self._said += data
        for stop in self._ends["stop"]:
            at = self._said.find(stop.encode())
            if at >= 0:
                data = data[: max(0, len(data) - (len(self._said) - at))]
                self._end("stop")
                break
        return (token, data, None, [])
