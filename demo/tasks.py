"""The tasks of the demo model: each makes a question and the right answer, for training or for tests.

A test (`heldout=True`) takes its phrasing from `HELD_OUT` and its pair of words by `words.held_out`; training never does.
"""

import json
import re
from dataclasses import dataclass, field

import apart
import phrases
import scope
import words as w
from asking import BASICS
from grammar import choose, expand, skeleton
from stories import cap, summary, tell
from tools import OTHER_NAMES, RESULTS, TOOLS, WISHES


@dataclass
class Task:
    """A question, its right answer, and what a checker must know to judge another answer."""

    kind: str
    prompt: str
    answer: str
    pair: tuple
    facts: dict = field(default_factory=dict)
    tools: list = None
    story: object = None


HELD_SKELETONS = {skeleton(t) for templates in phrases.HELD_OUT.values() for t in templates}
# Words that make a request what it is.
KEY = re.compile(r"[{\n]|befor|follow|down|from|to$|plus|minus|multipl|divid|hal[fv]|twice|doubl|tomorrow|yesterday|today|left|week|month|day|year|hour|where|who|what|which|add|take|subtract|odd|even|by$|order|sort|rank|high|now|remain|array|"
                 r"until|up|through|between|both|each|every|prev|earl|late|rever|desc|asc|maxim|minim|total|differ|product|result|quot|step|without|share|split|stor|tale|spel|letter|word|revers|back|larg|big|great|small|less|low|more|count|how|many|often|time|number|length|long|contin|finish|"
                 r"next|rest|end|sum|sentence|line|json|item|thing|list|is|than|or|not|yes|true|front|around|end|last|first|flip|other|turn|part|on$|after")


def template_for(rng, kind):
    """A phrasing for training: a whole one, or a core in a frame."""
    cores = phrases.CORES.get(kind)
    if not cores or rng.random() < 0.3:
        return choose(rng, rng.choice(phrases.WHOLE[kind]))
    form = rng.choice(list(cores))
    core = choose(rng, rng.choice(cores[form]))
    template = phrases.compose(choose(rng, rng.choice(phrases.FRAMES[form])), core)
    for ending in ("{text}", "{fields}"):
        if core.endswith(ending):
            template = template[: template.index(ending) + len(ending)]
    return template


# For requests in which words like "today" or "first" say something.
PLAIN_SPICE = "please just really quickly maybe only simply".split()


def spiced(rng, template, spice=phrases.SPICE):
    """The template with a word more or a word less, which change nothing."""
    head, mark, tail = template.partition("{text}")
    words = head.split(" ")
    if rng.random() < 0.2:
        words.insert(rng.randrange(len(words) + 1), rng.choice(spice))
    places = [i for i, word in enumerate(words) if not KEY.search(word.lower())]
    if places and rng.random() < 0.12:
        del words[rng.choice(places)]
    return " ".join(words) + mark + tail


def ask(rng, kind, slots, heldout):
    """A prompt of that kind."""
    if heldout:
        return rng.choice(phrases.HELD_OUT[kind]).format_map(slots)
    while True:
        template = template_for(rng, kind)
        if kind in BASICS or kind == "rewrite":
            template = spiced(rng, template, PLAIN_SPICE)
        elif kind in phrases.CORES:
            template = spiced(rng, template)
        if skeleton(template) in HELD_SKELETONS:
            continue
        text = template.format_map(slots)
        quotes = "{text}" in template or "{fields}" in template
        text = text if template.lstrip().startswith("{text}") else courteous(rng, text, quotes)
        if not apart.is_kept(text):
            return text


def courteous(rng, text, quotes=False):
    """The prompt as somebody in a hurry or in a good mood types it; `quotes` says that it ends in what is asked about."""
    r = rng.random()
    if r < 0.07 and text[0].isupper():
        text = rng.choice(("Please ", "Hi! ", "Hey, ", "OK, ", "Now ", "Hello. ")) + (text if r < 0.02 else text[0].lower() + text[1:])
    elif r < 0.11 and not quotes:
        text += rng.choice((" Thanks!", " Please.", " Thank you."))
    elif r < 0.17:
        text = text[0].lower() + text[1:]
    if not quotes and rng.random() < 0.08 and text[-1] in ".!?":
        text = text[:-1]
    return _surrounded(rng, text, quotes)


