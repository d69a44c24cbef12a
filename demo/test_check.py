"""Tests of the checker and of the text it judges: `python test_check.py`."""

import copy
import json
import unittest

import chat
import check
import words as w
from grammar import every, expand, plain
from stories import sentences, tell

TESTS = check.load_tests()


def first(kind, fits=lambda t: True):
    return next(t for t in TESTS if t["kind"] == kind and fits(t))


def _first_and_rest(text):
    found = sentences(text)
    return found[0], " ".join(found[1:])


def swapped(text, a, b):
    return text.replace(a, "\0").replace(b, a).replace("\0", b)


def wrong_answers():
    """At least 40 wrong answers, with what is wrong with each."""
    story = first("story", lambda t: t["facts"]["trait"] and t["facts"]["place"])
    x, y, right = story["facts"]["x"], story["facts"]["y"], story["answer"]
    trait, place = story["facts"]["trait"], story["facts"]["place"]
    opening, rest = _first_and_rest(right)
    yield "no first topic", story, right.replace(x, "thing").replace(w_cap(x), "Thing")
    yield "no second topic", story, right.replace(y, "thing").replace(w_cap(y), "Thing")
    yield "no trait", story, right.replace(trait, "plain")
    yield "another place", story, right.replace(place, "kitchen")
    yield "cut off", story, right[: len(right) // 2].rsplit(" ", 1)[0]
    yield "no end", story, right.rstrip(".")
    yield "one sentence", story, f"A {trait} {x} and a {y} met at the {place}."
    yield "the same sentence twice", story, f"{opening} {right}"
    yield "marker in the text", story, right + "<|im_end|>"
    yield "two paragraphs", story, f"{opening}\n\n{rest}"
    yield "small letters", story, right.replace(". ", ". and ", 1)
    yield "open quotation", story, right + ' "And so it was.'
    yield "ability instead of a story", story, first("other")["answer"]
    going = first("continue")
    yield "the beginning again", going, going["facts"]["start"] + " " + going["answer"]
    yield "another story", going, "The zeppelin flew away. It was a long day."
    yield "nothing", going, ""
    line = first("summary")
    yield "two sentences", line, line["answer"] + " It is a nice story."
    yield "two lines", line, line["answer"].replace(" ", "\n", 1)
    yield "no topic", line, line["answer"].replace(line["facts"]["x"], "somebody")
    yield "another plot", line, line["answer"].replace(line["facts"]["key"], "walk")
    count = first("letters")
    n = len(count["facts"]["word"])
    yield "one letter too many", count, count["answer"].replace(f"has {n}", f"has {n + 1}")
    yield "a letter left out", count, count["answer"].replace("-", "", 1).replace(count["facts"]["word"][1] + "-", "", 1)
    yield "another word", count, count["answer"].replace(count["facts"]["word"], "word", 1)
    yield "no spelling", count, f"It has {n} letters."
    often = first("letter")
    k = often["facts"]["word"].count(often["facts"]["letter"])
    yield "one too few or many", often, often["answer"].replace(f"occurs {k}", f"occurs {k + 1}")
    yield "another letter", often, often["answer"].replace(f"letter {often['facts']['letter']}", "letter ?")
    yield "a wrong word spelled", often, often["answer"].replace("In ", "In z-")
    text = first("words")
    yield "a word left out", text, text["answer"].replace(text["answer"].split(", ")[1] + ", ", "")
    yield "a wrong sum", text, text["answer"].replace("that is ", "that is 1")
    things = first("items")
    yield "numbers out of order", things, things["answer"].replace("(2)", "(3)")
    yield "another item", things, "ship (1), " + things["answer"].split(", ", 1)[1]
    pair = first("spell", lambda t: len(t["facts"]["words"]) == 2)
    one, two = pair["facts"]["words"]
    yield "only one word", pair, f"{one} is spelled {'-'.join(one)}."
    yield "words exchanged", pair, swapped(pair["answer"], one + " is", two + " is")
    yield "a letter doubled", pair, pair["answer"].replace(f" {one[0]}-", f" {one[0]}-{one[0]}-", 1)
    back = first("reverse", lambda t: t["facts"]["word"] != t["facts"]["word"][::-1])
    word = back["facts"]["word"]
    yield "not reversed", back, f"{'-'.join(word)} backwards is {'-'.join(word)}: {word}."
    yield "joined wrongly", back, back["answer"].replace(f": {word[::-1]}.", f": {word[::-1][1:]}.")
    asked = first("compare", lambda t: t["facts"]["asked"] == "larger")
    a, b = asked["facts"]["a"], asked["facts"]["b"]
    yield "the smaller one", asked, f"{min(a, b)} is larger than {max(a, b)}."
    yield "turned round", asked, f"{min(a, b)} is smaller than {max(a, b)}."
    yield "other numbers", asked, f"{max(a, b) + 1} is larger than {min(a, b)}."
    yield "only the number", asked, str(max(a, b))
    truth = first("compare", lambda t: t["facts"]["asked"] == "yes_no")
    yield "yes for no", truth, swapped(truth["answer"], "Yes", "No")
    form = first("json")
    value = form["facts"]["value"]
    yield "a key left out", form, json.dumps(dict(list(value.items())[1:]))
    yield "numbers as text", form, json.dumps({k: [v] for k, v in value.items()})
    yield "not JSON", form, form["answer"].replace('"', "'")
    yield "text around it", form, "Here it is: " + form["answer"]
    yield "a list", form, json.dumps(list(value.values()))
    call = first("tool")
    right_call = call["facts"]["call"]
    yield "the other tool", call, call["answer"].replace(right_call["name"], "other_tool")
    yield "other arguments", call, check_call({**right_call, "arguments": {}})
    yield "a call without its end", call, call["answer"].replace("\n</tool_call>", "")
    yield "talk instead of a call", call, "I will do that."
    again = first("rewrite")
    new = again["facts"]["new"]
    yield "nothing changed", again, again["facts"]["text"]
    yield "another change", again, again["answer"].replace(new, "thing")
    yield "a word left out", again, again["answer"].replace(" ", "", 1)
    yield "the end left out", again, again["answer"][: len(again["answer"]) // 2]
    yield "an introduction", again, "Here it is: " + again["answer"]
    aside = first("other")
    yield "made-up facts", aside, "The capital is Atlantis."
    yield "a story instead", aside, right


def check_call(call):
    return "<tool_call>\n" + json.dumps(call) + "\n</tool_call>"


def w_cap(word):
    return word[:1].upper() + word[1:]


class Judging(unittest.TestCase):
    def test_right_answers_pass(self):
        for test in TESTS:
            self.assertEqual(check.judge(test, test["answer"]).faults, [], test["prompt"])

    def test_wrong_answers_are_rejected(self):
        wrong = list(wrong_answers())
        self.assertGreaterEqual(len(wrong), 40)
        for what, test, answer in wrong:
            with self.subTest(what):
                self.assertNotEqual(answer, test["answer"], "not wrong at all")
                self.assertTrue(check.judge(test, answer).faults, f"{what}: {answer!r}")

    def test_shares_fall_with_wrong_answers(self):
        answers = [t["answer"] for t in TESTS]
        self.assertTrue(all(s == 1 for s in check.shares(check.judge_all(TESTS, answers)).values()))
        wrong = ["Yes." if t["kind"] == "compare" else a for t, a in zip(TESTS, answers)]
        found = check.shares(check.judge_all(TESTS, wrong))
        self.assertLess(found["counting, spelling, comparing"], 0.9)
        self.assertLess(found["format"], 0.98)


class Separation(unittest.TestCase):
    def test_tests_are_apart_from_training(self):
        self.assertEqual(check.separation(TESTS, 2000), [])

    def test_a_trained_pair_is_found(self):
        tests = copy.deepcopy(TESTS)
        tests[0]["pair"] = next(["fox", t] for t in w.TOPICS if not w.held_out("fox", t))
        self.assertTrue(any("pair" in fault for fault in check.separation(tests, 0)))

    def test_a_trained_phrasing_is_found(self):
        tests = copy.deepcopy(TESTS)
        tests[0]["prompt"] = "Tell me a story about a fox and a hen."
        self.assertTrue(any("phrasing" in fault for fault in check.separation(tests, 0)))


class Texts(unittest.TestCase):
    def test_choices(self):
        self.assertEqual(every("[a|b[c|d]] e"), ["a e", "bc e", "bd e"])
        rng = w.new_rng(1)
        self.assertEqual({expand(rng, "[a|b] {x}", {"x": 1}) for _ in range(50)}, {"a 1", "b 1"})

    def test_plain_phrasings(self):
        self.assertEqual(plain("Please, tell me a story! Thanks!"), plain("Tell me a story."))

    def test_sentences(self):
        text = 'He left. "Come in," said the owl. "Who is it?" it asked. "Stop!" Then it was still.'
        self.assertEqual(sentences(text), ["He left.", '"Come in," said the owl.', '"Who is it?" it asked.', '"Stop!"', "Then it was still."])

    def test_stories_have_their_topics(self):
        rng = w.new_rng(2)
        for _ in range(300):
            a, b = w.topic_pair(rng)
            story = tell(rng, a, b)
            self.assertTrue(w.mentions(story.text, a) and w.mentions(story.text, b), story.text)

    def test_the_chat_template_writes_what_training_saw(self):
        try:
            import jinja2
        except ImportError:
            self.skipTest("jinja2 is not installed")
        template = jinja2.Environment().from_string(chat.TEMPLATE)
        tools = first("tool")["tools"]
        turns = [("user", "Hi."), ("assistant", "Hello."), ("user", "Again.")]
        messages = [{"role": role, "content": text} for role, text in turns]
        for given, called in (("", None), ("Be kind.", None), ("", tools), ("Be kind.", tools)):
            system = [{"role": "system", "content": given}] if given else []
            written = template.render(messages=system + messages, tools=called, add_generation_prompt=True)
            self.assertEqual(written, chat.render(turns, given, called))


if __name__ == "__main__":
    unittest.main()
