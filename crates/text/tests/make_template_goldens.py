#!/usr/bin/env python3
"""Writes the expected outcome of every template x conversation: one line per template, in the grid's order.

    make_template_goldens.py TEMPLATE_DIR CONVERSATIONS.json OUT.tsv [--texts DIR]
    make_template_goldens.py --snippets SNIPPETS.json    fills in what each snippet renders to

Needs jinja2 >= 3.1.6; with --transformers it renders through transformers.utils.chat_template_utils instead of the
copy of its settings below, and the two must agree. An outcome is the SHA-256 of the text (8 hex digits), or
`error`. --texts also writes the texts themselves, to look at.
"""
import argparse
import datetime
import functools
import hashlib
import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2025, 7, 26, 9, 5, 3)
TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.cache
def compiled(source):
    return environment().from_string(source)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def tagged(messages):
    """The messages with Transformers' tag on the last one, and that message's own text."""
    messages = json.loads(json.dumps(messages))
    last = messages[-1]
    if isinstance(last["content"], list):
        block = next(b for b in reversed(last["content"]) if "text" in b)
        text = block["text"]
        block["text"] += TAG
        return messages, text
    text = last["content"]
    last["content"] += TAG
    return messages, text


def cut(rendered, text):
    if text.strip() not in rendered or TAG.strip() not in rendered:
        raise ValueError("the final message does not appear")
    at = rendered.rindex(TAG.strip())
    return rendered[:at] if rendered[at:].startswith(TAG) else rendered[:at].rstrip()


def render(source, request):
    names = {"tools": None, "documents": None, "add_generation_prompt": False, **request}
    going_on = names.pop("continue_final_message", False)
    if going_on:
        names["messages"], text = tagged(names["messages"])
    rendered = compiled(source).render(**names)
    return cut(rendered, text) if going_on else rendered


def render_transformers(source, request):
    from transformers.utils import chat_template_utils as library

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return NOW

    library.datetime = Clock
    names = dict(request)
    messages = names.pop("messages")
    return library.render_jinja_template([messages], chat_template=source, **names)[0][0]


def fill_snippets(path):
    snippets = json.loads(path.read_text())
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
    for snippet in snippets:
        snippet.pop("expected", None)
        try:
            snippet["expected"] = environment().from_string(snippet["source"]).render(messages=messages)
        except Exception:  # no expected text means an error
            pass
    path.write_text(json.dumps(snippets, ensure_ascii=False, indent=0))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("templates", type=pathlib.Path, nargs="?")
    parser.add_argument("conversations", type=pathlib.Path, nargs="?")
    parser.add_argument("out", type=pathlib.Path, nargs="?")
    parser.add_argument("--snippets", type=pathlib.Path)
    parser.add_argument("--texts", type=pathlib.Path)
    parser.add_argument("--transformers", action="store_true")
    options = parser.parse_args()
    if options.snippets:
        return fill_snippets(options.snippets)
    conversations = json.loads(options.conversations.read_text())
    lines = []
    for path in sorted(options.templates.glob("*.jinja")):
        source = path.read_text()
        outcomes = []
        for name, request in conversations.items():
            try:
                text = (render_transformers if options.transformers else render)(source, request)
                outcome = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
            except Exception as error:  # whatever Python raises counts as the template's error
                text, outcome = f"{type(error).__name__}: {error}", "error"
            outcomes.append(outcome)
            if options.texts:
                options.texts.mkdir(parents=True, exist_ok=True)
                (options.texts / f"{path.stem}@{name}.txt").write_text(text, newline="")
        lines.append(f"{path.stem}\t{' '.join(outcomes)}\n")
    options.out.write_text("".join(lines))


if __name__ == "__main__":
    main()
