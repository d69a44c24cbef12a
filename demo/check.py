"""Judges answers of the demo model: each right answer is computed here, from the facts of the prompt.

    python check.py run --tokkata PATH [--model FILE]      asks the program all test prompts
    python check.py answers FILE                           judges a list of answers, in the order of the tests
    python check.py separation [--documents N]             that training has no phrasing and no pair of the tests

Exits with 1 where a figure is below `GOALS`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import lru_cache

import apart
import phrases
import scope
import tools
import words as w
from grammar import every, skeleton
from stories import sentences

HERE = os.path.dirname(os.path.abspath(__file__))
COUNTING = {"letters", "letter", "words", "items", "spell", "compare"}
TALES = {"story", "continue"}
GOALS = {"format": 0.98, "counting, spelling, comparing": 0.90, "stories": 0.90, "rewriting": 0.90, "all": 0.90}


@dataclass
class Verdict:
    """What is wrong with an answer: with its form, and with what it says."""

    test: dict
    answer: str
    form: list = field(default_factory=list)
    content: list = field(default_factory=list)

    @property
    def faults(self):
        return self.form + self.content


def judge(test, answer):
    """The verdict on an answer to a test."""
    verdict = Verdict(test, answer)
    JUDGES[test["kind"]](verdict, test["facts"], answer)
    if answer != answer.strip() or "<|" in answer:
        verdict.form.append("stray white space or markers")
    return verdict


# Stories

def _prose(verdict, text, least, most):
    found = sentences(text)
    if not least <= len(found) <= most:
        verdict.form.append(f"{len(found)} sentences, expected {least} to {most}")
    if "\n" in text:
        verdict.form.append("more than one paragraph")
    for sentence in found:
        if not re.fullmatch(r'["A-Z].*[.!?]"?', sentence):
            verdict.form.append(f"not a sentence: {sentence!r}")
    if len(set(found)) < len(found):
        verdict.form.append("a sentence comes twice")
    if text.count('"') % 2:
        verdict.form.append("a quotation is not closed")
    return found


def _needs(verdict, text, *wanted):
    for word in wanted:
        if word and not w.mentions(text, word):
            verdict.content.append(f"does not mention {word}")


def story(verdict, facts, text):
    _prose(verdict, text, 6, 22)
    if not 40 <= len(text.split()) <= 220:
        verdict.form.append(f"{len(text.split())} words, expected 40 to 220")
    _needs(verdict, text, facts["x"], facts["y"], facts["place"])
    if facts["trait"] and not re.search(rf"\b{facts['trait']} ((boy|girl) named )?{re.escape(facts['x'])}\b", text):
        verdict.content.append(f"no {facts['trait']} {facts['x']}")


def continuation(verdict, facts, text):
    given = set(sentences(facts["start"]))
    if given & set(_prose(verdict, text, 1, 18)):
        verdict.content.append("repeats the beginning")
    if not any(w.mentions(text, facts[t]) for t in "xy"):
        verdict.content.append("is about something else")


def summary(verdict, facts, text):
    if len(_prose(verdict, text, 1, 1)) == 1 and len(text.split()) > 32:
        verdict.form.append("too long")
    _needs(verdict, text, facts["x"], facts["y"])
    if facts["key"] not in text:
        verdict.content.append(f"misses what happens: {facts['key']}")


# Words

SPELLED = r"[a-z](?:-[a-z])*"


def _match(verdict, pattern, text):
    match = re.fullmatch(pattern, text)
    if not match:
        verdict.form.append(f"expected {pattern}")
    return match


def _same(verdict, what, found, right):
    if found != right:
        verdict.content.append(f"{what} is {found!r}, expected {right!r}")


def letters(verdict, facts, text):
    word = facts["word"]
    if match := _match(verdict, rf"([a-z]+) is spelled ({SPELLED}), so it has (\d+) letters?\.", text):
        _same(verdict, "the word", match[1], word)
        _same(verdict, "the spelling", match[2].replace("-", ""), word)
        _same(verdict, "the number", int(match[3]), len(word))


def letter(verdict, facts, text):
    if match := _match(verdict, rf"In ({SPELLED}), the letter ([a-z]) occurs (\d+) times?\.", text):
        _same(verdict, "the spelling", match[1].replace("-", ""), facts["word"])
        _same(verdict, "the letter", match[2], facts["letter"])
        _same(verdict, "the number", int(match[3]), facts["word"].count(facts["letter"]))


def _numbered(verdict, text, noun, right):
    if match := _match(verdict, rf"(.+ \(\d+\)): that is (\d+) {noun}s?\.", text):
        listed = re.findall(r"(.+?) \((\d+)\)(?:, |$)", match[1])
        _same(verdict, "the list", [name for name, _ in listed], right)
        _same(verdict, "the counting", [int(n) for _, n in listed], list(range(1, len(right) + 1)))
        _same(verdict, "the number", int(match[2]), len(right))


def words(verdict, facts, text):
    _numbered(verdict, text, "word", re.sub(r"[^A-Za-z ]", "", facts["text"]).split())


def items(verdict, facts, text):
    _numbered(verdict, text, "item", re.split(r", | and ", facts["text"]))


def spell(verdict, facts, text):
    wanted = facts["words"]
    pattern = ", and ".join([rf"([a-z]+) is spelled ({SPELLED})"] * len(wanted)) + r"\."
    if match := _match(verdict, pattern, text):
        for i, word in enumerate(wanted):
            _same(verdict, "the word", match[2 * i + 1], word)
            _same(verdict, "the spelling", match[2 * i + 2], "-".join(word))


def reverse(verdict, facts, text):
    word = facts["word"]
    if match := _match(verdict, rf"({SPELLED}) backwards is ({SPELLED}): ([a-z]+)\.", text):
        _same(verdict, "the spelling", match[1], "-".join(word))
        _same(verdict, "the reversed spelling", match[2], "-".join(reversed(word)))
        _same(verdict, "the reversed word", match[3], word[::-1])


def compare(verdict, facts, text):
    a, b, asked = facts["a"], facts["b"], facts["asked"]
    yes_no = asked.startswith("yes_no")
    opening = "(Yes|No), " if yes_no else "()"
    match = _match(verdict, opening + r"(\d+) is (larger|smaller) than (\d+)\.", text)
    if not match:
        return
    first, second = int(match[2]), int(match[4])
    _same(verdict, "the numbers", sorted((first, second)), sorted((a, b)))
    _same(verdict, "the comparison", match[3], "larger" if first > second else "smaller")
    if yes_no:
        right = a > b if asked == "yes_no" else a < b
        _same(verdict, "the answer", match[1], "Yes" if right else "No")
    else:
        _same(verdict, "the asked number", first, max(a, b) if asked == "larger" else min(a, b))


# Structured answers

def _parsed(verdict, text):
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        verdict.form.append(f"not JSON: {error}")
        return None


def _equal(a, b):
    """Equal values of equal types, the keys in the same order."""
    return json.dumps(a) == json.dumps(b)


def as_json(verdict, facts, text):
    found = _parsed(verdict, text)
    if found is not None and not isinstance(found, dict):
        verdict.form.append("not an object")
    elif found is not None and not _equal(found, facts["value"]):
        verdict.content.append(f"is {found}, expected {facts['value']}")


def tool(verdict, facts, text):
    if match := _match(verdict, r"<tool_call>\n(\{.*\})\n</tool_call>", text):
        call = _parsed(verdict, match[1])
        if call is not None and set(call) != {"name", "arguments"}:
            verdict.form.append("expected a name and arguments")
        elif call is not None and not _equal(call, facts["call"]):
            verdict.content.append(f"is {call}, expected {facts['call']}")


def rewrite(verdict, facts, text):
    given, old = facts["text"], re.escape(facts["old"])
    right = re.sub(rf"(?<!\w){old}(?!\w)", lambda _: facts["new"], given)
    if len(text.split("\n")) != len(given.split("\n")) or len(sentences(text)) != len(sentences(given)):
        verdict.form.append("not as many lines and sentences as there were")
    if text != right:
        at = next((i for i, (a, b) in enumerate(zip(text, right)) if a != b), min(len(text), len(right)))
        verdict.content.append(f"has {text[at:at + 30]!r}, expected {right[at:at + 30]!r}")


REFUSED = re.compile(r"cannot|do not know|know nothing|do not understand|only understand|small model|more than I can|too hard for me")


def other(verdict, facts, text):
    _prose(verdict, text, 1, 3)
    if not REFUSED.search(text):
        verdict.content.append("does not say that it cannot")


JUDGES = {"story": story, "continue": continuation, "summary": summary, "letters": letters, "letter": letter, "words": words, "items": items,
          "spell": spell, "reverse": reverse, "compare": compare, "json": as_json, "tool": tool, "other": other, "rewrite": rewrite}


# Reports

def judge_all(tests, answers):
    return [judge(test, answer) for test, answer in zip(tests, answers, strict=True)]


def shares(report):
    """Shares of good answers, by the names of `GOALS`."""
    def share(verdicts, good):
        return sum(map(good, verdicts)) / max(1, len(verdicts))
    kinds = lambda wanted: [v for v in report if v.test["kind"] in wanted]
    right = lambda v: not v.faults
    return {
        "format": share(report, lambda v: not v.form),
        "counting, spelling, comparing": share(kinds(COUNTING), right),
        "stories": share(kinds(TALES), lambda v: not v.content),
        "rewriting": share(kinds({"rewrite"}), right),
        "all": share(report, right),
    }


def table(report):
    """Lines to print."""
    lines = []
    for kind in JUDGES:
        of_kind = [v for v in report if v.test["kind"] == kind]
        right, form = sum(not v.faults for v in of_kind), sum(not v.form for v in of_kind)
        lines.append(f"{kind:9} {right:3} right, {form:3} in form, of {len(of_kind)}")
    return lines + [f"{name}: {100 * share:.1f} % (goal {100 * GOALS[name]:.0f} %)" for name, share in shares(report).items()]


# Separation of tests and training

def template_pattern(template):
    """What prompts of a template match."""
    pieces = re.split(r"\{\w+\}", template)
    return re.compile("(.+)".join(re.escape(piece) for piece in pieces), re.DOTALL)


def held_out_templates():
    """All phrasings of the tests, and the kind of each."""
    yield from ((kind, t) for kind, templates in phrases.HELD_OUT.items() for t in templates)
    yield from (("other", t) for t in scope.HELD_OUT)
    yield from (("tool", kept) for _, _, _, kept in tools.TOOLS.values())


@lru_cache(maxsize=1)
def training_skeletons():
    """All phrasings of training, without the words that are added or left out at random."""
    return frozenset(_training_skeletons())


def _training_skeletons():
    for kind in phrases.WHOLE.keys() | phrases.CORES.keys():
        yield from _skeletons(phrases.phrasings(kind))
    yield from _skeletons(scope.TRAIN + scope.GREET)
    yield from _skeletons((frame, core) for form, cores in scope.CORES.items() for core in cores for frame in phrases.FRAMES[form])
    yield from _skeletons(way for _, _, ways, _ in tools.TOOLS.values() for way in ways)
    yield from _skeletons((frame, wish) for wish in tools.WISHES.values() for frame in phrases.FRAMES["do"])


def _skeletons(templates):
    for template in templates:
        if isinstance(template, str):
            yield from map(skeleton, every(template))
        else:
            frames, cores = map(every, template)
            yield from (skeleton(phrases.compose(frame, core)) for frame in frames for core in cores)


def separation(tests, documents):
    """Faults in the separation, each a line."""
    faults = []
    held = {skeleton(t): t for _, t in held_out_templates()}
    faults += [f"a phrasing of the tests is one of training: {held[s]!r}" for s in sorted(held.keys() & training_skeletons())]
    patterns = [(kind, template_pattern(t)) for kind, t in held_out_templates()]
    for test in tests:
        if not any(kind_of(kind) == test["kind"] and (p.fullmatch(test["prompt"]) or _starts(p, test["prompt"])) for kind, p in patterns):
            faults.append(f"no phrasing of the tests: {test['prompt'][:100]!r}")
        if test["kind"] != "other" and not w.held_out(*test["pair"]):
            faults.append(f"a pair that training may have: {test['pair']}")
    pairs = {tuple(sorted(str(p).lower() for p in test["pair"])) for test in tests}
    return faults + list(_training_faults(patterns, pairs, documents))


def kind_of(phrasing):
    """The kind of test that a list of phrasings belongs to."""
    return {"spell_two": "spell", "larger": "compare", "smaller": "compare", "yes_no": "compare"}.get(phrasing, phrasing)


def _starts(pattern, prompt):
    """Whether a story's prompt is one of the phrasings with its place after it."""
    return any(pattern.fullmatch(prompt[: m.end()]) for m in re.finditer(r"[.!?](?= )", prompt))


