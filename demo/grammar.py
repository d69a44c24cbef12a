"""Texts with choices: `[a|b|c]` takes one of its parts (nested, the first most often), `{slot}` a value."""

import itertools
import re
from functools import lru_cache


def _parse(text, at, closers):
    parts, literal = [], []
    while at < len(text) and text[at] not in closers:
        if text[at] == "[":
            options, at = _options(text, at + 1)
            parts.append("".join(literal))
            parts.append(options)
            literal = []
        else:
            literal.append(text[at])
            at += 1
    parts.append("".join(literal))
    return parts, at


def _options(text, at):
    options = []
    while True:
        part, at = _parse(text, at, "|]")
        options.append(part)
        if text[at] == "]":
            return tuple(options), at + 1
        at += 1


@lru_cache(maxsize=None)
def parsed(text):
    """The template as a list of literals and tuples of alternatives."""
    return _parse(text, 0, "")[0]


def _pick(rng, options, flat):
    if flat:
        return options[int(rng.random() * len(options))]
    left = rng.random()
    for option in options:
        if left < 0.58:
            return option
        left = (left - 0.58) / 0.42
    return options[0]


def _write(rng, parts, out, flat):
    for part in parts:
        if isinstance(part, str):
            out.append(part)
        else:
            _write(rng, _pick(rng, part, flat), out, flat)


def expand(rng, text, slots, flat=False):
    """The text with its choices made and its slots filled; `flat` makes all choices equally likely."""
    out = []
    _write(rng, parsed(text), out, flat)
    text = "".join(out)
    return text.format_map(slots) if "{" in text else text


def choose(rng, text):
    """The text with its choices made, all equally likely, and its slots left open."""
    out = []
    _write(rng, parsed(text), out, True)
    return "".join(out)


def every(text):
    """All texts that a template can become, slots unfilled."""
    def walk(parts):
        choices = [[p] if isinstance(p, str) else [s for option in p for s in walk(option)] for p in parts]
        return ["".join(c) for c in itertools.product(*choices)]
    return walk(parsed(text))


_POLITE = re.compile(r"^(please|hi|hello|hey|ok|okay|so|now|hi there|can you help me|i have a question|quick question)\b[ ,.!:?]*")
_THANKS = re.compile(r"[ ,.!?]*\b(please|thanks|thank you)[ .!]*$")


def skeleton(template):
    """What is left of a template when nobody looks at the values, the courtesies, the case and the punctuation."""
    return plain(re.sub(r"\{\w+\}", "{}", template))


def plain(text):
    """A prompt's skeleton without courtesies, case and punctuation, for comparing templates."""
    text = text.lower()
    for _ in range(3):
        text = _THANKS.sub("", _POLITE.sub("", text))
    return " ".join(re.sub(r"[^a-z0-9{} ]+", " ", text).split())
