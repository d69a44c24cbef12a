"""Transcripts on their way, and how tasks wait for what comes next."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from tokkata._tokkata import Answer, Reply, Transcript


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a transcript, with the space before it; times are seconds."""

    text: str
    start: float
    end: float
    probability: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a transcript; times are seconds."""

    text: str
    start: float
    end: float
    tokens: list[int]
    words: list[Word]
    avg_logprob: float
    no_speech: float
    temperature: float


class Transcription:
    """The segments of a transcript: iterate over them with ``for`` or ``async for``, or take all with :meth:`text`."""

    def __init__(self, transcript: Transcript, language: str | None) -> None:
        self._transcript = transcript
        self._ready: deque[Segment] = deque()
        self._text: str | None = None
        self.language = language
        """The language spoken: as it was given, or as it was found, from the first segment on."""
        self.seconds = transcript.seconds
        """Length of the recording."""

    def _took(self, item: Any) -> bool:
        """Keeps what came; False at the end."""
        if item is None:
            return False
        language, segments, text = item
        if language is not None:
            self.language = language[0]
        for said, start, end, tokens, words, *rest in segments:
            self._ready.append(Segment(said, start, end, tokens, [Word(*word) for word in words], *rest))
        if text is not None:
            self._text = text
        return True

    def __iter__(self) -> Iterator[Segment]:
        return self

    def __next__(self) -> Segment:
        while not self._ready:
            if not self._took(next(self._transcript, None)):
                raise StopIteration
        return self._ready.popleft()

    def __aiter__(self) -> AsyncIterator[Segment]:
        return self

    async def __anext__(self) -> Segment:
        while not self._ready:
            if not self._took(await awaited(self._transcript)):
                raise StopAsyncIteration
        return self._ready.popleft()

    def text(self) -> str:
        """The whole text, waited for."""
        while self._text is None and self._took(next(self._transcript, None)):
            pass
        return self._text or ""

    def cancel(self) -> None:
        """Ends it, from any thread; what was heard so far still comes."""
        self._transcript.cancel()


async def awaited(source: Answer | Reply | Transcript) -> Any:
    """What comes next of an answer, without a thread that waits."""
    # Only tasks need it, and they have it already.
    import asyncio

    loop = asyncio.get_running_loop()
    while True:
        ready = asyncio.Event()

        def tell(ready: asyncio.Event = ready) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(ready.set)

        done, item = source.poll(tell)
        if done:
            return item
        try:
            await ready.wait()
        except asyncio.CancelledError:
            source.cancel()
            raise