def _training_faults(patterns, pairs, documents):
    import chat
    import mix
    rng = w.new_rng("separation")
    for _ in range(documents):
        task = rng.choices(mix.TASKS, mix.SHARES)[0](rng)
        pair = tuple(sorted(str(p).lower() for p in task.pair))
        if apart.is_kept(task.prompt):
            yield f"training has a wording of asked.txt: {task.prompt[:100]!r}"
        if task.kind in JUDGES and task.kind != "other" and (pair in pairs or w.held_out(*task.pair)):
            yield f"training has the pair {task.pair} ({task.kind})"
        if any(p.fullmatch(task.prompt) for kind, p in patterns if kind_of(kind) == task.kind):
            yield f"training has a phrasing of the tests: {task.prompt[:100]!r}"
        if task.story:
            yield from _story_faults(task)
        chat.document(rng)


def _story_faults(task):
    found = {t for t in re.findall(r"[a-z]+", task.story.text.lower())}
    named = {t for t in w.TOPIC_SET if t in found or t + "s" in found}
    for extra in named - {t.lower() for t in task.pair}:
        if any(w.held_out(extra, t) for t in task.pair):
            yield f"a story about {task.pair} has {extra}, too"


# Asking the program

GREEDY = ["--temp", "0", "-n", "400"]


