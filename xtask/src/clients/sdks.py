"""The Python SDKs of OpenAI, Anthropic, Cohere and Ollama against a server: `python sdks.py URL`, one line per check."""

import json
import sys

URL = sys.argv[1]
QUESTION = [{"role": "user", "content": "Which is larger, 482 or 1204?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "get_weather", "description": "Tells the weather in a city."}
checks = []


def check(function):
    checks.append(function)
    return function


def openai():
    from openai import OpenAI

    return OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


def anthropic():
    from anthropic import Anthropic

    return Anthropic(base_url=URL, api_key="none", max_retries=0)


def cohere():
    from cohere import ClientV2

    return ClientV2(api_key="none", base_url=URL)


def ollama():
    from ollama import Client

    return Client(host=URL)


def chat(**more):
    return openai().chat.completions.create(**{"model": "demo", "messages": QUESTION, "max_tokens": 40, "temperature": 0} | more)


@check
def openai_chat():
    answer = chat()
    assert "1204" in answer.choices[0].message.content, answer
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@check
def openai_chat_stream():
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == chat().choices[0].message.content, text
    assert chunks[-1].usage.completion_tokens > 0 and not chunks[-1].choices


@check
def openai_chat_tools():
    tool = {"type": "function", "function": TOOL | {"parameters": SCHEMA}}
    for choice in ["required", {"type": "function", "function": {"name": "get_weather"}}]:
        answer = chat(messages=WEATHER, tools=[tool], tool_choice=choice)
        call = answer.choices[0].message.tool_calls[0]
        assert call.function.name == "get_weather" and "city" in json.loads(call.function.arguments)
        assert answer.choices[0].finish_reason == "tool_calls"
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    again = chat(messages=[*WEATHER, answer.choices[0].message, result], tools=[tool])
    assert again.choices[0].message.content is not None


@check
def openai_chat_stream_helper():
    tool = {"type": "function", "function": TOOL | {"parameters": SCHEMA}}
    with openai().chat.completions.stream(model="demo", messages=WEATHER, tools=[tool], tool_choice="required", max_tokens=60) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds, kinds
    assert final.choices[0].message.tool_calls[0].function.name == "get_weather"


@check
def openai_chat_parse():
    from pydantic import BaseModel

    class Answer(BaseModel):
        larger: int

    answer = openai().chat.completions.parse(model="demo", messages=QUESTION, response_format=Answer, max_tokens=40)
    assert isinstance(answer.choices[0].message.parsed, Answer)


@check
def openai_chat_logprobs():
    content = chat(logprobs=True, top_logprobs=3, max_tokens=4).choices[0].logprobs.content
    assert len(content) == 4 and len(content[0].top_logprobs) == 3
    assert bytes(content[0].bytes).decode() == content[0].token


@check
def openai_completions():
    answer = openai().completions.create(model="demo", prompt=["One", "Two"], max_tokens=3, n=2, echo=True, logprobs=1)
    assert len(answer.choices) == 4 and answer.choices[0].text.startswith("One")


@check
def openai_models():
    models = openai().models.list().data
    assert models[0].id and openai().models.retrieve(models[0].id).id == models[0].id


@check
def openai_errors():
    from openai import BadRequestError

    try:
        chat(temperature=-1)
    except BadRequestError as error:
        assert "temperature" in error.message and error.param == "temperature", error
    else:
        raise AssertionError("no error")


def respond(**more):
    return openai().responses.create(**{"model": "demo", "input": QUESTION[0]["content"], "max_output_tokens": 40, "temperature": 0} | more)


@check
def openai_responses():
    first = respond()
    assert "1204" in first.output_text and first.status == "completed", first
    assert openai().responses.retrieve(first.id).output_text == first.output_text
    second = respond(input="Tell a story about a fox.", previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens
    openai().responses.delete(first.id)


@check
def openai_responses_stream():
    events = list(respond(stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == events[-1].response.output_text


@check
def openai_responses_stream_helper():
    tool = {"type": "function", "parameters": SCHEMA, "strict": False} | TOOL
    with openai().responses.stream(model="demo", input=WEATHER[0]["content"], tools=[tool], tool_choice="required") as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    call = final.output[0]
    assert call.type == "function_call" and "city" in json.loads(call.arguments), final
    # The output of a response is the input of the next one.
    items = [*WEATHER, call, {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    assert respond(input=items, tools=[tool]).status == "completed"


@check
def openai_responses_parse():
    from pydantic import BaseModel

    class Answer(BaseModel):
        larger: int

    answer = openai().responses.parse(model="demo", input=QUESTION, text_format=Answer, max_output_tokens=40)
    assert isinstance(answer.output_parsed, Answer)


@check
def cohere_chat():
    answer = cohere().chat(model="demo", messages=QUESTION, max_tokens=40, temperature=0)
    assert answer.message.content[0].text == chat().choices[0].message.content
    assert answer.finish_reason == "COMPLETE" and answer.usage.tokens.output_tokens > 2


@check
def cohere_stream():
    events = list(cohere().chat_stream(model="demo", messages=QUESTION, max_tokens=40, temperature=0))
    text = "".join(e.delta.message.content.text for e in events if e.type == "content-delta")
    assert text == chat().choices[0].message.content
    assert (events[0].type, events[-1].type) == ("message-start", "message-end")


@check
def cohere_tools():
    tool = {"type": "function", "function": TOOL | {"parameters": SCHEMA}}
    asked = {"model": "demo", "messages": WEATHER, "max_tokens": 60, "temperature": 0, "tools": [tool], "tool_choice": "REQUIRED"}
    answer = cohere().chat(**asked)
    call = answer.message.tool_calls[0]
    assert call.function.name == "get_weather"
    pieces = [e.delta.message.tool_calls.function.arguments for e in cohere().chat_stream(**asked) if e.type == "tool-call-delta"]
    assert "".join(pieces) == call.function.arguments
    document = {"type": "document", "document": {"data": json.dumps({"sky": "clear"})}}
    talk = [*WEATHER, {"role": "assistant", "tool_calls": [call.model_dump()], "tool_plan": "I look."}, {"role": "tool", "tool_call_id": call.id, "content": [document]}]
    assert cohere().chat(model="demo", messages=talk, max_tokens=20, tools=[tool]).message.role == "assistant"


@check
def anthropic_messages():
    answer = anthropic().messages.create(model="demo", max_tokens=40, messages=QUESTION, extra_body={"temperature": 0})
    assert "1204" in answer.content[0].text and answer.stop_reason == "end_turn", answer
    assert anthropic().messages.count_tokens(model="demo", messages=QUESTION).input_tokens > 5


@check
def anthropic_stream():
    with anthropic().messages.stream(model="demo", max_tokens=40, messages=QUESTION, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert "1204" in text and final.content[0].text == text and final.usage.output_tokens > 0


@check
def anthropic_tools():
    tool = TOOL | {"input_schema": SCHEMA}
    for choice in [{"type": "any"}, {"type": "tool", "name": "get_weather"}]:
        with anthropic().messages.stream(model="demo", max_tokens=60, messages=WEATHER, tools=[tool], tool_choice=choice) as stream:
            final = stream.get_final_message()
        assert final.stop_reason == "tool_use" and "city" in final.content[0].input, final
    result = {"type": "tool_result", "tool_use_id": final.content[0].id, "content": "sunny"}
    talk = [*WEATHER, {"role": "assistant", "content": final.content}, {"role": "user", "content": [result]}]
    anthropic().messages.create(model="demo", max_tokens=20, messages=talk, tools=[tool])


@check
def anthropic_errors():
    from anthropic import BadRequestError

    try:
        anthropic().messages.create(model="demo", max_tokens=40, messages=[{"role": "user", "content": "word " * 3000}])
    except BadRequestError as error:
        assert "prompt is too long:" in str(error) and " maximum" in str(error), error
    else:
        raise AssertionError("no error")


@check
def ollama_chat():
    answer = ollama().chat(model="demo", messages=QUESTION, options={"temperature": 0, "num_predict": 40})
    assert "1204" in answer.message.content and answer.done_reason == "stop", answer
    parts = ollama().chat(model="demo", messages=QUESTION, options={"temperature": 0, "num_predict": 40}, stream=True)
    assert "".join(p.message.content for p in parts) == answer.message.content


@check
def ollama_chat_tools():
    # Nothing here can ask for a call: whether the small model makes one hangs on the words.
    tool = {"type": "function", "function": TOOL | {"description": "Weather", "parameters": SCHEMA}}
    answer = ollama().chat(model="demo", messages=WEATHER, tools=[tool], options={"temperature": 0})
    assert answer.message.tool_calls[0].function.arguments["city"], answer
    talk = [*WEATHER, answer.message, {"role": "tool", "tool_name": "get_weather", "content": "sunny"}]
    ollama().chat(model="demo", messages=talk, tools=[tool], options={"num_predict": 10})


@check
def ollama_generate():
    answer = ollama().generate(model="demo", prompt=QUESTION[0]["content"], options={"temperature": 0, "num_predict": 40})
    assert "1204" in answer.response and answer.context, answer
    raw = ollama().generate(model="demo", prompt="Once upon a time", raw=True, options={"num_predict": 4})
    assert raw.eval_count == 4


@check
def ollama_format():
    schema = {"type": "object", "properties": {"larger": {"type": "integer"}}, "required": ["larger"]}
    answer = ollama().chat(model="demo", messages=QUESTION, format=schema, options={"num_predict": 60})
    assert isinstance(json.loads(answer.message.content)["larger"], int)


@check
def ollama_models():
    assert ollama().list().models[0].model and ollama().ps().models
    assert "completion" in ollama().show("demo").capabilities


def sound():
    """The sentence of demo/speech."""
    from pathlib import Path

    return open(Path(__file__).parents[3] / "demo/speech/hello.wav", "rb")


SAID = "hello open door six seven"


def hear(**more):
    return openai().audio.transcriptions.create(**{"model": "small-speech", "file": sound()} | more)


@check
def openai_transcription():
    assert hear().text.strip() == SAID == hear(response_format="text", language="en").strip()
    assert hear(response_format="vtt").startswith("WEBVTT")
    full = hear(response_format="verbose_json", timestamp_granularities=["word", "segment"])
    assert full.language == "english" and len(full.segments) == 1 and 2 < full.duration < 3, full
    assert [w.word.strip() for w in full.words] == SAID.split(), full.words
    assert all(a.end <= b.start < b.end for a, b in zip(full.words, full.words[1:])), full.words


@check
def openai_transcription_stream():
    events = list(hear(stream=True))
    assert events[-1].type == "transcript.text.done", events[-1]
    text = "".join(e.delta for e in events if e.type == "transcript.text.delta")
    assert text.strip() == events[-1].text.strip() == SAID


@check
def openai_translation():
    assert openai().audio.translations.create(model="small-speech", file=sound()).text.strip() == SAID


@check
def openai_responses_custom_tool():
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "add \\"" /[a-z]{1,5}/ "\\"" LF\n%import common.LF'}
    tool = {"type": "custom", "name": "edit", "description": "Edits.", "format": grammar}
    answer = openai().responses.create(model="demo", input="Edit.", tools=[tool], tool_choice="required", max_output_tokens=100)
    call = answer.output[0]
    assert call.type == "custom_tool_call" and call.input.startswith('add "') and call.input.endswith('"\n'), call


@check
def openai_responses_resumed():
    client = openai()
    stream = client.responses.create(model="demo", input=QUESTION[0]["content"], background=True, stream=True, max_output_tokens=60)
    first = next(iter(stream))
    stream.close()
    rest = list(client.responses.retrieve(first.response.id, stream=True, starting_after=first.sequence_number))
    assert [e.sequence_number for e in rest] == list(range(1, len(rest) + 1))
    assert rest[-1].type in ("response.completed", "response.incomplete"), rest[-1]


def main():
    failed = 0
    for function in checks:
        try:
            function()
            print(f"ok      {function.__name__}")
        except Exception as error:
            failed += 1
            text = str(error).replace("\n", " ")[:300]
            print(f"failed  {function.__name__}: {type(error).__name__}: {text}")
    print(f"{len(checks) - failed} of {len(checks)} passed")
    sys.exit(1 if failed else 0)


main()