def _surrounded(rng, text, quotes):
    """The prompt with a sentence before or after it that asks for nothing."""
    if rng.random() < 0.15:
        text = f"{choose(rng, rng.choice(phrases.BEFORE))} {text}"
    if not quotes and rng.random() < 0.1:
        text += ("" if text[-1] in ".!?" else ".") + " " + choose(rng, rng.choice(phrases.AFTER))
    return text


# Stories

def _asked(rng, word, adjective=None):
    """A topic as people name it: a fox, the fox, fox; names as they are."""
    if word in w.NAMES:
        return f"the {adjective} {word}" if adjective else word
    full = f"{adjective} {word}" if adjective else word
    r = rng.random()
    if r < 0.8:
        return f"{w.article(full)} {full}"
    return f"the {full}" if r < 0.92 else full


def _story_slots(rng, a, b, trait):
    first, second = _asked(rng, a, trait), _asked(rng, b)
    x = f"{trait} {a}" if trait else a
    return {"ax": first, "ay": second, "Ax": cap(first), "x": x, "y": b}


def _extras(rng):
    trait = rng.choice(w.ADJECTIVE_WORDS) if rng.random() < 0.3 else None
    place = rng.choice(w.PLACES) if rng.random() < 0.25 else None
    return trait, place


def _set_in(rng, prompt, place, heldout):
    """The prompt with the place of the story in it."""
    if not place:
        return prompt
    if heldout or rng.random() < 0.5:
        return prompt + expand(rng, phrases.WHOLE["story_extra"][0], {"place": place[0]}, flat=True)
    ending = prompt[-1] if prompt[-1] in ".!?" else ""
    return prompt[: len(prompt) - len(ending)] + " " + place[0] + ending


def story(rng, heldout=False, kind="story"):
    a, b = w.topic_pair(rng, heldout)
    trait, place = _extras(rng)
    told = tell(rng, a, b, trait, place)
    prompt = ask(rng, kind, _story_slots(rng, a, b, trait), heldout)
    prompt = _set_in(rng, prompt, place, heldout)
    facts = {"x": a, "y": b, "trait": trait, "place": place and w.PLACE_KEYS[place[0]]}
    return Task("story", prompt, told.text, (a, b), facts, story=told)


def story_one(rng):
    a, b = w.topic_pair(rng)
    prompt = ask(rng, "story_one", _story_slots(rng, a, b, None), False)
    told = tell(rng, a, b)
    return Task("story_one", prompt, told.text, (a, b), story=told)


def story_any(rng):
    a = rng.choice(("fox", "owl", "girl", "dragon", "Mia", "robot")) if rng.random() < 0.7 else w.topic(rng)
    while True:
        b = w.topic(rng)
        if b != a and not w.held_out(a, b):
            told = tell(rng, a, b)
            return Task("story_any", ask(rng, "story_any", {}, False), told.text, (a, b), story=told)


def continuation(rng, heldout=False):
    a, b = w.topic_pair(rng, heldout)
    told = tell(rng, a, b)
    known = rng.randint(2, min(6, len(told.sentences) - 3))
    while not all(w.mentions(" ".join(told.sentences[:known]), t) for t in (a, b)):
        known += 1
    start = " ".join(told.sentences[:known])
    prompt = ask(rng, "continue", {"text": start}, heldout)
    return Task("continue", prompt, " ".join(told.sentences[known:]), (a, b), {"x": a, "y": b, "start": start}, story=told)


def summarise(rng, heldout=False):
    a, b = w.topic_pair(rng, heldout)
    told = tell(rng, a, b)
    prompt = ask(rng, "summary", {"text": told.text}, heldout)
    facts = {"x": a, "y": b, "key": told.plot["key"]}
    return Task("summary", prompt, summary(told), (a, b), facts, story=told)


# Words and letters

def spelled(word):
    return "-".join(word)


