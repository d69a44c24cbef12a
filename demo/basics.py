"""What people ask first: counting, ordering numbers, lists in JSON, days and months, simple sums, questions about a text.

`asking.py` has the phrasings. Answers begin with what was asked for, and have one form for each task.
"""

import json

import asking
import lists
import words as w
from grammar import choose
from lists import DAYS, MONTHS, number_word
from stories import cap
from tasks import Task, ask, plural


def shown(rng, n, words=0.22):
    """A number as people write it: in digits, now and then in letters."""
    word = number_word(n) if isinstance(n, int) and n >= 0 else None
    return word if word and rng.random() < words else str(n)


def joined(things):
    return ", ".join(map(str, things)) + "."


def _task(rng, kind, name, slots, answer):
    return Task(kind, ask(rng, name, slots, False), answer, (kind, answer))


# Counting

def _start(rng):
    return rng.choice((rng.randint(0, 12), rng.randint(1, 30), rng.randint(1, 120)))


def _length(rng):
    return rng.choice((rng.randint(3, 8), rng.randint(3, 11), rng.randint(3, 20)))


def count(rng):
    """Up or down, in steps of one."""
    make = rng.choice((_up, _up, _up, _to, _down, _down, _down_one, _by, _by, _even))
    return make(rng)


def _up(rng):
    a = _start(rng)
    b = a + _length(rng) - 1
    words = 0.3 if rng.random() < 0.4 else 0.0
    slots = {"a": shown(rng, a, words), "b": shown(rng, b, words), "a1": shown(rng, a + 1, words), "a2": shown(rng, a + 2, words)}
    return _task(rng, "count", "count", slots, joined(range(a, b + 1)))


def _to(rng):
    b = rng.choice((rng.randint(2, 10), rng.randint(5, 20), rng.randint(2, 30)))
    return _task(rng, "count", "count_to", {"b": shown(rng, b, 0.4)}, joined(range(1, b + 1)))


def _down(rng):
    b = rng.choice((0, 1, 1, rng.randint(0, 20), rng.randint(0, 110)))
    a = b + _length(rng) - 1
    words = 0.3 if rng.random() < 0.4 else 0.0
    slots = {"a": shown(rng, a, words), "b": shown(rng, b, words), "am1": shown(rng, a - 1, words), "am2": shown(rng, a - 2, words)}
    return _task(rng, "count", "countdown", slots, joined(range(a, b - 1, -1)))


def _down_one(rng):
    a = rng.choice((5, 10, rng.randint(3, 12), rng.randint(3, 25)))
    slots = {"a": shown(rng, a, 0.4), "am1": shown(rng, a - 1, 0.2), "am2": shown(rng, a - 2, 0.2)}
    return _task(rng, "count", "countdown_one", slots, joined(range(a, 0, -1)))


PLURALS = {2: "twos", 3: "threes", 4: "fours", 5: "fives", 10: "tens", 20: "twenties", 100: "hundreds"}


def _by(rng):
    step = rng.choice((2, 2, 3, 4, 5, 5, 10, 10, 20, 100))
    n = rng.randint(3, 10)
    whole = rng.random() < 0.35
    a = step if whole or rng.random() < 0.7 else rng.randint(0, 20)
    b = a + step * (n - 1)
    steps = PLURALS[step] if rng.random() < 0.8 else f"{step}s"
    nth = ["", "", "second", "third", "fourth", "fifth"][step] if step <= 5 else f"{step}th"
    slots = {"a": shown(rng, a, 0.1), "b": shown(rng, b, 0.1), "step": shown(rng, step, 0.5), "steps": steps, "steps_cap": cap(steps), "nth": nth}
    return _task(rng, "count", "count_by_to" if whole else "count_by", slots, joined(range(a, b + 1, step)))


def _even(rng):
    kind = rng.choice(("even", "odd"))
    a = 2 * rng.choice((rng.randint(0, 5), rng.randint(0, 30))) + (kind == "odd")
    b = a + 2 * rng.randint(2, 8)
    return _task(rng, "count", "count_even", {"a": a, "b": b, "kind": kind, "kind_cap": cap(kind)}, joined(range(a, b + 1, 2)))


# Numbers in order

def decimal(rng):
    """A number as text, mostly with decimals."""
    r = rng.random()
    if r < 0.25:
        return str(rng.choice((rng.randint(0, 20), rng.randint(0, 150), rng.randint(0, 2000))))
    whole = rng.choice((rng.randint(0, 12), rng.randint(0, 40), rng.randint(0, 120)))
    digits = rng.choice((1, 1, 2, 2, 3))
    return f"{whole}.{rng.randrange(10 ** digits):0{digits}}"


