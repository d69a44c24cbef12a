"""What guesses give, task by task: tokens per step and per second of the program's greedy answers to the tests.

    python drafts.py --tokkata PATH [--model FILE]
"""

import argparse
import json

import check

# A name, and the flags that make it guess.
WAYS = [("none", "none", 1), ("head, 1", "mtp", 1), ("head, 3", "mtp", 3), ("head, 8", "mtp", 8), ("n-grams, 8", "ngram", 8), ("both, 8", "auto", 8)]


def answer(tokkata, model, prompt, kind, most):
    flags = [*check.GREEDY, "--spec-type", kind, "--spec-draft-n-max", str(most), "-o", "json"]
    return json.loads(check.output([tokkata, "complete", "-m", model, "-p", prompt, *flags]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokkata", default="target/release/tokkata")
    parser.add_argument("--model", default="demo")
    args = parser.parse_args()
    sums = {}
    for test in check.load_tests():
        prompt = check.prompt_of(args.tokkata, args.model, test)
        texts = set()
        for name, kind, most in WAYS:
            got = answer(args.tokkata, args.model, prompt, kind, most)
            texts.add(got["text"])
            row = sums.setdefault(test["kind"], {}).setdefault(name, [0, 0, 0, 0.0])
            # The end of an answer is a token, too.
            for i, value in enumerate((got["generated_tokens"] + 1, got["draft_n"], got["draft_n_accepted"], got["generate_ms"])):
                row[i] += value
        if len(texts) > 1:
            raise SystemExit(f"{test['prompt']!r}: the text depends on who guesses")
    print(f"{'task':9} {'tokens':>7}" + "".join(f"{name:>24}" for name, _, _ in WAYS))
    for kind, rows in sums.items():
        cells = []
        for name, _, _ in WAYS:
            tokens, guessed, right, ms = rows[name]
            cells.append(f"{tokens / max(1, tokens - right):5.2f} {right:5}/{guessed:5} {1000 * tokens / ms:5.0f}/s")
        print(f"{kind:9} {rows['none'][0]:7}" + "".join(f"{c:>24}" for c in cells))


if __name__ == "__main__":
    main()
