"""Writes llama.cpp's greedy answers to the prompts of the golden file anew: F32 cache, no flash attention, nothing guessed.

    python golden.py LLAMA_COMPLETION [MODEL.gguf]
"""

import json
import os
import subprocess
import sys

import chat
import check

END = " [end of text]\n\n\n"
FILE = os.path.join(check.HERE, "../crates/cli/tests/golden/demo.json")


def answer(model, program, test):
    prompt = chat.render([("user", test["prompt"])], tools=test.get("tools"))
    flags = ["--temp", "0", "-n", "400", "-ctk", "f32", "-ctv", "f32", "-fa", "off", "-no-cnv", "--no-display-prompt", "--no-warmup", "-t", "1"]
    done = subprocess.run([program, "-m", model, "-p", prompt, *flags], check=True, capture_output=True, text=True, encoding="utf-8")
    if not done.stdout.endswith(END):
        raise SystemExit(f"{test['prompt']!r}: no end in {done.stdout!r}")
    return done.stdout.removesuffix(END)


def main():
    program, *model = sys.argv[1:]
    with open(FILE, encoding="utf-8") as file:
        records = json.load(file)
    for record in records:
        record["answer"] = answer(*(model or [os.path.join(check.HERE, "demo.gguf")]), program, record)
    with open(FILE, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(r, ensure_ascii=False) for r in records) + "\n]\n")


if __name__ == "__main__":
    main()