def alike(rng, text):
    """A number that is easily mistaken for another: the same whole part, or a digit put in, changed or left out."""
    whole, _, rest = text.partition(".")
    r = rng.random()
    if r < 0.6 or not rest:
        digits = rng.choice((1, 2, 2, 3))
        return f"{whole}.{rng.randrange(10 ** digits):0{digits}}"
    if r < 0.75:
        at = rng.randrange(len(rest) + 1)
        return f"{whole}.{rest[:at]}{rng.choice('0015')}{rest[at:]}"
    if r < 0.9:
        return f"{whole}.{rng.choice('0123456789')}{rest[1:]}"
    return f"{int(whole) + rng.choice((-1, 1)) if whole != '0' else 1}.{rest}"


def decimals(rng, n, similar):
    """Different numbers, all of them decimals that look alike where that is wanted."""
    found = []
    while len(found) < n:
        text = alike(rng, rng.choice(found)) if found and similar else decimal(rng)
        if all(float(text) != float(other) for other in found):
            found.append(text)
    rng.shuffle(found)
    return found


def some_numbers(rng, n):
    r = rng.random()
    if r < 0.45:
        most = rng.choice((10, 20, 100, 100, 1000))
        return [str(x) for x in rng.sample(range(most + 1), n)]
    return decimals(rng, n, r < 0.8)


def listed(rng, things):
    last = rng.choice((" and ", " and ", ", ", ", and "))
    return ", ".join(things[:-1]) + last + things[-1]


def sort(rng):
    things = some_numbers(rng, rng.choice((2, 3, 3, 3, 4, 4, 5, 6)))
    down = rng.random() < 0.35
    text = " ".join(things) if rng.random() < 0.06 else listed(rng, things)
    return _task(rng, "order", "sort_down" if down else "sort", {"l": text}, joined(sorted(things, key=float, reverse=down)))


def extreme(rng):
    things = some_numbers(rng, rng.choice((3, 3, 3, 4, 5)))
    name = rng.choice(("most", "least"))
    answer = (max if name == "most" else min)(things, key=float)
    slots = {"l": listed(rng, things), "lo": ", ".join(things[:-1]) + " or " + things[-1]}
    return _task(rng, "order", name, slots, f"{answer} is the {'largest' if name == 'most' else 'smallest'}.")


def compare_decimals(rng):
    """Two numbers, of which at least one has decimals."""
    a, b = decimals(rng, 2, rng.random() < 0.8)
    low, high = sorted((a, b), key=float)
    asked = rng.choice(("larger", "larger", "smaller", "smaller", "yes_no", "yes_no_less"))
    slots = {"a": a, "b": b, "end": "."}
    if asked in ("larger", "smaller"):
        answer = f"{high} is larger than {low}." if asked == "larger" else f"{low} is smaller than {high}."
        return _task(rng, "order", asked, slots, answer)
    word = "larger" if asked == "yes_no" else "smaller"
    true = (a == high) == (word == "larger")
    answer = f"Yes, {a} is {word} than {b}." if true else f"No, {a} is {'smaller' if word == 'larger' else 'larger'} than {b}."
    return _task(rng, "order", asked, slots, answer)


# Lists

def _some(rng):
    """A kind of things by its name, how many of them, and these."""
    names, things = rng.choice(lists.CATEGORIES)
    things = things.split()
    n = min(len(things), rng.choice((2, 3, 3, 4, 4, 5, 5, 6, 7, 8)))
    start = 0 if rng.random() < 0.75 or names[0] in ("days", "months", "seasons", "letters") else rng.randrange(len(things))
    return rng.choice(names), (things + things)[start : start + n]


def json_list(rng):
    r = rng.random()
    if r < 0.25:
        return _json_copy(rng)
    if r < 0.4:
        return _json_series(rng)
    name, chosen = _some(rng)
    n = shown(rng, len(chosen), 0.6)
    return _task(rng, "json_list", "json_list", {"n": n, "n_cap": cap(n), "things": name}, json.dumps(chosen))