def times(n):
    return f"{n} time" if n == 1 else f"{n} times"


def plural(n, noun):
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _quoted(rng, word, heldout):
    if heldout:
        return f'"{word}"' if rng.random() < 0.5 else word
    r = rng.random()
    shown = cap(word) if r < 0.06 else word.upper() if r < 0.08 else word
    r = rng.random()
    return f'"{shown}"' if r < 0.4 else f"'{shown}'" if r < 0.55 else shown


def _word(rng, kind, heldout):
    """A word that may be asked for in this task."""
    while True:
        word = w.any_word(rng)
        if w.held_out(kind, word) == heldout:
            return word


def letters(rng, heldout=False):
    word = _word(rng, "letters", heldout)
    prompt = ask(rng, "letters", {"q": _quoted(rng, word, heldout)}, heldout)
    answer = f"{word} is spelled {spelled(word)}, so it has {plural(len(word), 'letter')}."
    return Task("letters", prompt, answer, ("letters", word), {"word": word})


def letter(rng, heldout=False):
    while True:
        word = w.any_word(rng)
        l = rng.choice(word) if rng.random() < 0.85 else rng.choice("abcdefghijklmnopqrstuvwxyz")
        if word.count(l) == 1 and rng.random() < 0.35:
            l = max(word, key=word.count)
        if w.held_out(word, l) == heldout:
            break
    prompt = ask(rng, "letter", {"q": _quoted(rng, word, heldout), "l": l if heldout or rng.random() < 0.7 else f'"{l}"'}, heldout)
    answer = f"In {spelled(word)}, the letter {l} occurs {times(word.count(l))}."
    return Task("letter", prompt, answer, (word, l), {"word": word, "letter": l})


VERBS = "sleeps sits waits sings dances hides stands laughs jumps dreams rests".split()
PREPOSITIONS = "near under behind with beside above without".split()


def _sentence(rng, a, b):
    """A sentence of 3 to 10 words about two topics."""
    article = lambda: rng.choice(("the ", "a ", "my ", "")) if rng.random() < 0.8 else ""
    adjective = lambda: rng.choice(w.ADJECTIVE_WORDS) + " " if rng.random() < 0.5 else ""
    start = f"{article()}{adjective()}{a} {rng.choice(VERBS)}"
    if rng.random() < 0.25:
        start += " " + rng.choice(("quietly", "today", "again", "alone", "happily"))
    return cap(f"{start} {rng.choice(PREPOSITIONS)} {article()}{adjective()}{b}.")


def word_list(text):
    return re.findall(r"[A-Za-z]+", text)


def numbered(things, noun):
    listed = ", ".join(f"{thing} ({i})" for i, thing in enumerate(things, 1))
    return f"{listed}: that is {plural(len(things), noun)}."


def count_words(rng, heldout=False):
    a, b = w.topic_pair(rng, heldout)
    text = _sentence(rng, a, b)
    if not heldout and rng.random() < 0.3:
        found = [s for s in tell(rng, a, b).sentences if 2 <= len(s.split()) <= 11 and re.fullmatch(r"[A-Za-z ,.!?]+", s)]
        text = rng.choice(found or [text])
    prompt = ask(rng, "words", {"text": text}, heldout)
    return Task("words", prompt, numbered(word_list(text), "word"), (a, b), {"text": text})


def items(rng, heldout=False):
    chosen = list(w.topic_pair(rng, heldout))
    for _ in range(rng.randint(0, 6)):
        thing = rng.choice(w.TOPICS) if rng.random() < 0.8 else rng.choice(w.WORDS)
        if thing not in chosen and not any(w.held_out(thing, c) for c in chosen):
            chosen.append(thing)
    shown = chosen
    if rng.random() < 0.3:
        shown = [t if t in w.NAMES else f"{w.article(t)} {t}" for t in chosen]
    elif rng.random() < 0.15:
        shown = [f"{rng.choice(w.LOOKS)} {t}" for t in chosen]
    last = " and " if rng.random() < 0.5 else ", "
    text = ", ".join(shown[:-1]) + last + shown[-1]
    prompt = ask(rng, "items", {"text": text}, heldout)
    return Task("items", prompt, numbered(shown, "item"), tuple(chosen[:2]), {"text": text})


