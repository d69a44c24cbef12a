"""Keeps training apart from `asked.txt`: no prompt of training has the wording of one of its questions.

Wordings are compared without their values: numbers, names, days, months and topics.
"""

import functools
import os
import re

import lists
import words as w
from grammar import plain

HERE = os.path.dirname(os.path.abspath(__file__))


def questions():
    """The last turns of all questions of `asked.txt`."""
    with open(os.path.join(HERE, "asked.txt"), encoding="utf-8") as file:
        for line in file:
            question, mark, _ = line.partition(" =>")
            if mark and not line.startswith("#"):
                yield question.split(" // ")[-1].replace("\\n", "\n")


@functools.lru_cache(maxsize=1)
def _values():
    values = {word for _, things in lists.CATEGORIES for word in things.lower().split() if len(word) > 1}
    values |= {t.lower() for t in w.TOPICS + w.NAMES} | {d.lower() for d in lists.DAYS + lists.MONTHS}
    return values | set(lists.ONES) | set(lists.TENS) | set(lists.ORDINALS)


def wording(text):
    """The prompt with `#` for its values; one without words is itself."""
    if not re.search("[A-Za-z]", text):
        return text.strip()
    words = re.sub(r"\d+([.,]\d+)*", " #", plain(re.sub(r"(\d)\.(\d)", r"\1\2", text))).split()
    shown = ["#" if word in _values() or word.rstrip("s") in _values() else word for word in words]
    return re.sub(r"#( (and |or )?#)+", "#", " ".join(shown)) or text.strip()


@functools.lru_cache(maxsize=1)
def kept():
    """The wordings that training must not have."""
    return frozenset(map(wording, questions()))


def is_kept(prompt):
    return wording(prompt) in kept()
