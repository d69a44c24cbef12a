"""Speech: what the small model says means nothing, but is the same everywhere."""

import asyncio
import io
import threading
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tokkata import Model, TokkataError, Transcription

QUICK = {"beams": 1, "temperature": 0.0, "language": "en"}


@pytest.fixture(scope="module")
def ear(speech_path: str) -> Model:
    return Model(speech_path, purpose="speech", n_seqs=2, words=True)


@pytest.fixture(scope="module")
def tone() -> np.ndarray:
    at = np.arange(48_000)
    return (np.sin(at * 0.1) / 3 * (1 + np.sin(at * 1e-3))).astype(np.float32)


def wav(tone: np.ndarray) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((tone * 32767).astype("<i2").tobytes())
    return out.getvalue()


def test_segments_words_and_languages(ear: Model, tone: np.ndarray) -> None:
    heard = ear.transcribe(tone, beams=1, temperature=0.0, words=True)
    assert heard.seconds == pytest.approx(3.0)
    segments = list(heard)
    assert segments and heard.language is not None and len(heard.language) == 2
    assert "".join(s.text for s in segments).strip() == heard.text().strip()
    for segment in segments:
        # The times are such a model's: numbers, and no more.
        assert 0 <= segment.start < 60 and 0 <= segment.end < 60 and segment.avg_logprob < 0
        assert all(0 <= word.probability <= 1 for word in segment.words)
    assert any(segment.words and segment.tokens for segment in segments)


def test_samples_bytes_and_files_side_by_side(ear: Model, tone: np.ndarray, tmp_path: Path) -> None:
    rounded = ((tone * 32767).astype("<i2") / 32768).astype(np.float32)
    text = ear.transcribe(rounded, **QUICK).text()
    assert text
    data = wav(tone)
    (tmp_path / "tone.wav").write_bytes(data)
    kinds = [rounded, data, tmp_path / "tone.wav", str(tmp_path / "tone.wav")]
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda kind: ear.transcribe(kind, **QUICK).text(), kinds * 2)) == {text}

    async def one() -> str:
        heard = ear.transcribe(rounded, **QUICK)
        return "".join([segment.text async for segment in heard])

    async def several() -> list[str]:
        return await asyncio.gather(*(one() for _ in range(3)))

    assert {said.strip() for said in asyncio.run(several())} == {text.strip()}
    assert ear.transcribe(tone, rate=8000, **QUICK).seconds == pytest.approx(6.0)


def test_what_is_cancelled_ends(ear: Model, tone: np.ndarray) -> None:
    heard = ear.transcribe(np.tile(tone, 20), language="en")
    threading.Timer(0.2, heard.cancel).start()
    heard.text()
    assert list(heard) is not None


def test_what_cannot_be_heard_is_told(ear: Model, tone: np.ndarray, path: str, tmp_path: Path) -> None:
    with pytest.raises(TokkataError, match="nowhere"):
        ear.transcribe("/nowhere.wav")
    with pytest.raises(TokkataError, match="no audio"):
        ear.transcribe(b"nothing of the kind" * 10)
    with pytest.raises(TokkataError, match="klingon"):
        ear.transcribe(tone, language="klingon")
    with pytest.raises(TokkataError, match="beams"):
        ear.transcribe(tone, beams=11)
    with pytest.raises(ValueError, match="5 Hz"):
        ear.transcribe(tone, rate=5)
    with pytest.raises(TokkataError, match="speech"):
        ear.tokenize("x")
    with pytest.raises(TokkataError, match="hear"):
        Model(path, purpose="speech")
    with pytest.raises(TokkataError, match="speech"):
        Model(path, n_ctx=64).transcribe(tone)
    assert Transcription.__doc__
