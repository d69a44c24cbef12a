"""Small models for the suites of others: `python models.py TESTDATA FOLDER`. Their words mean nothing; their shapes do."""

import shutil
import sys
from pathlib import Path

import gguf
import numpy as np

TESTDATA, FOLDER = Path(sys.argv[1]), Path(sys.argv[2])
WIDTH, HEADS, INNER, LAYERS, POSITIONS = 64, 4, 128, 2, 1024
draws = np.random.default_rng(7)
PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]


def weights(*shape):
    return (draws.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)


def copy_fields(reader, writer, prefix, leave=()):
    for field in reader.fields.values():
        if not field.name.startswith(prefix) or field.name in leave:
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=sub)


def infill(source, out):
    """The model that tells stories, with tokens for what comes before, behind and between."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, "llama")
    copy_fields(reader, writer, ("llama.", "tokenizer.", "general.name"))
    for place, name in enumerate(["fim_pre", "fim_suf", "fim_mid", "fim_rep", "fim_sep"]):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", 4 + place)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    finish(writer)


def bert(vocab, out, labels, width=WIDTH, heads=HEADS):
    """An encoder with a real vocabulary; with `labels` it scores documents."""
    reader = gguf.GGUFReader(vocab)
    writer = gguf.GGUFWriter(out, "bert")
    writer.add_name("tiny encoder")
    copy_fields(reader, writer, "tokenizer.")
    for name, count in {
        "context_length": POSITIONS,
        "embedding_length": width,
        "block_count": LAYERS,
        "feed_forward_length": INNER,
        "attention.head_count": heads,
        "pooling_type": 4 if labels else 2,
    }.items():
        writer.add_uint32(f"bert.{name}", count)
    writer.add_float32("bert.attention.layer_norm_epsilon", 1e-12)
    writer.add_bool("bert.attention.causal", False)
    words = len(reader.fields["tokenizer.ggml.tokens"].data)
    tensors = {"token_embd.weight": (words, width), "token_types.weight": (2, width), "position_embd.weight": (POSITIONS, width)}
    norms = ["token_embd_norm"]
    for layer in range(LAYERS):
        name = f"blk.{layer}."
        linear = dict.fromkeys(["attn_q", "attn_k", "attn_v", "attn_output"], (width, width))
        linear |= {"ffn_up": (INNER, width), "ffn_down": (width, INNER)}
        for part, shape in linear.items():
            tensors |= {f"{name}{part}.weight": shape, f"{name}{part}.bias": shape[:1]}
        norms += [name + "attn_output_norm", name + "layer_output_norm"]
    if labels:
        tensors |= {"cls.weight": (width, width), "cls.bias": (width,)}
        tensors |= {"cls.output.weight": (1, width), "cls.output.bias": (1,)}
    for name, shape in tensors.items():
        table = name == "token_embd.weight"
        writer.add_tensor(name, weights(*shape).astype(np.float16 if table else np.float32))
    for name in norms:
        writer.add_tensor(name + ".weight", np.ones(width, np.float32))
        writer.add_tensor(name + ".bias", np.zeros(width, np.float32))
    finish(writer)


def qwen(reader, template, out, name, leave=()):
    """A file with Qwen's vocabulary, but for what is left out of it, and a template."""
    writer = gguf.GGUFWriter(out, "qwen2")
    writer.add_name(name)
    copy_fields(reader, writer, "tokenizer.", leave=("tokenizer.chat_template", *leave))
    writer.add_chat_template(template.read_text())
    return writer


