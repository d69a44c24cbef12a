"""How fast speech is heard beside others: made-up models of real shapes that write exactly 100 tokens a window.

Usage: speed.py FOLDER --tokkata PROGRAM [--whisper FOLDER OF whisper-cli, whisper-quantize] [--ct2] [--shape small] [--threads 2] [--rounds 2]

Seconds of a window are those of a longer recording less those of a shorter one, by the clock of whole commands, so that loading
is not in them; programs take turns. `--ct2` needs ctranslate2, transformers and torch.
"""
import argparse, os, statistics, struct, subprocess, sys, time
import numpy as np
from fixture import ranks
from signals import noise

SHAPES = {"tiny": (384, 6, 4, 4, 80, 51865), "base": (512, 8, 6, 6, 80, 51865), "small": (768, 12, 12, 12, 80, 51865), "large-v3-turbo": (1280, 20, 32, 4, 128, 51866)}
TOKENS, WORD, EOT = 100, 1000, 50257

def dims(shape):
    n, heads, encoder, decoder, mels, vocab = SHAPES[shape]
    return dict(n_mels=mels, n_audio_ctx=1500, n_audio_state=n, n_audio_head=heads, n_audio_layer=encoder,
                n_vocab=vocab, n_text_ctx=448, n_text_state=n, n_text_head=heads, n_text_layer=decoder)

def tensors(d):
    """Names and numbers: one word again and again, until a position where the text ends."""
    from fixture import shapes
    rng = np.random.default_rng(1)
    v = rng.choice([-1.0, 1.0], d["n_text_state"]).astype(np.float32)
    for name, shape in shapes(d):
        if name.endswith("_ln.weight") or name.endswith("ln.weight") or name.endswith("ln_post.weight"):
            x = np.ones(shape, np.float32)
        elif name.endswith("bias"):
            x = np.zeros(shape, np.float32)
        else:
            x = rng.standard_normal(shape, np.float32) * 0.02
        if name == "decoder.positional_embedding":
            # Four tokens of the prompt come before.
            x += 20 * v * np.where(np.arange(len(x)) < 3 + TOKENS, -1, 1)[:, None].astype(np.float32)
        if name == "decoder.token_embedding.weight":
            x[EOT], x[WORD] = v * 0.05, -v * 0.05
        yield name, x.astype(np.float16).astype(np.float32)

def ggml(path, d):
    from whisper.audio import mel_filters
    with open(path, "wb") as f:
        f.write(struct.pack("<I", 0x67676d6c) + struct.pack("<11i", d["n_vocab"], d["n_audio_ctx"], d["n_audio_state"], d["n_audio_head"], d["n_audio_layer"],
                d["n_text_ctx"], d["n_text_state"], d["n_text_head"], d["n_text_layer"], d["n_mels"], 1))
        m = mel_filters("cpu", d["n_mels"]).numpy().astype("<f4")
        f.write(struct.pack("<2i", *m.shape) + m.tobytes())
        words = ranks()
        f.write(struct.pack("<i", len(words)) + b"".join(struct.pack("<i", len(t)) + t for t in words))
        for name, x in tensors(d):
            half = x.ndim > 1 and not name.endswith("positional_embedding")
            shape = list(x.shape) if not (name.startswith("encoder.conv") and name.endswith("bias")) else [x.shape[0], 1]
            f.write(struct.pack("<3i", len(shape), len(name), int(half)) + struct.pack(f"<{len(shape)}i", *shape[::-1]) + name.encode()
                    + x.astype("<f2" if half else "<f4").tobytes())

PARTS = {"attn.query": "self_attn.q_proj", "attn.key": "self_attn.k_proj", "attn.value": "self_attn.v_proj", "attn.out": "self_attn.out_proj",
         "attn_ln": "self_attn_layer_norm", "cross_attn.query": "encoder_attn.q_proj", "cross_attn.key": "encoder_attn.k_proj",
         "cross_attn.value": "encoder_attn.v_proj", "cross_attn.out": "encoder_attn.out_proj", "cross_attn_ln": "encoder_attn_layer_norm",
         "mlp.0": "fc1", "mlp.2": "fc2", "mlp_ln": "final_layer_norm"}

def theirs(name):
    """The name that Transformers has."""
    whole = {"encoder.positional_embedding": "encoder.embed_positions.weight", "decoder.positional_embedding": "decoder.embed_positions.weight",
             "decoder.token_embedding.weight": "decoder.embed_tokens.weight"}
    if name in whole: return "model." + whole[name]
    side, rest = name.split(".", 1)
    if rest.startswith("blocks."):
        _, layer, rest = rest.split(".", 2)
        part, kind = rest.rsplit(".", 1)
        return f"model.{side}.layers.{layer}.{PARTS[part]}.{kind}"
    return "model." + name.replace("ln_post", "layer_norm").replace("decoder.ln.", "decoder.layer_norm.")

def transformers_model(d):
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration
    c = WhisperConfig(vocab_size=d["n_vocab"], num_mel_bins=d["n_mels"], d_model=d["n_audio_state"], encoder_layers=d["n_audio_layer"], decoder_layers=d["n_text_layer"],
                      encoder_attention_heads=d["n_audio_head"], decoder_attention_heads=d["n_text_head"], encoder_ffn_dim=4 * d["n_audio_state"], decoder_ffn_dim=4 * d["n_text_state"])
    model = WhisperForConditionalGeneration(c)
    state = {theirs(n): torch.from_numpy(x.copy()) for n, x in tensors(d)}
    found = model.load_state_dict(state, strict=False)
    assert not found.unexpected_keys and set(found.missing_keys) <= {"proj_out.weight"}, found
    model.tie_weights()
    return model.eval()

