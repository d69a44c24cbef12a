"""Beside llama-cpp-python on the same file, in turn: python llama_cpp_python.py MODEL.gguf [TOKENS] [ROUNDS] [THREADS]

One thread that asks, and eight at once, of which the other package can only answer one after the other. Prints tokens per
second of both, and their ratio, as medians over rounds; and the ratio by the process's CPU time, which other programs of the
machine do not disturb.
"""

import statistics
import sys
import threading
import time
from collections.abc import Callable

import llama_cpp

from tokkata import Model

path = sys.argv[1]
tokens, rounds, threads = (int(a) if a else d for a, d in zip([*sys.argv[2:5], "", "", ""], (64, 5, 2)))
PROMPT = "Once upon a time there was a cat who"

ours = Model(path, n_ctx=512, n_seqs=8, threads=threads)
theirs = llama_cpp.Llama(
    model_path=path, n_ctx=512, n_threads=threads, n_threads_batch=threads, flash_attn=True, verbose=False
)
one_at_a_time = threading.Lock()
ends = [theirs.token_eos()]


def ask_ours() -> int:
    answer = ours.generate(PROMPT, max_tokens=tokens, temperature=0.0, ignore_end=True)
    answer.text()
    return len(answer.tokens)


def ask_theirs() -> int:
    with one_at_a_time:
        ids = theirs.tokenize(PROMPT.encode())
        made = 0
        for _ in theirs.generate(ids, temp=0.0, reset=True):
            made += 1
            if made == tokens:
                return made
    return made


def rate(ask: Callable[[], int], callers: int) -> tuple[float, float]:
    """Tokens by second, and by second of CPU time."""
    made: list[int] = []
    began, cpu = time.perf_counter(), time.process_time()
    each = [threading.Thread(target=lambda: made.append(ask())) for _ in range(callers)]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    return sum(made) / (time.perf_counter() - began), sum(made) / (time.process_time() - cpu)


for callers in (1, 8):
    rate(ask_ours, callers), rate(ask_theirs, callers)
    pairs = [(rate(ask_ours, callers), rate(ask_theirs, callers)) for _ in range(rounds)]
    a, b = (statistics.median(pair[i][0] for pair in pairs) for i in (0, 1))
    wall, cpu = (sorted(ours[i] / theirs[i] for ours, theirs in pairs) for i in (0, 1))
    print(
        f"{callers} at once: tokkata {a:.1f} tokens/s, llama-cpp-python {llama_cpp.__version__} {b:.1f}, "
        f"ratio {statistics.median(wall):.2f} ({wall[0]:.2f} to {wall[-1]:.2f}), "
        f"by CPU time {statistics.median(cpu):.2f} ({cpu[0]:.2f} to {cpu[-1]:.2f})",
        flush=True,
    )
