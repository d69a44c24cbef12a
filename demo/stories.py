"""Stories about two topics: who acts is decided by what the topics are, the rest by the lore of the first."""

import re
from dataclasses import dataclass

import words as w
from grammar import expand
from plots import KINDS, OPENINGS, TIMES

THINGS = set(w.THINGS)
KNOWN = set(w.TOPICS + w.NAMES)
HE, SHE, IT = ("he", "his", "him"), ("she", "her", "her"), ("it", "its", "it")


@dataclass
class Story:
    """A story in sentences, and what it is about."""

    x: str
    y: str
    plot: dict
    sentences: list
    slots: dict
    trait: str = None
    place: str = None

    @property
    def text(self):
        return " ".join(self.sentences)


def acts(word):
    """Whether a topic can act: things cannot; a word that nobody knows must be some creature."""
    return word not in THINGS


def pronouns(word):
    if word in w.NAMES_HE or word in w.PEOPLE_HE:
        return HE
    if word in w.NAMES_SHE or word in w.PEOPLE_SHE:
        return SHE
    return IT


def cap(text):
    return text[:1].upper() + text[1:]


def _intro(word, adjective):
    if word in w.NAMES:
        who = "boy" if word in w.NAMES_HE else "girl"
        return f"{w.article(adjective)} {adjective} {who} named {word}"
    return f"{w.article(adjective)} {adjective} {word}"


def _names(slots, letter, word, adjective):
    """Slots of one topic: x (the fox), ax (a fox), nx (fox), intro_x (a brave fox), each also in capitals."""
    named = word in w.NAMES
    forms = {
        letter: word if named else f"the {word}",
        "a" + letter: word if named else f"{w.article(word)} {word}",
        "n" + letter: word,
        "intro_" + letter: _intro(word, adjective),
    }
    slots.update(forms)
    slots.update({cap(k): cap(v) for k, v in forms.items()})
    for slot, pronoun in zip(("he", "his", "him"), pronouns(word)):
        slot += "" if letter == "x" else "2"
        slots[slot], slots[cap(slot)] = pronoun, cap(pronoun)


def _child(rng, key, topics):
    """A girl's name that makes no pair for tests with a topic."""
    while True:
        name = w.rotated(rng, w.NAMES_SHE, key + "name")
        if name not in topics and not any(w.held_out(name, t) for t in topics):
            return name


def _lore(rng, slots, key):
    """Slots that a topic prefers its own values for."""
    pick = lambda items, name: w.rotated(rng, items, key + name)
    noise, source = pick(w.NOISES, "noise")
    slots.update(
        prop=pick(w.PROPS, "prop"), food=pick(w.FOODS, "food"), spot=pick(w.SPOTS, "spot"), landmark=pick(w.LANDMARKS, "landmark"),
        skill=pick(w.SKILLS, "skill"), structure=pick(w.STRUCTURES, "structure"), craft=pick(w.CRAFTS, "craft"),
        sight=pick(w.SIGHTS, "sight"), time=pick(TIMES, "time"), noise=noise, source=source,
    )


def _adjective(rng, word):
    return w.rotated(rng, w.TRAITS if acts(word) else w.LOOKS, (word if word in KNOWN else "nobody") + "adjective")


def tell(rng, a, b, trait=None, place=None):
    """A story about a and b; `trait` belongs to the first of them, `place` is one of `PLACES`."""
    kind = ("things", "thing", "both")[acts(a) + acts(b)]
    x, y = (b, a) if kind == "thing" and not acts(a) else (a, b)
    key = next((t for t in (x, y) if t in KNOWN), "nobody")
    plot = w.rotated(rng, KINDS[kind], key + "plot")
    place = place or w.rotated(rng, w.PLACES, key + "place")
    slots = {"place": place[1], "Place": cap(place[1])}
    adjective = {word: _adjective(rng, word) for word in (x, y)}
    if trait:
        adjective[a] = trait
    _names(slots, "x", x, adjective[x])
    _names(slots, "y", y, adjective[y])
    _lore(rng, slots, key)
    slots["n"] = _child(rng, key, (x, y))
    opening = w.rotated(rng, OPENINGS[kind], key + "opening")
    parts = [expand(rng, part, slots) for part in (opening, *plot["beats"], plot["end"])]
    return Story(a, b, plot, sentences(" ".join(parts)), slots, trait, place)


_ONE = re.compile(r'(?:[^.!?"]|"[^"]*"(?! [A-Z])|"[^"]*[^.!?"]")*(?:[.!?]|"[^"]*[.!?]")(?= [A-Z"]|$)')


def sentences(text):
    """The sentences of a text; one that opens with speech goes on after the speech."""
    found, rest = [], text.strip()
    while rest:
        match = _ONE.match(rest)
        if not match:
            return found + [rest]
        found.append(match.group())
        rest = rest[match.end():].strip()
    return found


def summary(story):
    return expand(None, story.plot["sum"], story.slots)