def ct2(path, d, kind):
    from ctranslate2.converters.transformers import WhisperLoader
    loader = WhisperLoader()
    model = transformers_model(d)
    spec = loader.get_model_spec(model)
    special = ["<|endoftext|>", "<|startoftranscript|>", *[f"<|l{i}|>" for i in range(d["n_vocab"] - 51766)], "<|translate|>", "<|transcribe|>",
               "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>", *[f"<|{i * 0.02:.2f}|>" for i in range(1501)]]
    spec.register_vocabulary([f"t{i}" for i in range(EOT)] + special)
    spec.config.suppress_ids, spec.config.suppress_ids_begin, spec.config.lang_ids = [], [EOT], list(range(50259, 50358))
    spec.config.alignment_heads = [[d["n_text_layer"] - 1, 0]]
    spec.validate(); spec.optimize(quantization=kind); os.makedirs(path); spec.save(path)

def wav(path, windows):
    raw = noise(480000, 7, 6000).astype("<i2").tobytes() * windows
    with open(path, "wb") as f:
        f.write(b"RIFF" + struct.pack("<I", 36 + len(raw)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16) + b"data" + struct.pack("<I", len(raw)) + raw)

def seconds(command):
    start = time.time()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr[-2000:])
    return time.time() - start, done

def main():
    a = argparse.ArgumentParser()
    a.add_argument("folder"); a.add_argument("--tokkata", required=True); a.add_argument("--whisper"); a.add_argument("--ct2", action="store_true")
    a.add_argument("--shape", default="small", choices=SHAPES); a.add_argument("--threads", type=int, default=2); a.add_argument("--rounds", type=int, default=2)
    a.add_argument("--windows", type=int, default=4); a.add_argument("--types", default="f16,q5_0,q8_0"); a.add_argument("--prepare", action="store_true")
    a = a.parse_args()
    os.makedirs(a.folder, exist_ok=True)
    d, t = dims(a.shape), str(a.threads)
    path = lambda kind: f"{a.folder}/{a.shape}-{kind}.bin"
    kinds = a.types.split(",")
    if not os.path.exists(path("f16")): ggml(path("f16"), d)
    for kind in kinds:
        if not os.path.exists(path(kind)): seconds([f"{a.whisper}/whisper-quantize", path("f16"), path(kind), kind])
    if a.ct2 and not os.path.exists(f"{a.folder}/{a.shape}-ct2"): ct2(f"{a.folder}/{a.shape}-ct2", d, "int8")
    short, long = f"{a.folder}/1.wav", f"{a.folder}/{1 + a.windows}.wav"
    wav(short, 1); wav(long, 1 + a.windows)
    eight = [f"{a.folder}/w{i}.wav" for i in range(8)]
    for w in eight: wav(w, 1)
    if a.prepare: return
    def ours(kind, *files, parallel=1):
        return [a.tokkata, "transcribe", "-m", path(kind), "-t", t, "-l", "en", "-bs", "1", "-nf", "-nt", "--no-context", "--parallel", str(parallel), *files]
    def cpp(kind, file):
        return [f"{a.whisper}/whisper-cli", "-m", path(kind), "-t", t, "-l", "en", "-bs", "1", "-bo", "1", "-nf", "-nt", "-mc", "0", "-f", file]
    def words(text):
        w = ranks()[WORD].decode().strip()
        return text.count(w)
    found = {}
    def note(what, value):
        found.setdefault(what, []).append(value)
        print(*what, f"{value:.2f} s a window", file=sys.stderr, flush=True)
    if a.ct2:
        import ctranslate2, torch
        from whisper.audio import log_mel_spectrogram, pad_or_trim
        model = ctranslate2.models.Whisper(f"{a.folder}/{a.shape}-ct2", device="cpu", compute_type="int8", intra_threads=a.threads, inter_threads=1)
        torch.set_num_threads(a.threads)
        sound = torch.from_numpy((noise(480000, 7, 6000) / 32768).astype(np.float32))
    for _ in range(a.rounds):
        for kind in kinds:
            for name, command in (("tokkata", ours), *([("whisper.cpp", cpp)] if a.whisper else [])):
                one, _ = seconds(command(kind, short))
                many, done = seconds(command(kind, long))
                assert words(done.stdout) == TOKENS * (1 + a.windows), (name, words(done.stdout), done.stdout[:300])
                note((kind, name), (many - one) / a.windows)
            some, _ = seconds(ours(kind, *eight[:1]))
            batch, _ = seconds(ours(kind, *eight, *eight[:1], parallel=8))
            # The ninth waits for a place, and is heard alone.
            note((kind, "8 side by side"), (batch - some) / 8)
        if a.ct2:
            start = time.time()
            for _ in range(2):
                mel = pad_or_trim(log_mel_spectrogram(sound, d["n_mels"]), 3000)[None].numpy()
                out = model.generate(ctranslate2.StorageView.from_array(mel), [[50258, 50259, 50359, 50363]], beam_size=1, max_length=448)
                assert len(out[0].sequences_ids[0]) == TOKENS, len(out[0].sequences_ids[0])
            note(("int8", "ctranslate2"), (time.time() - start) / 2)
    print(f"| {a.shape}, {t} threads | seconds a window | runs |\n|---|---|---|")
    for (kind, name), all in found.items():
        print(f"| {kind} {name} | {statistics.median(all):.2f} | {' '.join(f'{x:.2f}' for x in all)} |")

if __name__ == "__main__":
    main()
