"""A Whisper of CTranslate2 as a directory of Hugging Face. Usage: whisper_ct2.py CT2_FOLDER OUT_FOLDER.

`model.bin` keeps the values as they were published; only names and the joining of projections differ. It is, in little-endian:
u32 version, name and u32 revision of the specification, u32 count, then of each variable its name (u16 length with a closing zero), u8 rank,
u32 of each dimension, u8 element type (4: half), u32 bytes and the bytes. Rows of a joined projection stand one part after the other, and
the bias of K, which Whisper does not have, is zero.
"""
import json, os, shutil, struct, sys
from pathlib import Path

HALF = 4

def variables(path):
    data, at = Path(path).read_bytes(), 0
    def take(form):
        nonlocal at
        found = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return found[0] if len(found) == 1 else found
    def name():
        return take(f"{take('H')}s").rstrip(b"\0").decode()
    version, spec, _, count = take("I"), name(), take("I"), take("I")
    if version != 6 or spec != "WhisperSpec":
        raise SystemExit(f"{path}: {spec} in version {version}; expected WhisperSpec in version 6")
    out = {}
    for _ in range(count):
        key, rank = name(), take("B")
        shape = [take("I") for _ in range(rank)]
        kind, size = take("B"), take("I")
        out[key] = (shape, kind, data[at:at + size])
        at += size
    return out

def scalar(variable):
    return int.from_bytes(variable[2], "little")

def tensors(found):
    """Names of Hugging Face with shapes and bytes."""
    out = {}
    def put(name, shape, data):
        assert len(data) == 2 * eval("*".join(map(str, shape))), name
        out["model." + name] = (shape, data)
    def whole(theirs, ours):
        shape, kind, data = found.pop(theirs)
        if kind != HALF:
            raise SystemExit(f"{theirs}: elements of type {kind}; expected halves (4)")
        return ours, shape, data
    def linear(theirs, *names):
        """A linear map, or as many as there are names one below the other."""
        _, (rows, columns), weight = whole(f"{theirs}/weight", None)
        _, _, bias = whole(f"{theirs}/bias", None)
        rows //= len(names)
        for i, name in enumerate(names):
            part = bias[i * rows * 2:(i + 1) * rows * 2]
            put(f"{name}.weight", [rows, columns], weight[i * rows * columns * 2:(i + 1) * rows * columns * 2])
            if name.endswith("k_proj"):
                assert not any(part), f"{name} has a bias"
            else:
                put(f"{name}.bias", [rows], part)
    def norm(theirs, name):
        put(*whole(f"{theirs}/gamma", f"{name}.weight"))
        put(*whole(f"{theirs}/beta", f"{name}.bias"))
    def attention(theirs, name, cross):
        norm(f"{theirs}/layer_norm", f"{name}_layer_norm")
        if cross:
            linear(f"{theirs}/linear_0", f"{name}.q_proj")
            linear(f"{theirs}/linear_1", f"{name}.k_proj", f"{name}.v_proj")
        else:
            linear(f"{theirs}/linear_0", f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        linear(f"{theirs}/linear_{1 + cross}", f"{name}.out_proj")
    for conv in ("conv1", "conv2"):
        put(*whole(f"encoder/{conv}/weight", f"encoder.{conv}.weight"))
        put(*whole(f"encoder/{conv}/bias", f"encoder.{conv}.bias"))
    put(*whole("decoder/embeddings/weight", "decoder.embed_tokens.weight"))
    for side in ("encoder", "decoder"):
        put(*whole(f"{side}/position_encodings/encodings", f"{side}.embed_positions.weight"))
        norm(f"{side}/layer_norm", f"{side}.layer_norm")
        for il in range(layers(found, side)):
            theirs, name = f"{side}/layer_{il}", f"{side}.layers.{il}"
            attention(f"{theirs}/self_attention", f"{name}.self_attn", False)
            if side == "decoder":
                attention(f"{theirs}/attention", f"{name}.encoder_attn", True)
            norm(f"{theirs}/ffn/layer_norm", f"{name}.final_layer_norm")
            linear(f"{theirs}/ffn/linear_0", f"{name}.fc1")
            linear(f"{theirs}/ffn/linear_1", f"{name}.fc2")
    left = [n for n, (shape, kind, _) in found.items() if kind == HALF or len(shape) > 1]
    assert not left, f"nothing took {left}"
    return out

def layers(found, side):
    parts = [n.split("/")[1] for n in found if n.startswith(f"{side}/layer_") and "norm" not in n.split("/")[1]]
    return 1 + max(int(p[6:]) for p in parts)

def config(found):
    vocab, width = found["decoder/embeddings/weight"][0]
    sizes = dict(d_model=width, vocab_size=vocab, num_mel_bins=found["encoder/conv1/weight"][0][1])
    for side in ("encoder", "decoder"):
        sizes[f"{side}_layers"] = layers(found, side)
        sizes[f"{side}_attention_heads"] = scalar(found[f"{side}/num_heads"])
        sizes[f"{side}_ffn_dim"] = found[f"{side}/layer_0/ffn/linear_0/bias"][0][0]
    sizes["max_source_positions"] = found["encoder/position_encodings/encodings"][0][0]
    sizes["max_target_positions"] = found["decoder/position_encodings/encodings"][0][0]
    return dict(model_type="whisper", architectures=["WhisperForConditionalGeneration"], activation_function="gelu", scale_embedding=False,
                tie_word_embeddings=True, torch_dtype="float16", bos_token_id=50257, eos_token_id=50257, decoder_start_token_id=50258, **sizes)

def save(path, tensors):
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = dict(dtype="F16", shape=shape, data_offsets=[at, at + len(data)])
        at += len(data)
    header = json.dumps(header, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        for _, data in tensors.values():
            f.write(data)

def main(source, out):
    source, out = Path(source), Path(out)
    os.makedirs(out, exist_ok=True)
    found = variables(source / "model.bin")
    (out / "config.json").write_text(json.dumps(config(found), indent=1))
    heads = json.loads((source / "config.json").read_text())["alignment_heads"]
    (out / "generation_config.json").write_text(json.dumps(dict(alignment_heads=heads)))
    shutil.copy(source / "tokenizer.json", out)
    save(out / "model.safetensors", tensors(found))

if __name__ == "__main__":
    main(*sys.argv[1:])
