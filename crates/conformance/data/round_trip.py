"""Takes tiny checkpoints of every family from a directory to GGUF, to llama.cpp, and on to safetensors.

    python round_trip.py TOKKATA LLAMA_LOGITS [NAME ...]

TOKKATA is the program, LLAMA_LOGITS writes a model's logits for the ids of the goldens. For every golden of a Hugging Face
checkpoint: its directory is written from the golden, converted to GGUF in F32, run by llama.cpp and by TOKKATA from both
containers; the GGUF file is converted to safetensors, whose tensors must be those of the GGUF file.
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


def nmse(found, wanted):
    return float(((found - wanted) ** 2).sum() / (wanted**2).sum())


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1][:160])
    return done


def logits(program, model, golden, out):
    text = golden["config"].get("text_config", golden["config"])
    fed = ids(golden["seed"], golden["positions"], text["vocab_size"])
    run(program, "logits", "-m", model, "--ids", ",".join(map(str, fed)), "-o", out, "-t", "1")
    return load_file(out)["logits"]


def trip(program, oracle, name):
    with tempfile.TemporaryDirectory() as folder:
        golden = directory(name, folder)
        at = lambda file: os.path.join(folder, file)
        run(program, "convert", folder, at("m.gguf"), "--outtype", "f32")
        run(program, "convert", at("m.gguf"), at("back.safetensors"))
        ours = {t.name: np.array(t.data) for t in GGUFReader(at("m.gguf")).tensors}
        back = load_file(at("back.safetensors"))
        assert ours.keys() == back.keys(), "other names in safetensors"
        assert all(np.array_equal(ours[k].reshape(-1), back[k].reshape(-1)) for k in ours), "other values in safetensors"
        if golden["rows"] != "logits":
            return "tensors equal; no logits"
        wanted = np.fromfile(os.path.join(GOLDENS, name + ".f32"), "<f4")
        from_directory = logits(program, folder, golden, at("d.safetensors"))
        from_gguf = logits(program, at("m.gguf"), golden, at("g.safetensors"))
        sampled = from_gguf[:, :: golden["stride"]].reshape(-1)
        report = f"Transformers {nmse(sampled, wanted):.1e}, directory {nmse(from_gguf, from_directory):.1e}"
        run(oracle, at("m.gguf"), at("l.bin"), str(golden["positions"]), str(golden["seed"]))
        theirs = np.fromfile(at("l.bin"), "<f4")[-from_gguf.size:].reshape(from_gguf.shape)
        return f"{report}, llama.cpp {nmse(theirs, from_gguf):.1e}"


def main(program, oracle, *names):
    names = names or sorted(f[:-5] for f in os.listdir(GOLDENS) if f.endswith(".json"))
    for name in names:
        try:
            print(f"{name:<20} {trip(program, oracle, name)}", flush=True)
        except Exception as error:
            print(f"{name:<20} {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
