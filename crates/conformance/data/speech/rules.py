"""Masks of openai's logit filters for random logits and tokens. Usage: rules.py FILE [CASES]."""
import sys
import numpy as np, torch
from whisper.decoding import SuppressBlank, SuppressTokens, ApplyTimestampRules
from fixture import noise, M

class Small:
    """Forty texts, the end, three marks, and twenty timestamps."""
    eot, no_timestamps, timestamp_begin = 40, 43, 44
    def encode(self, text): return [3]

def words(seed):
    x = seed
    while True:
        x = (x * 6364136223846793005 + 1442695040888963407) & M
        yield x >> 33

cases = int(sys.argv[2]) if len(sys.argv) > 2 else 10000
tok, masks = Small(), []
for case in range(cases):
    w = words(case + 1)
    n, begin = next(w) % 7, next(w) % 3
    tokens = [next(w) % 64 if next(w) % 2 else 44 + next(w) % 20 for _ in range(begin + n)]
    latest = [None, 5, 19][next(w) % 3]
    scale = [0.5, 3.0, 8.0][next(w) % 3]
    logits = torch.from_numpy((noise(f"rules.{case}", 64) * scale).astype(np.float32))[None].clone()
    t = torch.tensor([tokens], dtype=torch.long).reshape(1, -1)
    for f in (SuppressBlank(tok, begin), SuppressTokens([41, 42, 7]), ApplyTimestampRules(tok, begin, latest)):
        f.apply(logits, t)
    masks.append(sum(1 << i for i in range(64) if logits[0, i] == -np.inf))
np.array(masks, dtype="<u8").tofile(sys.argv[1])
