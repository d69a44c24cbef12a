"""Files by what they say: python search.py VECTORS.gguf RERANKER.gguf "a query" FILE… (needs numpy)"""

import sys
from pathlib import Path

import numpy as np

from tokkata import Model

vectors, reranker, query, *files = sys.argv[1:]
texts = [Path(file).read_text(errors="replace")[:2000] for file in files]
model = Model(vectors, purpose="vectors", n_seqs=8)
rows = np.asarray(model.embed([query, *texts]))
near = np.argsort(-(rows[1:] @ rows[0]))[:10]
scores = Model(reranker, purpose="vectors", pooling="rank", n_seqs=8).rerank(query, [texts[i] for i in near])
for score, i in sorted(zip(scores, near), reverse=True):
    print(f"{score:8.3f}  {files[i]}")
