"""Conversations as the model sees them. `TEMPLATE` is the file's chat template; `render` writes the same text."""

import json

import apart
import mix
import phrases
import reading
import rewriting
import scope
import tasks
from grammar import expand
from plots import TIMES
from stories import summary, tell
import words as w

START, END, STOP = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

TEMPLATE = """{%- set given = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if tools -%}
<|im_start|>system
{% if given %}{{ given }}
{% endif %}Tools:
{% for tool in tools %}{% set f = tool.function if tool.function else tool %}- {{ f.name }}({% for key, value in f.parameters.properties.items() %}{{ key }}: {{ value.type }}{% if not loop.last %}, {% endif %}{% endfor %}): {{ f.description }}
{% endfor %}<|im_end|>
{% elif given %}<|im_start|>system
{{ given }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role != 'system' or not loop.first %}<|im_start|>{{ message.role }}
{% if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}{% set c = call.function if call.function else call %}<tool_call>
{"name": "{{ c.name }}", "arguments": {% if c.arguments is string %}{{ c.arguments }}{% else %}{{ c.arguments | tojson }}{% endif %}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def tool_line(spec):
    f = spec["function"]
    arguments = ", ".join(f"{key}: {value['type']}" for key, value in f["parameters"]["properties"].items())
    return f"- {f['name']}({arguments}): {f['description']}\n"


def system_text(given, tools):
    """The first message, or nothing."""
    if tools:
        given = given + "\n" if given else ""
        return f"{START}system\n{given}Tools:\n" + "".join(map(tool_line, tools)) + f"{END}\n"
    return f"{START}system\n{given}{END}\n" if given else ""


def turn(role, text):
    return f"{START}{role}\n{text}{END}\n"


def render(turns, given="", tools=None):
    """A conversation of (role, text) turns with the opening of the answer."""
    return system_text(given, tools) + "".join(turn(role, text) for role, text in turns) + f"{START}assistant\n"


# Training documents: lists of (text, learned), where learned texts are what the model must say.

def _exchange(prompt, answer, role="user"):
    return [(f"{START}{role}\n{prompt}{END}\n{START}assistant\n", False), (answer + END, True), ("\n", False)]


EPILOGUE = {
    "both": "The next {time}, {x} and {y} [met again|saw each other again]. [\"What shall we do today?\" asked {y}.|\"I have an idea,\" said {x}.] They [walked to {landmark}|packed {food} and walked to {landmark}] and [stayed until the evening.|told each other stories.] [It was a day to remember.|And they never forgot that day.]",
    "thing": "The next {time}, {x} took {y} and walked to {landmark}. [Many people came to look.|There {he} sat down and ate {food}.] [\"What a lovely {ny}!\" they said.|\"What a good day,\" {x} thought.] [In the evening, {he} went home and slept well.|And so the days went by, one better than the other.]",
    "things": "The next {time}, {n} woke up early. [She looked at {x} and at {y} and smiled.|{X} and {y} lay beside her.] Her friends came to visit, and [they played until the evening.|they all ate {food} together.] [It was a day to remember.|\"Come back soon,\" she said.]",
}
AFTER = {
    "summary": ["[Summarise|Summarize|Sum up] [it|that|the story|your story] in one [line|sentence].", "[And|Now] in one [line|sentence]?", "[Shorter|Short version|The short version], please.", "[Say|Tell|Write] [it|that|all that] [again |]in [a|one|a single] [line|sentence].", "[One|A single] [line|sentence][ for that| about it|, please|]?", "[Give me|Now] [the|a] [summary|short summary].", "What was it about, in one line?", "TL;DR?", "Make it one sentence."],
    "more": ["[Continue.|Go on.|And then?|What happens next?|Tell me more.|More!]", "[How does it go on|What happened then|What did they do next]?", "Continue the story.", "Write [more|another part]."],
}


def _after_story(rng, told):
    while True:
        prompt, answer = _about_story(rng, told)
        if not apart.is_kept(prompt):
            return _exchange(prompt, answer)


def _about_story(rng, told):
    """What is asked after a story, and the answer."""
    r = rng.random()
    if r < 0.07 and (changed := rewriting.of_story(rng, told)):
        old, new = changed
        prompt = expand(rng, rng.choice(phrases.WHOLE["again"]), {"old": old, "new": new}, flat=True)
        return tasks.courteous(rng, prompt), rewriting.changed(told.text, old, new)
    if r < 0.5:
        return reading.question(rng, told)
    if r < 0.8:
        prompt, answer = rng.choice(AFTER["summary"]), summary(told)
    else:
        prompt, answer = rng.choice(AFTER["more"]), expand(rng, EPILOGUE[told.plot["kind"]], told.slots)
    return tasks.courteous(rng, expand(rng, prompt, {}, flat=True)), answer


def _turns(rng, task):
    parts = _exchange(task.prompt, task.answer)
    if task.kind == "tool" and rng.random() < 0.35:
        result = rng.choice(tasks.RESULTS)
        parts += _exchange(result, f"{task.facts['call']['name']} says: {result}.", role="tool")
    told = task.kind != "summary" and task.story
    while told and rng.random() < 0.45:
        if rng.random() < 0.15:
            more = tasks.story(rng, kind="story_more")
            told = more.story
            parts += _exchange(more.prompt, more.answer)
        else:
            parts += _after_story(rng, told)
    return parts


# What a tool might do as well.
WITHOUT_TOOLS = ("other", "sum")


def conversation(rng):
    """One to four tasks in a row, now and then with a system prompt or with tools that nothing needs."""
    chosen = rng.choices(mix.TASKS, mix.SHARES)
    while rng.random() < 0.25 and len(chosen) < 5:
        chosen += rng.choices(mix.TASKS, mix.SHARES)
    made = [make(rng) for make in chosen]
    tools = next((t.tools for t in made if t.tools), None)
    if tools:
        made = [t for t in made if t.tools in (None, tools) and t.kind not in WITHOUT_TOOLS]
    elif rng.random() < 0.03:
        tools = tasks.tool(rng).tools
        made = [t for t in made if t.kind not in WITHOUT_TOOLS]
    given = rng.choice(scope.SYSTEMS) if rng.random() < 0.08 else ""
    opening = system_text(given, tools)
    parts = [(opening, False)] if opening else []
    for task in made:
        parts += _turns(rng, task)
    return parts


def document(rng):
    """A conversation, or a story on its own."""
    if rng.random() < 0.06:
        a, b = w.topic_pair(rng)
        return [(tell(rng, a, b).text + STOP, True)]
    return conversation(rng)
