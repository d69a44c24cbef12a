"""First token, tokens per second and this thread's CPU time per token: python benchmark.py MODEL.gguf SEQUENCES TOKENS"""

import sys
import time

from tokkata import Model


def answers(model: Model, n: int, tokens: int) -> tuple[int, float]:
    """Lets `n` answers run side by side; gives the tokens that came, and when the first did."""
    first, made = 0.0, 0
    running = [
        model.generate("Once upon a time", temperature=0, max_tokens=tokens, ignore_end=True) for _ in range(n)
    ]
    while running:
        for answer in list(running):
            piece = next(answer, None)
            if piece is None:
                running.remove(answer)
            elif piece.token is not None:
                made += 1
                first = first or time.perf_counter()
    return made, first


if __name__ == "__main__":
    path, n, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    model = Model(path, n_seqs=n, n_ctx=tokens + 64)
    for _ in range(5):
        began, cpu = time.perf_counter(), time.thread_time()
        made, first = answers(model, n, tokens)
        took, cpu = time.perf_counter() - began, time.thread_time() - cpu
        print(
            f"first token {(first - began) * 1e3:.2f} ms, {made / took:.1f} tokens/s, "
            f"{cpu * 1e6 / made:.1f} us of the caller's CPU per token"
        )
