"""A small model of the family with made-up weights and a made-up vocabulary, as openai's code and as a ggml file.

Every number follows from the name of its tensor and its place, so that Rust makes the same ones
(`crates/conformance/src/speech.rs`).
"""
import struct
import numpy as np

DIMS = dict(n_mels=80, n_audio_ctx=1500, n_audio_state=64, n_audio_head=2, n_audio_layer=2,
            n_vocab=51865, n_text_ctx=448, n_text_state=64, n_text_head=2, n_text_layer=3)
M = (1 << 64) - 1

def fnv(name):
    h = 0xcbf29ce484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001b3) & M
    return h

def noise(name, n):
    with np.errstate(over="ignore"):
        z = np.uint64(fnv(name)) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    total = sum((z >> np.uint64(16 * i)) & np.uint64(0xffff) for i in range(4)).astype(np.int64)
    return (total - 131070).astype(np.float64) / 37837.0

def shapes(d=DIMS):
    a, t = d["n_audio_state"], d["n_text_state"]
    out = [("encoder.conv1.weight", (a, d["n_mels"], 3)), ("encoder.conv1.bias", (a,)),
           ("encoder.conv2.weight", (a, a, 3)), ("encoder.conv2.bias", (a,)),
           ("encoder.positional_embedding", (d["n_audio_ctx"], a))]
    def block(p, w, cross):
        for attn in ["attn"] + ["cross_attn"] * cross:
            for part in ("query", "key", "value", "out"):
                out.append((f"{p}.{attn}.{part}.weight", (w, w)))
                if part != "key":
                    out.append((f"{p}.{attn}.{part}.bias", (w,)))
            out.extend([(f"{p}.{attn}_ln.weight", (w,)), (f"{p}.{attn}_ln.bias", (w,))])
        out.extend([(f"{p}.mlp.0.weight", (4 * w, w)), (f"{p}.mlp.0.bias", (4 * w,)),
                    (f"{p}.mlp.2.weight", (w, 4 * w)), (f"{p}.mlp.2.bias", (w,)),
                    (f"{p}.mlp_ln.weight", (w,)), (f"{p}.mlp_ln.bias", (w,))])
    for i in range(d["n_audio_layer"]):
        block(f"encoder.blocks.{i}", a, False)
    out.extend([("encoder.ln_post.weight", (a,)), ("encoder.ln_post.bias", (a,)),
                ("decoder.positional_embedding", (d["n_text_ctx"], t)), ("decoder.token_embedding.weight", (d["n_vocab"], t))])
    for i in range(d["n_text_layer"]):
        block(f"decoder.blocks.{i}", t, True)
    out.extend([("decoder.ln.weight", (t,)), ("decoder.ln.bias", (t,))])
    return out

def values(name, shape):
    x = noise(name, int(np.prod(shape)))
    if name == "decoder.token_embedding.weight": x = x * 0.25
    elif name == "decoder.positional_embedding": x = x * 1.0
    elif name == "encoder.positional_embedding": x = x * 0.25
    elif len(shape) > 1: x = x * (1.5 / np.sqrt(float(np.prod(shape[1:]))))
    elif name.endswith(".weight"): x = 1.0 + x * 0.1
    else: x = x * 0.1
    return x.astype(np.float32).astype(np.float16).astype(np.float32).reshape(shape)

def ranks(n=50257):
    """Bytes, then pairs of earlier tokens."""
    tokens = [bytes([b]) for b in range(256)]
    seen = set(tokens)
    common = [ord(c) for c in " etaoinshrdlucmfwypvbgk"]
    z, i = 1, 0
    while len(tokens) < n:
        z = (z * 6364136223846793005 + 1442695040888963407) & M
        a, b = (z >> 33) & 0x7fff, (z >> 48) & 0xffff
        def pick(v):
            # A letter, or a token that was made before.
            made = len(tokens) - 256
            return bytes([common[v % len(common)]]) if made == 0 or v % 3 == 0 else tokens[256 + v % made]
        t = pick(a) + pick(b)
        if len(t) <= 8 and t not in seen and b" " not in t[1:]:
            seen.add(t); tokens.append(t)
    return tokens

def ggml(d=DIMS):
    from whisper.audio import mel_filters
    out = [struct.pack("<I", 0x67676d6c), struct.pack("<11i", d["n_vocab"], d["n_audio_ctx"], d["n_audio_state"], d["n_audio_head"],
           d["n_audio_layer"], d["n_text_ctx"], d["n_text_state"], d["n_text_head"], d["n_text_layer"], d["n_mels"], 1)]
    f = mel_filters("cpu", d["n_mels"]).numpy().astype("<f4")
    out += [struct.pack("<2i", *f.shape), f.tobytes()]
    tokens = ranks()
    out.append(struct.pack("<i", len(tokens)))
    for t in tokens: out += [struct.pack("<i", len(t)), t]
    for name, shape in shapes(d):
        v = values(name, shape)
        half = len(shape) > 1 and not name.endswith("positional_embedding")
        dims = list(shape) if not (name.startswith("encoder.conv") and name.endswith("bias")) else [shape[0], 1]
        out += [struct.pack("<3i", len(dims), len(name), int(half)), struct.pack(f"<{len(dims)}i", *dims[::-1]), name.encode(),
                v.astype("<f2" if half else "<f4").tobytes()]
    return b"".join(out)

def model():
    """openai's model and its tokenizer, both made up."""
    import torch, whisper, tiktoken, functools
    from whisper import tokenizer as tk
    from whisper.model import ModelDimensions, Whisper
    torch.set_num_threads(2)
    m = Whisper(ModelDimensions(**DIMS))
    state = {n: torch.from_numpy(values(n, s).copy()) for n, s in shapes()}
    missing = m.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys, missing
    m.eval()
    table = {t: i for i, t in enumerate(ranks())}
    @functools.lru_cache(maxsize=None)
    def get_encoding(name="gpt2", num_languages=99):
        n = len(table); special = {}
        for t in ["<|endoftext|>", "<|startoftranscript|>", *[f"<|{l}|>" for l in list(tk.LANGUAGES)[:num_languages]], "<|translate|>",
                  "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>", *[f"<|{i * 0.02:.2f}|>" for i in range(1501)]]:
            special[t] = n; n += 1
        return tiktoken.Encoding(name=name, explicit_n_vocab=n, mergeable_ranks=table, special_tokens=special,
            pat_str=r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""")
    tk.get_encoding = get_encoding
    tk.get_tokenizer.cache_clear()
    return m

if __name__ == "__main__":
    import sys
    open(sys.argv[1], "wb").write(ggml())