def _json_series(rng):
    """A series that everybody knows, or numbers."""
    if rng.random() < 0.45:
        a = rng.choice((1, 1, rng.randint(0, 60)))
        b = a + rng.randint(2, 9)
        text, value = rng.choice((f"the numbers from {a} to {b}", f"the numbers {a} to {b}", f"all numbers from {a} to {b}", f"{a} to {b}")), list(range(a, b + 1))
    else:
        text, value = rng.choice((("the days of the week", DAYS), ("the seven days of the week", DAYS), ("all days of the week", DAYS), ("the weekdays", DAYS), ("the months of the year", MONTHS), ("the twelve months", MONTHS),
                                  ("all months", MONTHS), ("the seasons", lists.SEASONS), ("the four seasons", lists.SEASONS), ("the seasons of the year", lists.SEASONS), ("the days of the weekend", DAYS[5:])))
    return _task(rng, "json_list", "json_copy", {"l": text}, json.dumps(value))


def _json_copy(rng):
    n = rng.choice((2, 3, 3, 3, 4, 5))
    r = rng.random()
    if r < 0.6:
        things = rng.sample(w.TOPICS + w.PLAIN, n)
    elif r < 0.75:
        things = rng.sample(w.NAMES, n)
    elif r < 0.9:
        things = rng.sample(rng.choice(lists.CATEGORIES)[1].split(), min(n, 4))
    else:
        things = [rng.randrange(200) for _ in range(n)]
    text = listed(rng, [str(t) for t in things])
    return _task(rng, "json_list", "json_copy", {"l": text}, json.dumps(things))


def name_some(rng):
    name, chosen = _some(rng)
    n = shown(rng, len(chosen), 0.6)
    return _task(rng, "names", "name_some", {"n": n, "n_cap": cap(n), "things": name}, cap(joined(chosen)))


# Days and months

def _series(rng):
    """Days or months, with the slots that name them."""
    days = rng.random() < 0.55
    names = {"u": "day", "us": "days", "whole": "week"} if days else {"u": "month", "us": "months", "whole": "year"}
    if days and rng.random() < 0.15:
        names |= {"u": "weekday", "us": "weekdays"}
    return (DAYS if days else MONTHS), names | {"u_cap": cap(names["u"]), "us_cap": cap(names["us"])}


def _typed(rng, name):
    """A day as somebody in a hurry types it."""
    return name.lower() if rng.random() < 0.06 else name


def neighbour(rng):
    series, slots = _series(rng)
    i, n = rng.randrange(len(series)), len(series)
    name, step = rng.choice((("next", 1), ("previous", -1)))
    answer = series[(i + step) % n]
    word = "after" if step == 1 else "before"
    return _task(rng, "calendar", name, slots | {"d": _typed(rng, series[i])}, f"{answer} comes {word} {series[i]}.")


def relative(rng):
    """Tomorrow, yesterday and today."""
    name = rng.choice(("tomorrow", "yesterday", "today_before", "today_after"))
    month = name.startswith("today") and rng.random() < 0.3
    series = MONTHS if month else DAYS
    i, n = rng.randrange(len(series)), len(series)
    before, given, after = series[i - 1], series[i], series[(i + 1) % n]
    answer = {"tomorrow": f"Tomorrow is {after}.", "yesterday": f"Yesterday was {before}.", "today_before": f"Today is {before}.", "today_after": f"Today is {after}."}[name]
    prompt = ask(rng, name, {"d": _typed(rng, given), "dm": before, "u": "month" if month else "day"}, False)
    if " day" not in prompt.lower() and ("month" in prompt or month):
        answer = f"It is {answer.split()[-1]}"
    return Task("calendar", prompt, answer, ("calendar", answer))


def some_after(rng):
    series, slots = _series(rng)
    i, n = rng.randrange(len(series)), rng.choice((2, 2, 3, 4, 5))
    answer = series[(i + n) % len(series)]
    word = shown(rng, n, 0.7)
    return _task(rng, "calendar", "some_after", slots | {"d": series[i], "n": word, "n_cap": cap(word)}, f"{answer} is {n} {slots['us']} after {series[i]}.")


def nth(rng):
    series, slots = _series(rng)
    i = rng.choice((0, len(series) - 1, rng.randrange(len(series)), rng.randrange(len(series))))
    word = "last" if i == len(series) - 1 and rng.random() < 0.7 else lists.ORDINALS[i]
    if word == "last":
        slots |= {"nth": word, "nth_cap": "Last", "k": i + 1}
    else:
        slots |= {"nth": word, "nth_cap": cap(word), "k": i + 1}
    return _task(rng, "calendar", "nth", slots, f"{series[i]} is the {word} {slots['u']} of the {slots['whole']}.")


def between(rng):
    series, slots = _series(rng)
    i = rng.randrange(1, len(series) - 1)
    return _task(rng, "calendar", "between", slots | {"d": series[i - 1], "e": series[i + 1]}, f"{series[i]} is between {series[i - 1]} and {series[i + 1]}.")