def ask_program(tokkata, model, test):
    """The greedy answer of the program to a test."""
    model = model or "demo"
    if not test.get("tools"):
        return output([tokkata, "run", "-m", model, "-p", test["prompt"], *GREEDY])[:-1]
    return output([tokkata, "complete", "-m", model, "-p", prompt_of(tokkata, model, test), *GREEDY])


def prompt_of(tokkata, model, test):
    """What the model's template makes of a test."""
    request = {"messages": [{"role": "user", "content": test["prompt"]}], "add_generation_prompt": True}
    if test.get("tools"):
        request["tools"] = test["tools"]
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(request, file)
        file.flush()
        return output([tokkata, "template", "-m", model, file.name])


def output(command):
    return subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8").stdout


def load_tests():
    with open(os.path.join(HERE, "tests.json"), encoding="utf-8") as file:
        return json.load(file)


def report_on(tests, answers):
    """Prints the table and whatever is wrong; whether the goals are reached."""
    report = judge_all(tests, answers)
    for verdict in report:
        if verdict.faults:
            print(f"{verdict.test['kind']}: {'; '.join(verdict.faults)}\n  {verdict.test['prompt']!r}\n  {verdict.answer!r}")
    print("\n".join(table(report)))
    return all(share >= GOALS[name] for name, share in shares(report).items())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "answers", "separation"])
    parser.add_argument("file", nargs="?", help="the answers to judge, a JSON list")
    parser.add_argument("--tokkata", default="target/release/tokkata")
    parser.add_argument("--model", help="a model file instead of the built-in one")
    parser.add_argument("--save", help="write the answers of the program to this file")
    parser.add_argument("--documents", type=int, default=20000)
    args = parser.parse_args()
    tests = load_tests()
    if args.what == "separation":
        faults = separation(tests, args.documents)
        print("\n".join(faults[:20]) or f"{len(tests)} tests are apart from {args.documents} training tasks")
        sys.exit(bool(faults))
    if args.what == "run":
        answers = [ask_program(args.tokkata, args.model, test) for test in tests]
        if args.save:
            with open(args.save, "w", encoding="utf-8") as file:
                json.dump(answers, file, ensure_ascii=False, indent=0)
    else:
        with open(args.file, encoding="utf-8") as file:
            answers = json.load(file)
    sys.exit(not report_on(tests, answers))


if __name__ == "__main__":
    main()
