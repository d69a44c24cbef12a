"""What the package itself costs: python costs.py MODEL.gguf

Seconds to import, the caller's CPU time per token at 1 and 32 sequences, and NumPy's view of 32 rows of 150,000 logits.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

code = "from time import *; t, c = perf_counter(), process_time(); import tokkata; print(perf_counter() - t, process_time() - c)"
said = [subprocess.check_output([sys.executable, "-c", code]).split() for _ in range(9)]
for i, name in enumerate(("import", "import, CPU time")):
    took = sorted(float(one[i]) * 1e3 for one in said)
    print(f"{name}: {took[4]:.1f} ms ({took[0]:.1f} to {took[-1]:.1f})")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from benchmark import answers  # noqa: E402

from tokkata import Model  # noqa: E402

for n in (1, 32):
    model = Model(sys.argv[1], n_seqs=n, n_ctx=320)
    costs = []
    for _ in range(6):
        began = time.thread_time()
        made, _ = answers(model, n, 256)
        costs.append((time.thread_time() - began) * 1e6 / made)
    costs = sorted(costs[1:])
    print(f"{n} sequences: {statistics.median(costs):.1f} us a token ({costs[0]:.1f} to {costs[-1]:.1f})")

import numpy as np  # noqa: E402

model = Model(sys.argv[1], n_ctx=64, n_logit_rows=32)
ids = (model.tokenize("Once upon a time there was a cat.") * 8)[:32]
floats = model._model.logits(ids)
began = time.perf_counter()
array = np.asarray(floats)
took = (time.perf_counter() - began) * 1e6
print(f"{array.shape[0]} x {array.shape[1]} logits to NumPy: {took:.1f} us, shares memory: {not array.flags.owndata}")