def in_order(rng):
    series, slots = _series(rng)
    i, j = sorted(rng.sample(range(len(series)), 2))
    first, last = series[i], series[j]
    d, e = rng.sample((first, last), 2)
    slots |= {"d": d, "e": e}
    name = rng.choice(("earlier", "later", "is_before", "is_after", "is_next"))
    if name == "earlier":
        answer = f"{first} comes before {last}."
    elif name == "later":
        answer = f"{last} comes after {first}."
    elif name == "is_next":
        return _is_next(rng, series, slots)
    else:
        true = (d == first) == (name == "is_before")
        answer = f"{'Yes' if true else 'No'}, {d} comes {'before' if d == first else 'after'} {e}."
    return _task(rng, "calendar", name, slots, answer)


def _is_next(rng, series, slots):
    i, n = rng.randrange(len(series)), len(series)
    e, after = series[i], series[(i + 1) % n]
    d = after if rng.random() < 0.5 else rng.choice((series[i - 1], rng.choice(series)))
    while d == e:
        d = rng.choice(series)
    answer = f"Yes, {d} comes after {e}." if d == after else f"No, {after} comes after {e}."
    return _task(rng, "calendar", "is_next", slots | {"d": d, "e": e}, answer)


def is_kind(rng):
    if rng.random() < 0.35:
        day = rng.choice(DAYS)
        answer = f"Yes, {day} is on the weekend." if day in DAYS[5:] else f"No, {day} is not on the weekend."
        return _task(rng, "calendar", "is_weekend", {"d": day}, answer)
    day = rng.random() < 0.5
    name = rng.choice(DAYS if day else MONTHS)
    asked = rng.choice(("day", "month"))
    right = "day" if day else "month"
    slots = {"d": name, "v": "weekday" if asked == "day" and rng.random() < 0.3 else asked, "vs": asked + "s"}
    return _task(rng, "calendar", "is_kind", slots, f"{'Yes' if asked == right else 'No'}, {name} is a {right}.")


def calendar_list(rng):
    name = rng.choice(("list_days", "list_days", "list_months", "list_months", "list_days_back", "weekend", "list_range", "list_between", "list_first"))
    series, slots = _series(rng)
    i, j = sorted(rng.sample(range(len(series)), 2))
    n = rng.choice((2, 3, 3, 4, 5))
    if name == "list_days":
        chosen = DAYS
    elif name == "list_months":
        chosen = MONTHS
    elif name == "list_days_back":
        chosen = DAYS[::-1]
    elif name == "weekend":
        chosen = DAYS[5:]
    elif name == "list_first":
        front = rng.random() < 0.6
        chosen = series[:n] if front else series[-n:]
        slots |= {"fl": "first" if front else "last", "fl_cap": "First" if front else "Last", "n": shown(rng, n, 0.6)}
    elif name == "list_between":
        j = min(len(series) - 1, max(j, i + 3))
        i = min(i, j - 3)
        slots |= {"d": series[i], "e": series[j]}
        chosen = series[i + 1 : j]
    else:
        slots |= {"d": series[i], "e": series[j]}
        chosen = series[i : j + 1]
    return _task(rng, "calendar", name, slots, joined(chosen))


AMOUNTS = [("days", "a week", 7), ("days", "a week", 7), ("months", "a year", 12), ("months", "a year", 12), ("days", "a year", 365), ("hours", "a day", 24), ("minutes", "an hour", 60), ("seconds", "a minute", 60), ("weeks", "a year", 52),
           ("seasons", "a year", 4), ("seasons", "a year", 4), ("days", "a weekend", 2), ("days", "two weeks", 14), ("years", "a century", 100), ("months", "half a year", 6), ("minutes", "half an hour", 30), ("hours", "two days", 48)]


def amount(rng):
    if rng.random() < 0.55:
        i = rng.randrange(12)
        parts, whole, n = "days", MONTHS[i], lists.LENGTHS[i]
    else:
        parts, whole, n = rng.choice(AMOUNTS)
    verb = "have" if whole.startswith("two") else "has"
    slots = {"parts": parts, "parts_cap": cap(parts), "whole": whole, "whole_cap": cap(whole), "does": "do" if verb == "have" else "does"}
    return _task(rng, "calendar", "amount", slots, f"{cap(whole)} {verb} {n} {parts}.")


