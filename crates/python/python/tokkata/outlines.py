"""A model for outlines: ``outlines.Generator(from_tokkata(model), Character)``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from outlines.inputs import Chat
from outlines.models.base import ModelTypeAdapter
from outlines.models.vllm import AsyncVLLM
from outlines.models.vllm_offline import VLLMOffline
from outlines.types import CFG, JsonSchema, Regex
from outlines.types.dsl import python_types_to_terms, to_regex

from tokkata import Grammar, Model

__all__ = ["AsyncTokkata", "Tokkata", "from_tokkata"]


class TokkataTypeAdapter(ModelTypeAdapter):
    """Inputs as prompts, output types as grammars of the engine."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def format_input(self, model_input: Any) -> Any:
        """A text as it stands, a conversation as its template writes it."""
        if isinstance(model_input, str):
            return model_input
        if isinstance(model_input, Chat):
            return self.model.chat_tokens(model_input.messages)
        raise TypeError(f"found {type(model_input).__name__}, expected str or Chat")

    def format_output_type(self, output_type: Any = None) -> Grammar | None:
        """The grammar of an output type."""
        if output_type is None:
            return None
        term = python_types_to_terms(output_type)
        if isinstance(term, CFG):
            return self.model.grammar(lark=term.definition)
        if isinstance(term, JsonSchema):
            return self.model.grammar(json_schema=term.schema)
        if isinstance(term, Regex):
            return self.model.grammar(regex=term.pattern)
        return self.model.grammar(regex=to_regex(term))


class Tokkata(VLLMOffline):
    """:class:`tokkata.Model` as outlines asks it.

    Generators take models of the classes that outlines lists alone. This one is of the kind that follows an output type by
    itself; nothing of what it inherits is left.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.type_adapter = TokkataTypeAdapter(model)

    def generate(self, model_input: Any, output_type: Any = None, **options: Any) -> str:
        """The whole answer."""
        return "".join(self.generate_stream(model_input, output_type, **options))

    def generate_batch(self, model_input: list[Any], output_type: Any = None, **options: Any) -> list[str]:
        """Answers to several inputs at once."""
        grammar = self.type_adapter.format_output_type(output_type)
        prompts = [self.type_adapter.format_input(one) for one in model_input]
        answers = [self.model.generate(p, grammar=grammar, **options) for p in prompts]
        return [answer.text() for answer in answers]

    def generate_stream(self, model_input: Any, output_type: Any = None, **options: Any) -> Iterator[str]:
        """The answer piece by piece."""
        grammar = self.type_adapter.format_output_type(output_type)
        for piece in self.model.generate(self.type_adapter.format_input(model_input), grammar=grammar, **options):
            yield piece.text


class AsyncTokkata(AsyncVLLM):
    """The same for tasks."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.type_adapter = TokkataTypeAdapter(model)

    async def generate(self, model_input: Any, output_type: Any = None, **options: Any) -> str:
        """The whole answer."""
        return "".join([text async for text in self.generate_stream(model_input, output_type, **options)])

    async def generate_batch(self, model_input: list[Any], output_type: Any = None, **options: Any) -> list[str]:
        """Answers to several inputs at once."""
        import asyncio

        return list(await asyncio.gather(*(self.generate(one, output_type, **options) for one in model_input)))

    async def generate_stream(
        self, model_input: Any, output_type: Any = None, **options: Any
    ) -> AsyncIterator[str]:
        """The answer piece by piece."""
        grammar = self.type_adapter.format_output_type(output_type)
        answer = self.model.generate(self.type_adapter.format_input(model_input), grammar=grammar, **options)
        async for piece in answer:
            yield piece.text


def from_tokkata(model: Model) -> Tokkata:
    """A model that outlines can ask; for tasks take :class:`AsyncTokkata`."""
    return Tokkata(model)
