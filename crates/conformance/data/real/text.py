"""What llama.cpp makes of texts with real weights. Usage: text.py ORACLE_FOLDER OUT.json MODEL.gguf…

ORACLE_FOLDER is where llama.cpp was built, with `goldens/oracle_rows` (`cargo xtask golden` compiles it); needs numpy. Ids of the texts below, and for each
of the first 200 rows of two passages: the best token and its lead over the next by the weights as single floats, and how much the token that follows surprises,
by those weights and by the file's own. A model is known by its name; what OUT.json already has of others stays.
"""
import json, subprocess, sys, tempfile
from pathlib import Path
import numpy as np

TEXTS = json.loads((Path(__file__).parent / "texts.json").read_text())

def ids(oracle, model, text):
    with tempfile.NamedTemporaryFile() as f:
        f.write(text.encode()), f.flush()
        command = [oracle / "build/bin/llama-tokenize", "-m", model, "-f", f.name, "--ids", "--log-disable", "--no-escape"]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

def rows(oracle, model, ids):
    with tempfile.NamedTemporaryFile() as f:
        command = [oracle / "goldens/oracle_rows", model, f.name, "logits", ",".join(map(str, ids))]
        subprocess.run(command, capture_output=True, check=True)
        x = np.fromfile(f.name, "<f4").reshape(len(ids), -1).astype(np.float64)
    return x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)

def surprise(rows, ids):
    return [round(float(-rows[i, t]), 6) for i, t in enumerate(ids[1:])]

def passage(oracle, model, floats, text):
    own = ids(oracle, model, text)[:200]  # oracle_rows has a context of 256
    exact = rows(oracle, floats, own)
    top = np.sort(exact, -1)[:, -2:]
    return dict(ids=own, best=exact.argmax(-1).tolist(), lead=[round(float(b - a), 4) for a, b in top], exact=surprise(exact, own),
                theirs=surprise(rows(oracle, model, own), own))

def main(oracle, out, *models):
    oracle, out = Path(oracle), Path(out)
    known = json.loads(out.read_text()) if out.exists() else {}
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            floats = Path(folder) / "floats.gguf"
            command = [oracle / "build/bin/llama-quantize", "--allow-requantize", model, floats, "f32"]
            subprocess.run(command, capture_output=True, check=True)
            known[Path(model).name] = dict(texts={n: ids(oracle, model, t) for n, t in TEXTS["texts"].items()},
                                           passages={n: passage(oracle, model, floats, t) for n, t in TEXTS["passages"].items()})
        out.write_text(json.dumps(known, separators=(",", ":")) + "\n")

if __name__ == "__main__":
    main(*sys.argv[1:])