def spell(rng, heldout=False):
    if rng.random() < (0.5 if heldout else 0.3):
        return spell_two(rng, heldout)
    word = _word(rng, "spell", heldout)
    prompt = ask(rng, "spell", {"q": _quoted(rng, word, heldout)}, heldout)
    return Task("spell", prompt, f"{word} is spelled {spelled(word)}.", ("spell", word), {"words": [word]})


def spell_two(rng, heldout):
    while True:
        a, b = w.any_word(rng), w.any_word(rng)
        if a != b and w.held_out(a, b) == heldout:
            break
    prompt = ask(rng, "spell_two", {"q": _quoted(rng, a, heldout), "r": _quoted(rng, b, heldout)}, heldout)
    answer = f"{a} is spelled {spelled(a)}, and {b} is spelled {spelled(b)}."
    return Task("spell", prompt, answer, (a, b), {"words": [a, b]})


def reverse(rng, heldout=False):
    word = _word(rng, "reverse", heldout)
    prompt = ask(rng, "reverse", {"q": _quoted(rng, word, heldout)}, heldout)
    back = word[::-1]
    return Task("reverse", prompt, f"{spelled(word)} backwards is {spelled(back)}: {back}.", ("reverse", word), {"word": word})


# Numbers

def number(rng):
    return rng.randrange(10 ** rng.choice((1, 2, 2, 3, 3, 4, 5, 6)))


def numbers(rng, heldout):
    """Two numbers, often alike in length and in their first digits."""
    while True:
        a, r = number(rng), rng.random()
        if r < 0.45:
            b = number(rng)
        elif r < 0.75:
            digits = list(str(a))
            digits[rng.randrange(len(digits))] = rng.choice("0123456789")
            b = int("".join(digits))
        elif r < 0.95:
            b = rng.randrange(10 ** len(str(a)))
        else:
            b = a
        if w.held_out(a, b) == heldout and not (heldout and a == b):
            return a, b


def compared(a, b, word="larger"):
    if a == b:
        return f"{a} and {b} are equal."
    low, high = sorted((a, b))
    return f"{high} is larger than {low}." if word == "larger" else f"{low} is smaller than {high}."


def compare(rng, heldout=False):
    a, b = numbers(rng, heldout)
    slots = {"a": a, "b": b, "end": "."}
    asked = rng.choice(("larger", "larger", "smaller", "yes_no", "yes_no" if heldout else "yes_no_less"))
    prompt = ask(rng, asked, slots, heldout)
    if asked in ("larger", "smaller"):
        return Task("compare", prompt, compared(a, b, asked), (a, b), {"a": a, "b": b, "asked": asked})
    word = "larger" if asked == "yes_no" else "smaller"
    true = a > b if word == "larger" else a < b
    if a == b:
        answer = f"No, {a} and {b} are equal."
    elif true:
        answer = f"Yes, {a} is {word} than {b}."
    else:
        answer = f"No, {a} is {'smaller' if word == 'larger' else 'larger'} than {b}."
    return Task("compare", prompt, answer, (a, b), {"a": a, "b": b, "asked": asked})


# JSON and tools

KEYS = ["name", "age", "city", "color", "animal", "thing", "size", "count", "price", "year", "friend", "place", "word", "number", "id", "title", "kind", "weight",
        "height", "room", "day", "level", "score", "owner", "pet", "food", "tool", "first", "second", "left", "right", "toy"]
INTEGER_KEYS = {"age", "count", "price", "year", "number", "id", "weight", "height", "level", "score"}


def _value(rng, key):
    if key in INTEGER_KEYS:
        return rng.randrange(10 ** rng.randint(1, 4))
    if key in ("name", "friend", "owner"):
        return rng.choice(w.NAMES)
    if key in ("color", "size"):
        return rng.choice(w.LOOKS)
    return rng.choice(w.TOPICS) if rng.random() < 0.6 else w.any_word(rng)


