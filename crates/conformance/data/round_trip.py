"""Takes tiny checkpoints of every family from a directory to GGUF, to llama.cpp, and on to safetensors.

    python round_trip.py TOKKATA ORACLE_ROWS [NAME ...]

TOKKATA is the program, ORACLE_ROWS is oracle_rows.cpp built against llama.cpp. For every golden of a Hugging Face
checkpoint: its directory is written from the golden, converted to GGUF in F32, run by llama.cpp and by TOKKATA from both
containers; the GGUF file is converted to safetensors, whose tensors must be those of the GGUF file. Rows are logits, the
decoder's logits over an encoded text, or vectors before pooling. The last line counts those that agree: at most 1e-9
from Transformers, 0 between the containers, and 1e-6 from llama.cpp, which looks GELU up in a table of F16. Gemma 3n's
cut makes more of that table's error, so that only a llama.cpp that computes GELU agrees. Those that llama.cpp runs
otherwise than Transformers do not agree: mellum+bases, phimoe, chameleon+swin, gemma3n+sparse (docs/limits.md).
"""

import json
import os
import subprocess
import sys
import tempfile

import numpy as np
from gguf import GGUFReader
from safetensors.numpy import load_file, save_file

from hf_values import ids, values

GOLDENS = os.path.join(os.path.dirname(__file__), "..", "goldens-hf")


def directory(name, folder):
    with open(os.path.join(GOLDENS, name + ".json")) as f:
        golden = json.load(f)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(golden["config"], f)
    tensors = {key: values(key, shape, (centre, spread)) for key, (shape, centre, spread) in golden["tensors"].items()}
    save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    return golden


# llama.cpp suppresses Chameleon's picture tokens in the first row of a batch only.
def nmse(found, wanted, all_rows=True):
    found, wanted = found.astype(np.float64).reshape(-1), wanted.astype(np.float64).reshape(-1)
    # Logits that a model never gives are the least number in one program and -inf in another.
    silent = lambda rows: ~(rows > np.finfo(np.float32).min / 2)
    assert np.array_equal(silent(found), silent(wanted)) or not all_rows, "other logits suppressed"
    both = ~(silent(found) | silent(wanted))
    found, wanted = found[both], wanted[both]
    return float(((found - wanted) ** 2).sum() / (wanted**2).sum())


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1][:160])
    return done


def feed(golden):
    """Ids as the programs take them; those of the decoder too where there is one."""
    text = golden["config"].get("text_config", golden["config"])
    listed = lambda seed, n: ",".join(map(str, ids(seed, n, text["vocab_size"])))
    fed = [listed(golden["seed"], golden["positions"])]
    if golden["rows"] == "decoder":
        fed.append(listed(golden["seed"] + 1, golden["positions"] // 2))
    return fed


def rows(program, model, golden, out):
    fed = feed(golden)
    if golden["rows"] == "vectors":
        how = ["--pooling", "none", "--normalize", "none"]
        run(program, "embed", "-m", model, "--ids", *fed, *how, "-o", out, "-t", "1")
        return next(iter(load_file(out).values()))
    decoder = ["--decoder-ids", fed[1]] if fed[1:] else []
    run(program, "logits", "-m", model, "--ids", fed[0], *decoder, "-o", out, "-t", "1")
    return load_file(out)["logits"]


def trip(program, oracle, name):
    """The errors against Transformers, between the containers and against llama.cpp."""
    with tempfile.TemporaryDirectory() as folder:
        golden = directory(name, folder)
        at = lambda file: os.path.join(folder, file)
        run(program, "convert", folder, at("m.gguf"), "--outtype", "f32")
        run(program, "convert", at("m.gguf"), at("back.safetensors"))
        ours = {t.name: np.array(t.data) for t in GGUFReader(at("m.gguf")).tensors}
        back = load_file(at("back.safetensors"))
        assert ours.keys() == back.keys(), "other names in safetensors"
        assert all(np.array_equal(ours[k].reshape(-1), back[k].reshape(-1)) for k in ours), "other values in safetensors"
        wanted = np.fromfile(os.path.join(GOLDENS, name + ".f32"), "<f4")
        from_directory = rows(program, folder, golden, at("d.safetensors"))
        from_gguf = rows(program, at("m.gguf"), golden, at("g.safetensors"))
        sampled = from_gguf[:, :: golden["stride"]].reshape(-1)
        run(oracle, at("m.gguf"), at("l.bin"), golden["rows"], *feed(golden))
        theirs = np.fromfile(at("l.bin"), "<f4").reshape(from_gguf.shape)
        return nmse(sampled, wanted), nmse(from_gguf, from_directory), nmse(theirs, from_gguf, all_rows=False)


def main(program, oracle, *names):
    names = names or sorted(f[:-5] for f in os.listdir(GOLDENS) if f.endswith(".json"))
    good = 0
    for name in names:
        try:
            transformers, directory, llama = trip(program, oracle, name)
            good += transformers <= 1e-9 and directory == 0 and llama <= 1e-6
            print(f"{name:<20} Transformers {transformers:.1e}, directory {directory:.1e}, llama.cpp {llama:.1e}", flush=True)
        except Exception as error:
            print(f"{name:<20} {type(error).__name__}: {error}", flush=True)
    print(f"{good} of {len(names)} agree")


if __name__ == "__main__":
    main(*sys.argv[1:])
