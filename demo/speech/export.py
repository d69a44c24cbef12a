"""Writes the trained model as whisper.cpp's file, and reads that file back for openai's code.

Usage: export.py FOLDER/model.pt small-speech.bin [F16]; matrices are Q8_0 unless F16 is asked for.
"""
import struct, sys
import numpy as np
import lexicon
from windows import filters

def full(saved):
    """All tensors as f32 by openai's names; each token that is not in use has the row of all such."""
    state = {n: np.asarray(p, np.float32) for n, p in saved["state"].items()}
    rows = state.pop("decoder.rows")
    embedding = np.repeat(rows[-1:], saved["dims"]["n_vocab"], 0)
    embedding[saved["used"]] = rows[:-1]
    state["decoder.token_embedding.weight"] = embedding
    return state

def q8_0(x):
    """Blocks of 32 numbers: a scale as f16 and bytes."""
    b = x.reshape(-1, 32)
    d = (np.abs(b).max(1) / 127).astype(np.float16)
    inverse = np.where(d > 0, 1 / np.maximum(d.astype(np.float32), 1e-12), 0)
    q = np.rint(b * inverse[:, None]).clip(-127, 127).astype(np.int8)
    return np.concatenate([d[:, None].view(np.int8), q], 1).tobytes()

def ggml(dims, state, kind):
    d = dims
    out = [struct.pack("<I", 0x67676d6c), struct.pack("<11i", d["n_vocab"], d["n_audio_ctx"], d["n_audio_state"], d["n_audio_head"],
           d["n_audio_layer"], d["n_text_ctx"], d["n_text_state"], d["n_text_head"], d["n_text_layer"], d["n_mels"], 2007 if kind == 8 else 1)]
    f = filters()
    out += [struct.pack("<2i", *f.shape), f.tobytes(), struct.pack("<i", len(lexicon.TOKENS))]
    for t in lexicon.TOKENS:
        out += [struct.pack("<i", len(t)), t]
    for name, v in state.items():
        shape = list(v.shape)
        if name.startswith("encoder.conv") and name.endswith("bias"):
            shape = [shape[0], 1]
        flat = v.ndim == 1 or name.endswith("positional_embedding")
        code = 0 if flat else 1 if v.ndim == 3 else kind
        raw = v.astype("<f4").tobytes() if code == 0 else v.astype("<f2").tobytes() if code == 1 else q8_0(v)
        out += [struct.pack("<3i", len(shape), len(name), code), struct.pack(f"<{len(shape)}i", *shape[::-1]), name.encode(), raw]
    return b"".join(out)

def read(path):
    """Sizes and tensors as f32 of a file that this wrote."""
    raw, at = open(path, "rb").read(), 0
    def take(form):
        nonlocal at
        out = struct.unpack_from(form, raw, at)
        at += struct.calcsize(form)
        return out
    assert take("<I")[0] == 0x67676d6c
    keys = "n_vocab n_audio_ctx n_audio_state n_audio_head n_audio_layer n_text_ctx n_text_state n_text_head n_text_layer n_mels".split()
    dims = dict(zip(keys, take("<11i")))
    bands, bins = take("<2i")
    at += bands * bins * 4
    tokens = []
    for _ in range(take("<i")[0]):
        n = take("<i")[0]
        tokens.append(raw[at:at + n]); at += n
    state = {}
    while at < len(raw):
        dim, n, code = take("<3i")
        shape = take(f"<{dim}i")[::-1]
        name = raw[at:at + n].decode(); at += n
        count = int(np.prod(shape))
        size = {0: 4 * count, 1: 2 * count, 8: count // 32 * 34}[code]
        part = raw[at:at + size]; at += size
        if code == 8:
            b = np.frombuffer(part, np.int8).reshape(-1, 34)
            v = b[:, :2].copy().view(np.float16).astype(np.float32) * b[:, 2:]
        else:
            v = np.frombuffer(part, "<f4" if code == 0 else "<f2").astype(np.float32)
        v = v.reshape(shape)
        state[name] = v[:, 0] if name.endswith("bias") and v.ndim == 2 else v
    return dims, tokens, state

def openai(path):
    """The model for openai's code, with its tokenizer; needs `openai-whisper`."""
    import functools, tiktoken, torch
    from whisper import tokenizer as tk
    from whisper.model import ModelDimensions, Whisper
    dims, tokens, state = read(path)
    model = Whisper(ModelDimensions(**dims))
    found = model.load_state_dict({n: torch.from_numpy(v.copy()) for n, v in state.items()}, strict=False)
    assert not found.unexpected_keys and not [k for k in found.missing_keys if "mask" not in k], found
    table = {t: i for i, t in enumerate(tokens)}
    @functools.lru_cache(maxsize=None)
    def get_encoding(name="gpt2", num_languages=99):
        special = ["<|endoftext|>", "<|startoftranscript|>", *[f"<|{l}|>" for l in list(tk.LANGUAGES)[:num_languages]], "<|translate|>", "<|transcribe|>",
                   "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>", *[f"<|{i * 0.02:.2f}|>" for i in range(1501)]]
        return tiktoken.Encoding(name=name, explicit_n_vocab=len(table) + len(special), mergeable_ranks=table,
                                 special_tokens={t: len(table) + i for i, t in enumerate(special)},
                                 pat_str=r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""")
    tk.get_encoding = get_encoding
    tk.get_tokenizer.cache_clear()
    return model.eval()

if __name__ == "__main__":
    import torch
    saved = torch.load(sys.argv[1], weights_only=True)
    with open(sys.argv[2], "wb") as f:
        f.write(ggml(saved["dims"], full(saved), 1 if sys.argv[3:] == ["F16"] else 8))