def kept_pair(values):
    """Two of the values that make a pair for tests, if any do."""
    flat = [str(v) for v in values]
    return next(((a, b) for i, b in enumerate(flat) for a in flat[:i] if w.held_out(a, b)), None)


def _fields(rng, heldout):
    while True:
        keys = rng.sample(KEYS, rng.choice((2, 2, 2, 3, 3, 4)))
        if not heldout and rng.random() < 0.15:
            keys[0] = w.any_word(rng)
        values = {key: _value(rng, key) for key in keys}
        if len(values) == len(keys) and (kept_pair(values.values()) is not None) == heldout:
            return values


def as_json(rng, heldout=False):
    values = _fields(rng, heldout)
    style = rng.choice(("{k} {v}", "the {k} {v}", "{k}: {v}", "{k} = {v}", '"{k}" {v}', "{k} is {v}"))
    shown = [style.format(k=k, v=v) for k, v in values.items()]
    last = ", " if "=" in style or rng.random() < 0.4 else " and "
    text = ", ".join(shown[:-1]) + last + shown[-1]
    prompt = ask(rng, "json", {"fields": text}, heldout)
    return Task("json", prompt, json.dumps(values), kept_pair(values.values()) or ("json", ""), {"value": values})


def in_json(rng):
    """Another task, asked to answer in JSON."""
    task = rng.choice((letters, spell, reverse, compare))(rng)
    facts = task.facts
    if task.kind == "compare" and facts["asked"] in ("larger", "smaller") and facts["a"] != facts["b"]:
        low, high = sorted((facts["a"], facts["b"]))
        value = {"larger": high, "smaller": low}
    elif task.kind in ("letters", "reverse") or (task.kind == "spell" and len(facts["words"]) == 1):
        word = facts.get("word") or facts["words"][0]
        value = {"word": word, "spelling": spelled(word)}
        if task.kind == "letters":
            value["letters"] = len(word)
        elif task.kind == "reverse":
            value |= {"backwards": spelled(word[::-1]), "reversed": word[::-1]}
    else:
        return in_json(rng)
    prompt = task.prompt.rstrip(".") + ("" if task.prompt[-1] in "?!" else ".")
    prompt += expand(rng, phrases.WHOLE["as_json"][0 if rng.random() < 0.3 else rng.randrange(5)], {}, flat=True)
    return Task("json", prompt, json.dumps(value), task.pair, {"value": value})


