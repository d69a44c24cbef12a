"""Writes training text, the test prompts and the held-out stories.

    python generate.py corpus OUT --documents N --seed S     text for the tokenizer
    python generate.py tests OUT                             the 224 prompts that check.py judges
    python generate.py stories OUT --documents N             stories about held-out pairs, for perplexity
    python generate.py show --documents N                    conversations to read
"""

import argparse
import json
import sys

import chat
import mix
import words as w
from stories import tell


def corpus(rng, documents):
    return ["".join(text for text, _ in chat.document(rng)) for _ in range(documents)]


def tests(rng):
    """Prompts whose phrasing and whose pair of words training does not have, all different."""
    found, seen = [], set()
    for make, count in mix.TESTS:
        while count:
            task = make(rng, heldout=True)
            if task.prompt in seen:
                continue
            seen.add(task.prompt)
            count -= 1
            record = {"kind": task.kind, "prompt": task.prompt, "pair": list(task.pair), "facts": task.facts, "answer": task.answer}
            if task.tools:
                record["tools"] = task.tools
            found.append(record)
    return found


def stories(rng, documents):
    return [tell(rng, *w.topic_pair(rng, heldout=True)).text for _ in range(documents)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["corpus", "tests", "stories", "show"])
    parser.add_argument("out", nargs="?")
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = w.new_rng(args.seed)
    if args.what == "tests":
        lines = [json.dumps(t, ensure_ascii=False) for t in tests(w.new_rng(f"tests {args.seed}"))]
        text = "[\n" + ",\n".join(lines) + "\n]\n"
    elif args.what == "stories":
        text = "\n\n".join(stories(w.new_rng(f"stories {args.seed}"), args.documents)) + "\n"
    else:
        text = "\n".join(corpus(rng, args.documents)) + "\n"
    if args.out:
        with open(args.out, "w", encoding="utf-8") as out:
            out.write(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