def layers(writer, table, head, count, adds=1, given=None):
    """Its model: a table of tokens, so many layers that add so much of what comes, and a head; `given` are weights by name."""
    given = given or {}
    for name, number in {
        "context_length": 8192,
        "embedding_length": WIDTH,
        "block_count": count,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
    }.items():
        writer.add_uint32(f"qwen2.{name}", number)
    writer.add_float32("qwen2.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32("qwen2.rope.freq_base", 1e6)
    writer.add_tensor("token_embd.weight", table.astype(np.float16))
    writer.add_tensor("output.weight", head.astype(np.float16))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(count):
        name = f"blk.{layer}."
        for part in ["attn_q", "attn_k", "attn_v"]:
            writer.add_tensor(f"{name}{part}.weight", given.get(f"{part}.weight", weights(WIDTH, WIDTH)))
            writer.add_tensor(f"{name}{part}.bias", given.get(f"{part}.bias", weights(WIDTH)))
        for part, shape, scale in [("attn_output", (WIDTH, WIDTH), adds), ("ffn_gate", (INNER, WIDTH), 1), ("ffn_up", (INNER, WIDTH), 1), ("ffn_down", (WIDTH, INNER), adds)]:
            writer.add_tensor(f"{name}{part}.weight", given.get(f"{part}.weight", scale * weights(*shape)))
        for part in ["attn_norm", "ffn_norm"]:
            writer.add_tensor(f"{name}{part}.weight", np.ones(WIDTH, np.float32))
    finish(writer)


def chance(vocab, template, out):
    """A model with Qwen's vocabulary and template, which writes whatever comes."""
    reader = gguf.GGUFReader(vocab)
    writer = qwen(reader, template, out, "tiny writer")
    count = len(reader.fields["tokenizer.ggml.tokens"].data)
    layers(writer, weights(count, WIDTH), 4 * weights(count, WIDTH), LAYERS)


# Tokens of Qwen 3 that the vocabulary has no names for yet.
NAMED = {"<tool_call>": 151657, "</tool_call>": 151658, "<think>": 151667, "</think>": 151668}
# What models of a script write, whatever they are asked: each token follows from the one before alone, so none comes twice.
ANSWER = "will be sunny tomorrow , with some wind from north"
THOUGHT = "Somebody asks about weather so a look at what is known comes before any answer of mine here"
NAMES = [" John", " Mark"]
WEATHER = '\n{"name": "get_current_weather", "arguments": {"country": "Germany", "unit": "fahrenheit"}}\n'
PARIS = '\n{"name": "get_weather", "arguments": {"location": "Paris"}}\n'


def call(text):
    return ["<tool_call>", text, "</tool_call>", "<|im_end|>"]


def scripted(vocab, template, out, scripts, named, others, recalled=()):
    """A model with Qwen's vocabulary that writes scripts, each as strongly as its number says: what follows a token stands in
    the head, whose other rows are as large as `others` says. `named` are texts that are one token. Of the words that are `recalled`
    the last one in the conversation comes instead, where there is one."""
    reader = gguf.GGUFReader(vocab)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    others_of = [byte for byte in range(256) if byte not in PRINTED]
    letters = {byte: chr(byte) for byte in PRINTED} | {byte: chr(256 + i) for i, byte in enumerate(others_of)}
    spelled = lambda text: "".join(letters[byte] for byte in text.encode())
    for text, place in (NAMED | {text: 151700 + i for i, text in enumerate(named)}).items():
        tokens[place] = text
    ids = {token: i for i, token in enumerate(tokens)}
    number = lambda text: ids[text] if text in ids else ids[spelled(text)]
    writer = qwen(reader, template, out, "tiny script", leave=("tokenizer.ggml.tokens", "tokenizer.ggml.eos_token_id"))
    writer.add_token_list(tokens)
    writer.add_uint32("tokenizer.ggml.eos_token_id", number("<|im_end|>"))
    table, head = weights(len(tokens), WIDTH), others * weights(len(tokens), WIDTH)
    pairs = {(number(before), number(after)): strength for strength, script in scripts for before, after in zip(script, script[1:])}
    head[[after for _, after in pairs]] = 0
    for (before, after), strength in pairs.items():
        head[after] += strength * table[before] / np.linalg.norm(table[before])
    given = recall(table, head, [number(word) for word in recalled]) if recalled else {}
    layers(writer, table, head, 1, adds=0, given=given)


def recall(table, head, ids):
    """Weights with which every token attends to the last of some tokens, as far as 300 positions back, and writes it again:
    the first coordinate says that a token is one of them, the next ones which, and those behind them what was found."""
    kinds, found = 1 + np.arange(len(ids)), 1 + len(ids) + np.arange(len(ids))
    table[:, : 1 + 2 * len(ids)], head[:, : 1 + 2 * len(ids)] = 0, 0
    table[ids] *= 0.5
    table[ids, 0], table[ids, kinds], head[ids, found] = 0.5, 0.5, 3
    given = {f"attn_{part}": np.zeros((WIDTH, WIDTH) if part.endswith("weight") else WIDTH, np.float32) for part in ("q.weight", "q.bias", "k.weight", "k.bias", "v.weight", "v.bias", "output.weight")}
    # The fourth of a head's angles turns so slowly that what is nearer fits better.
    given["attn_q.bias"][3], given["attn_k.weight"][3, 0] = 55, 14
    given["attn_v.weight"][: len(ids), kinds] = np.eye(len(ids)) / 4
    given["attn_output.weight"][found, : len(ids)] = np.eye(len(ids))
    return given


def words(text):
    return [word if word == "," else " " + word for word in text.split()]


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    tiny = TESTDATA / "models/dreams-260k.gguf"
    if tiny.exists():
        shutil.copyfile(tiny, FOLDER / "tiny.gguf")
        infill(tiny, FOLDER / "infill.gguf")
    vocab = TESTDATA / "vocab/ggml-vocab-bert-bge.gguf"
    if vocab.exists():
        # As wide as the base models that it stands in for.
        bert(vocab, FOLDER / "bert.gguf", labels=False, width=768, heads=12)
        bert(vocab, FOLDER / "reranker.gguf", labels=True)
    vocab, template = TESTDATA / "vocab/ggml-vocab-qwen2.gguf", TESTDATA / "templates/Qwen-Qwen2.5-7B-Instruct.jinja"
    if vocab.exists() and template.exists():
        chance(vocab, template, FOLDER / "qwen.gguf")
        calls, answers = ["\n", *call(PARIS)], ["\n", "It", *words(ANSWER), "<|im_end|>"]
        scripted(vocab, template, FOLDER / "caller.gguf", [(3.5, answers), (4, calls)], [PARIS], 4)
        ends = [(6, [name, "<|im_end|>"]) for name in NAMES]
        scripted(vocab, template, FOLDER / "recaller.gguf", [(2, answers), *ends], [], 0, NAMES)
    template = TESTDATA / "templates/Qwen-Qwen3-0.6B.jinja"
    if vocab.exists() and template.exists():
        thinks = ["\n", "<think>", *words(THOUGHT), "</think>", "\n\n", "It", *words(ANSWER)]
        # Where there is nothing to call, the answer ends.
        scripts = [(6, [*thinks, *call(WEATHER)]), (5, [thinks[-1], "<|im_end|>"])]
        scripted(vocab, template, FOLDER / "thinker.gguf", scripts, [WEATHER], 0)


main()