def tool_spec(name, shown):
    """A tool as a request to a chat interface describes it."""
    description, arguments, _, _ = TOOLS[name]
    properties = {key: {"type": kind} for key, (kind, _) in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": shown, "description": description, "parameters": parameters}}


def _shown_name(rng, name):
    return name if rng.random() < 0.5 else rng.choice(OTHER_NAMES[name])


def _two_tools(rng, heldout):
    while True:
        first, second = rng.sample(list(TOOLS), 2)
        if w.held_out(first, second) == heldout:
            return first, second


def tool_text(call):
    return "<tool_call>\n" + json.dumps(call) + "\n</tool_call>"


KEPT_WISHES = {skeleton(kept) for _, _, _, kept in TOOLS.values()}


def _wish(rng, name, ways):
    """A template of a request that a tool can do."""
    while True:
        template = choose(rng, rng.choice(ways))
        if rng.random() < 0.5:
            template = phrases.compose(choose(rng, rng.choice(phrases.FRAMES["do"])), choose(rng, WISHES[name]))
        template = spiced(rng, template) if rng.random() < 0.5 else template
        if "{text}" in template:
            template = template[: template.index("{text}") + len("{text}")] + rng.choice(("", "."))
        if skeleton(template) not in KEPT_WISHES:
            return template


def tool(rng, heldout=False):
    wanted, other = _two_tools(rng, heldout)
    shown = {name: name if heldout else _shown_name(rng, name) for name in (wanted, other)}
    _, arguments, ways, kept = TOOLS[wanted]
    values = {key: rng.choice(options) for key, (_, options) in arguments.items()}
    while not heldout and kept_pair(values.values()):
        values = {key: rng.choice(options) for key, (_, options) in arguments.items()}
    slots = dict(values)
    if "item" in values:
        slots["aitem"] = f"{w.article(values['item'])} {values['item']}"
    prompt = kept.format_map(slots) if heldout else courteous(rng, _wish(rng, wanted, ways).format_map(slots), quotes=True)
    while not heldout and apart.is_kept(prompt):
        prompt = courteous(rng, _wish(rng, wanted, ways).format_map(slots), quotes=True)
    typed = {key: int(v) if arguments[key][0] == "integer" else v for key, v in values.items()}
    call = {"name": shown[wanted], "arguments": typed}
    tools = [tool_spec(name, shown[name]) for name in rng.sample((wanted, other), 2)]
    return Task("tool", prompt, tool_text(call), (wanted, other), {"call": call}, tools=tools)


# Everything else

def _scope_slots(rng):
    topic = rng.choice(w.AGENTS + w.THINGS) if rng.random() < 0.8 else w.made_up_word(rng)
    a, b = w.topic_pair(rng)
    m, n = (rng.randrange(1000, 10 ** rng.randint(4, 7)) for _ in range(2))
    return {
        "country": rng.choice(scope.COUNTRIES), "city": rng.choice(scope.CITIES), "language": rng.choice(scope.LANGUAGES), "code": rng.choice(scope.CODE),
        "food": rng.choice(scope.FOOD), "topic": rng.choice(scope.TOPICS), "w": _quoted(rng, w.any_word(rng), False), "aw": f"{w.article(topic)} {topic}", "ws": topic + "s",
        "a": m, "b": n, "c": rng.randrange(1, 10), "year": rng.randrange(1000, 2030), "s": _sentence(rng, a, b),
        "l": f"{a}, {rng.choice(w.PLAIN)}, {rng.choice(w.PLAIN)}", "g": _noise(rng), "foreign": rng.choice(scope.FOREIGN),
    }


def _noise(rng):
    r = rng.random()
    if r < 0.3:
        return "".join(chr(rng.randrange(33, 127)) for _ in range(rng.randint(1, 20)))
    if r < 0.4:
        return "".join(chr(rng.randrange(0xA1, 0x2FFF)) for _ in range(rng.randint(1, 8))).encode("utf-8", "ignore").decode()
    if r < 0.5:
        return str(number(rng))
    return " ".join(w.any_word(rng) for _ in range(rng.randint(2, 12))) + rng.choice(("", ".", "?", "!"))


def _foreign_request(rng):
    """A template of a request that is out of scope."""
    r = rng.random()
    if r < 0.55:
        return choose(rng, rng.choice(scope.TRAIN))
    if r < 0.6:
        return choose(rng, rng.choice(rng.choice((phrases.BEFORE, phrases.AFTER))))
    form = rng.choice(list(scope.CORES))
    template = phrases.compose(choose(rng, rng.choice(phrases.FRAMES[form])), choose(rng, rng.choice(scope.CORES[form])))
    template = spiced(rng, template)
    return template if skeleton(template) not in FOREIGN_HELD else _foreign_request(rng)


FOREIGN_HELD = {skeleton(t) for t in scope.HELD_OUT}


def other(rng, heldout=False):
    """Something out of scope, with what the model says to it."""
    if not heldout and rng.random() < 0.07:
        prompt = courteous(rng, expand(rng, rng.choice(scope.GREET), {}, flat=True))
        return other(rng) if apart.is_kept(prompt) else Task("greeting", prompt, scope.GREETING, ("greeting", ""))
    slots = _scope_slots(rng)
    template = rng.choice(scope.HELD_OUT) if heldout else _foreign_request(rng)
    prompt = template.format_map(slots)
    if not heldout:
        prompt = courteous(rng, prompt or "?")
        if apart.is_kept(prompt):
            return other(rng)
    choices = scope.REFUSALS[scope.kind_of(template)]
    said = choices[0] if rng.random() < 0.65 else rng.choice(choices)
    return Task("other", prompt, expand(rng, said, slots), ("other", prompt))
