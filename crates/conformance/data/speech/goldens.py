"""What openai's code makes of the small model: rows, searches and transcripts. Usage: goldens.py FOLDER."""
import json, sys
import numpy as np, torch, whisper
from whisper.audio import log_mel_spectrogram, pad_or_trim, N_FRAMES, N_SAMPLES
from whisper import DecodingOptions
import whisper.decoding as dec
import fixture
from signals import signal

out = sys.argv[1]
model = fixture.model()
torch.set_grad_enabled(False)

# The smallest lead of a greedy choice over the next.
gap = [float("inf")]
update = dec.GreedyDecoder.update
def watched(self, tokens, logits, sums):
    if self.temperature == 0:
        top = logits.topk(2).values
        live = tokens[:, -1] != self.eot
        lead = (top[:, 0] - top[:, 1])[live]
        if lead.numel(): gap[0] = min(gap[0], float(lead.min()))
    return update(self, tokens, logits, sums)
dec.GreedyDecoder.update = watched

def mel_of(kind, n):
    return log_mel_spectrogram(signal(kind, n), 80, padding=N_SAMPLES)

# Rows of the encoder and of the decoder.
mel = mel_of("bursts", 80000)
segment = pad_or_trim(mel[:, :500], N_FRAMES)
encoded = model.encoder(segment[None])
prompt = [50258, 50259, 50359, 50363, 400, 1234, 40000, 7, 256, 50257]
logits = model.decoder(torch.tensor([prompt]), encoded)[0]
rows = [encoded[0, ::41].reshape(-1).numpy(), logits[:, ::101].reshape(-1).numpy()]
np.concatenate(rows).astype("<f4").tofile(f"{out}/rows.f32")

def clean(result):
    keys = ("seek", "start", "end", "tokens", "avg_logprob", "no_speech_prob", "compression_ratio", "temperature")
    parts = []
    for s in result["segments"]:
        p = {k: s[k] for k in keys}
        if "words" in s: p["words"] = [[w["word"], w["start"], w["end"], w["probability"]] for w in s["words"]]
        parts.append(p)
    return dict(language=result["language"], text=result["text"], segments=parts)

plain = dict(temperature=0.0, compression_ratio_threshold=None, logprob_threshold=None, no_speech_threshold=None, fp16=False, language="en")
cases = [
    ("noise", 160000, {}), ("bursts", 400007, {}), ("sweep", 700000, {}),
    ("bursts", 1000000, dict(word_timestamps=True)), ("noise", 480000, dict(beam_size=5)),
    ("sweep", 600000, dict(beam_size=5, patience=2.0, length_penalty=0.6)), ("bursts", 300000, dict(language=None)),
    ("noise", 560000, dict(initial_prompt="a tone", condition_on_previous_text=True, carry_initial_prompt=True, clip_timestamps="1,9.5,20")),
    ("sweep", 500000, dict(without_timestamps=True, task="translate", language="de")),
    ("bursts", 900000, dict(word_timestamps=True, hallucination_silence_threshold=1.0, condition_on_previous_text=False)),
    ("noise", 300000, dict(no_speech_threshold=0.6, logprob_threshold=-1.0, compression_ratio_threshold=2.4)),
]
golden = []
for kind, n, more in cases:
    gap[0] = float("inf")
    result = whisper.transcribe(model, torch.from_numpy(signal(kind, n)), **{**plain, **more})
    golden.append(dict(signal=kind, samples=n, options=more, gap=None if "beam_size" in more else gap[0], **clean(result)))
    print(kind, n, more, len(result["segments"]), [len(s["tokens"]) for s in result["segments"]], gap[0], flush=True)
_, probs = model.detect_language(pad_or_trim(mel_of("bursts", 300000), N_FRAMES))
json.dump(dict(transcripts=golden, languages=list(probs.values())), open(f"{out}/transcripts.json", "w"), separators=(",", ":"))
