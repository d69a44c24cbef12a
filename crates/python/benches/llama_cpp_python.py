"""Beside llama-cpp-python on the same file: python llama_cpp_python.py MODEL.gguf [LLAMA_BENCH] [--tokens 64] [--rounds 9] [--threads 2]

One thread that asks, and eight at once, of which the other package can only answer one after the other; neither package guesses
tokens. With LLAMA_BENCH, the program of that name over the same llama.cpp, `tokkata bench` and it run between, so that the
packages' ratio stands beside the engines' own. All run in turn in every round. Prints tokens per second, and ratios as medians
over rounds with their smallest and largest; those by the process's CPU time are what other programs of the machine do not
disturb.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import llama_cpp

from tokkata import Model, TokkataError

args = argparse.ArgumentParser(usage=__doc__)
args.add_argument("model")
args.add_argument("llama_bench", nargs="?")
args.add_argument("--tokens", type=int, default=64)
args.add_argument("--rounds", type=int, default=9)
args.add_argument("--threads", type=int, default=2)
asked = args.parse_args()
PROMPT = "Once upon a time there was a cat who"

ours = Model(asked.model, n_ctx=512, n_seqs=8, threads=asked.threads, speculation="none")
theirs = llama_cpp.Llama(
    model_path=asked.model,
    n_ctx=512,
    n_threads=asked.threads,
    n_threads_batch=asked.threads,
    flash_attn=True,
    verbose=False,
)
one_at_a_time = threading.Lock()


def prompt() -> list[int]:
    """The prompt's tokens; any, where a file made for timing has no vocabulary."""
    try:
        return ours.tokenize(PROMPT)
    except TokkataError:
        return list(range(100, 110))


ids = prompt()


def ask_ours() -> int:
    answer = ours.generate(ids, max_tokens=asked.tokens, temperature=0.0, ignore_end=True)
    answer.text()
    return len(answer.tokens)


def ask_theirs() -> int:
    with one_at_a_time:
        made = 0
        for _ in theirs.generate(ids, temp=0.0, reset=True):
            made += 1
            if made == asked.tokens:
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


def bench(*program: str) -> float:
    """Tokens by second that a program with llama-bench's flags tells."""
    flags = ["-m", asked.model, "-t", str(asked.threads), "-p", "0", "-n", str(asked.tokens), "-r", "1", "-o", "json"]
    told = subprocess.run([*program, *flags], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return float(json.loads(told)[0]["avg_ts"])


def shown(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


for callers in (1, 8):
    rate(ask_ours, callers), rate(ask_theirs, callers)
    pairs, engines = [], []
    for _ in range(asked.rounds):
        pairs.append((rate(ask_ours, callers), rate(ask_theirs, callers)))
        if asked.llama_bench is not None and callers == 1:
            own = bench(sys.executable, "-m", "tokkata", "bench")
            engines.append(own / bench(asked.llama_bench, "-fa", "1"))
    a, b = (statistics.median(pair[i][0] for pair in pairs) for i in (0, 1))
    wall, cpu = ([a[i] / b[i] for a, b in pairs] for i in (0, 1))
    print(
        f"{callers} at once: tokkata {a:.1f} tokens/s, llama-cpp-python {llama_cpp.__version__} {b:.1f}, "
        f"ratio {shown(wall)}, by CPU time {shown(cpu)}",
        flush=True,
    )
    if engines:
        share = statistics.median(wall) / statistics.median(engines)
        print(f"  bench: ratio {shown(engines)}; the packages' is {share:.0%} of it (goal: 95 % or more)", flush=True)
