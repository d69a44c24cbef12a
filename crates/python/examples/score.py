"""How likely texts are, a line each, many at once: python score.py MODEL.gguf < texts (needs numpy)"""

import sys
from concurrent.futures import ThreadPoolExecutor

from tokkata import Model

model = Model(sys.argv[1], n_seqs=8)
lines = [line.rstrip("\n") for line in sys.stdin]
with ThreadPoolExecutor(8) as pool:
    for line, scores in zip(lines, pool.map(lambda text: model.scores(model.tokenize(text)), lines)):
        print(f"{scores.sum():10.2f}  {line}")
