"""Texts to write again with one change: a name, a word or a number becomes another one, everything else stays."""

import re

import words as w
from lists import DAYS
from stories import pronouns, tell
from tasks import Task, ask

# Words that take a plain s.
PLAIN = [t for t in w.THINGS if not re.search(r"(s|x|h|y|f|fe|o|z)$", t)]
NUMBERED = ["{n} has {k} {z}.", "{n} bought {k} {z}.", "There are {k} {z} in the {s}.", "On {d}, {n} sold {k} {z}.", "{n} needs {k} {z}.", "{n} gave {k} {z} away.",
            "We have {k} {z}.", "In the {s} are {k} {z}.", "{n} found {k} {z} on {d}.", "They put {k} {z} into the {s}.", "{n} wants to carry {k} {z} home.", "On {d}, {k} {z} were lost."]
SPACES = "kitchen garden shop school attic cellar house garage hall office".split()
LINES = ["- {k} {z}", "{n}: {k} {z}", "{d}: {k} {z}", "* {z}: {k}", "{z}: {k}", "{n}: {k}", "- {n} ({k} {z})"]
LEAST, MOST = 55, 190


def changed(text, old, new):
    """The text with every `old` replaced, as whole words."""
    return re.sub(rf"\b{re.escape(old)}\b", lambda _: new, text)


def _alone(text, old):
    """Whether the word is in the text, and in no other form."""
    exact = len(re.findall(rf"\b{re.escape(old)}\b", text))
    return exact and exact == len(re.findall(rf"\b{re.escape(old)}(?:s|es)?\b", text, re.IGNORECASE))


def _fits(text, old, new, topics, heldout):
    """Whether the change is one, and its pair is of the right side."""
    if new == old or re.search(rf"\b{re.escape(new)}", text, re.IGNORECASE) or w.article(old) != w.article(new) or not _alone(text, old):
        return False
    return w.held_out(old, new) == heldout and (heldout or not any(w.held_out(new, t) for t in topics))


def _like(rng, old):
    """A word that may stand where the old one does."""
    if old.isdigit():
        return str(_count(rng))
    if old in DAYS:
        return rng.choice(DAYS)
    if old in w.NAMES:
        return rng.choice(w.NAMES_HE if old in w.NAMES_HE else w.NAMES_SHE)
    if old in w.ADJECTIVE_WORDS:
        return rng.choice(w.TRAITS if old in w.TRAITS else w.LOOKS)
    if old in w.THINGS:
        return rng.choice(w.THINGS)
    if old[-1] == "s" and old[:-1] in w.THINGS:
        return rng.choice(PLAIN) + "s"
    same = [t for t in w.AGENTS if pronouns(t) == pronouns(old)]
    return rng.choice(same) if rng.random() < 0.9 else w.made_up_word(rng)


def _tale(rng, heldout):
    """The beginning of a story, and the words of it that may change."""
    told = tell(rng, *w.topic_pair(rng, heldout))
    known = rng.randint(4, len(told.sentences))
    while len(" ".join(told.sentences[:known]).split()) < LEAST and known < len(told.sentences):
        known += 1
    text = " ".join(told.sentences[:known])
    found = [told.x, told.y] * 2
    found += [word for word in re.findall(r"[a-z]+", text) if word in w.ADJECTIVE_WORDS]
    found += [name for name in w.NAMES if name in text]
    return text, found, (told.x, told.y)


def _count(rng):
    return rng.randrange(2, 10 ** rng.choice((1, 2, 2, 2, 3)))


def _listed(rng):
    """Sentences or lines with numbers, and the words of them that may change."""
    lined = rng.random() < 0.5
    size = rng.randint(8, 22) if lined else rng.randint(7, 18)
    names, things, numbers = (rng.sample(w.NAMES, rng.randint(3, 7)), rng.sample(PLAIN, size), set())
    form, parts, found = rng.choice(LINES), [], []
    for thing in things:
        k = _count(rng)
        while k in numbers:
            k = _count(rng)
        numbers.add(k)
        slots = {"n": rng.choice(names), "k": k, "z": thing + "s", "s": rng.choice(SPACES), "d": rng.choice(DAYS)}
        template = form if lined else rng.choice(NUMBERED)
        parts.append(template.format_map(slots))
        found += [str(v) for key, v in slots.items() if key != "s" and "{" + key + "}" in template] + [str(k)]
    return ("\n" if lined else " ").join(parts), found, ()


def _shown(rng, old, new, heldout):
    mark = rng.choice(("", "", '"') if heldout else ("", "", "", '"', "'"))
    return {"old": mark + old + mark, "new": mark + new + mark}


def change(rng, heldout=False):
    """A text with a word of it and another to take its place, and the topics in it."""
    while True:
        text, found, topics = _tale(rng, heldout) if rng.random() < 0.5 else _listed(rng)
        if not LEAST <= len(re.findall(r"\w+", text)) <= MOST:
            continue
        for _ in range(60 if heldout else 12):
            old = rng.choice(found)
            new = _like(rng, old)
            if _fits(text, old, new, topics, heldout):
                return text, old, new


def rewrite(rng, heldout=False):
    text, old, new = change(rng, heldout)
    prompt = ask(rng, "rewrite", {"text": text, **_shown(rng, old, new, heldout)}, heldout)
    facts = {"text": text, "old": old, "new": new}
    return Task("rewrite", prompt, changed(text, old, new), (old, new), facts)


def of_story(rng, told):
    """The slots of a change in a told story, if there is one."""
    topics = (told.x, told.y)
    for _ in range(12):
        old = rng.choice(topics)
        new = _like(rng, old)
        if _fits(told.text, old, new, topics, False):
            return old, new
    return None