def number_of(rng):
    if rng.random() < 0.1:
        return _task(rng, "calendar", "shortest", {}, "February is the shortest month, with 28 days.")
    i = rng.randrange(12)
    return _task(rng, "calendar", "number_of", {"d": MONTHS[i], "u": "month", "us": "months", "u_cap": "Month", "whole": "year"}, f"{MONTHS[i]} is month {i + 1}.")


def calendar(rng):
    makers = (neighbour, neighbour, neighbour, relative, relative, some_after, nth, nth, between, in_order, in_order, is_kind, calendar_list, calendar_list, calendar_list, amount, amount, number_of)
    return rng.choice(makers)(rng)


# Sums

def _operands(rng, name):
    r = rng.random()
    most = 10 if r < 0.2 else 20 if r < 0.45 else 100 if r < 0.85 else 999
    if name == "add":
        return rng.randint(0, most), rng.randint(0, rng.choice((most, most, min(most, 20))))
    if name == "sub":
        a = rng.randint(0, most)
        b = rng.randint(0, a) if rng.random() < 0.95 else rng.randint(0, most)
        return a, min(b, rng.choice((most, most, 20))) if a >= b else b
    if name == "mul":
        a, b = rng.randint(0, 12), rng.randint(0, 12)
        return rng.choice(((a, b), (a, b), (a, b), (rng.randint(1, 20), rng.randint(1, 10)), (10 * rng.randint(1, 10), rng.randint(1, 10))))
    b = rng.randint(1, 12)
    return b * rng.randint(0, 12), b


RESULT = {"add": ("+", lambda a, b: a + b), "sub": ("-", lambda a, b: a - b), "mul": ("*", lambda a, b: a * b), "div": ("/", lambda a, b: a // b)}


def equation(name, a, b):
    sign, result = RESULT[name]
    return f"{a} {sign} {b} = {result(a, b)}."


def sums(rng):
    r = rng.random()
    if r < 0.2:
        return problem(rng)
    if r < 0.34:
        return small_sum(rng)
    name = rng.choice(("add", "add", "add", "sub", "sub", "mul", "mul", "div"))
    a, b = _operands(rng, name)
    words = 0.9 if rng.random() < 0.25 else 0.0
    return _task(rng, "sum", name, {"a": shown(rng, a, words), "b": shown(rng, b, words)}, equation(name, a, b))


def small_sum(rng):
    name = rng.choice(("half", "twice", "three", "three", "more_than", "less_than"))
    a, b, c = (rng.randint(1, rng.choice((10, 30))) for _ in range(3))
    if name == "half":
        a *= 2
        answer = equation("div", a, 2)
    elif name == "twice":
        answer = equation("mul", 2, a)
    elif name == "three":
        answer = f"{a} + {b} + {c} = {a + b + c}."
    else:
        a += b if name == "less_than" else 0
        answer = equation("add" if name == "more_than" else "sub", a, b)
    one = shown(rng, b, 0.5)
    slots = {"a": shown(rng, a), "b": one, "b_cap": cap(one), "c": shown(rng, c, 0.0)}
    return _task(rng, "sum", name, slots, answer)


def problem(rng):
    """A little story with a sum in it."""
    name = rng.choice(("add", "add", "sub", "sub", "mul", "div"))
    if name in ("add", "sub"):
        a, b = rng.randint(1, rng.choice((10, 20, 40))), rng.randint(1, rng.choice((10, 20)))
        a = max(a, b + 1) if name == "sub" else a
    else:
        a, b = rng.randint(2, 10), rng.randint(2, 10)
        a = a * b if name == "div" else a
    thing, other = rng.sample([t for t in w.THINGS + w.ANIMALS if not t.endswith(("s", "x", "ch", "sh", "y", "f", "o", "fe", "ouse"))], 2)
    who, friend = rng.sample(w.NAMES + ["the " + p for p in w.PEOPLE_HE], 2)
    words = 0.35
    first, second = shown(rng, a, words), shown(rng, b, words)
    slots = {"a": first, "b": second, "a_cap": cap(first), "b_cap": cap(second), "thing": thing, "things": thing + "s", "others": other + "s", "animal": rng.choice(w.ANIMALS), "n": who, "N": cap(who), "m": friend}
    prompt = choose(rng, rng.choice(asking.PROBLEMS[name])).format_map(slots)
    return Task("sum", prompt, equation(name, a, b), ("sum", prompt))


# Weights in training.
MIX = [(count, 12), (sort, 10), (extreme, 4), (compare_decimals, 9), (json_list, 8), (name_some, 2.5), (calendar, 15), (sums, 26)]
