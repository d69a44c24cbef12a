"""Rows of Transformers for the goldens' models, written beside the oracle's.

usage: verify.py [--write] [GOLDEN...]

Every model is built from a configuration with the weights of its golden, in float64 with plain attention. A parameter
that nothing fills and a tensor that nothing reads are errors. Needs torch, transformers, gguf and numpy.
"""

import sys
import warnings

import gguf
import numpy as np
import torch
import transformers

from families import FAMILIES
from golden import Golden
from names import fill

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
TITLE = f"Transformers {transformers.__version__} in float64"


def build(golden, family):
    """The model of a golden, filled."""
    torch.manual_seed(0)
    config = family.config(golden)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    with torch.device("cpu"):
        model = family.model(config)
    model = model.double().eval()
    missing = fill(model, golden, family)
    unused = golden.unused()
    unused = [n for n in unused if not any(part in n for part in family.ignore)]
    if missing or unused:
        raise ValueError(f"parameters without values: {missing}; tensors without a place: {unused}")
    return model


def rows(golden, family):
    model = build(golden, family)
    ids = torch.tensor([golden.ids()])
    with torch.no_grad():
        if golden.json["rows"] == "decoder":
            ids = dict(input_ids=ids, decoder_input_ids=torch.tensor([golden.decoder_ids()]))
        else:
            ids = dict(input_ids=ids)
        out = model(**ids, **family.call)
    found = out.last_hidden_state if golden.json["rows"] == "vectors" else out.logits
    return found[0].double().numpy()


def nmse(got, want):
    keep = np.isfinite(want) & (want > -1e38)
    return float(((got - want)[keep] ** 2).sum() / (want[keep] ** 2).sum())


def main():
    args = sys.argv[1:]
    write = "--write" in args
    chosen = [a for a in args if not a.startswith("--")] or sorted(FAMILIES)
    good = 0
    for name in chosen:
        try:
            golden = Golden(name)
            found = rows(golden, FAMILIES[name])
            kept = found[:, ::golden.json["stride"]].reshape(-1)
            error = nmse(kept, golden.want())
            good += error <= 1e-6
            print(f"{name:<20} {error:.1e} from the other oracle", flush=True)
            if write and error <= 1e-6:
                golden.write(found, TITLE)
        except Exception as e:  # the next golden still has to run
            print(f"{name:<20} {type(e).__name__}: {str(e)[:1500]}", flush=True)
            if "--trace" in args:
                raise
    print(f"{good} of {len(chosen)} agree with {TITLE}")


if __name__ == "__main__":
    main()
