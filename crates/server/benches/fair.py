"""What a long prompt does to others over HTTP: python fair.py MODEL.gguf [--llama LLAMA_SERVER] [--tokkata PROGRAM]

An answer is written, a long prompt comes, and when a quarter of its time alone has passed a short one. Told are the answer's pace
beside the prompt and alone, the gaps between its tokens, and how long both prompts take beside each other and alone. Then eight
clients have conversations with tools, and the processor's time is told by the server's threads: of tokkata, what is neither the
engine's nor its workers' is HTTP, JSON, templates and tokens of texts. --vocab as for beside.py, beside which this lies.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import shlex
import statistics
import sys
import tempfile
import threading
import time

from beside import free_port, running, told, with_tokenizer

SHORT, BEFORE = 100, 16
draws = random.Random(7)


def ids(count: int) -> list[int]:
    return [draws.randrange(100, 30_000) for _ in range(count)]


class Stream(threading.Thread):
    """An answer on its way: when it was asked for, and when each of its tokens came."""

    def __init__(self, port: int, prompt: list[int], tokens: int) -> None:
        super().__init__(daemon=True)
        self.body = {"prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
        self.times: list[float] = []
        self.began = time.monotonic()
        self.start()

    def run(self) -> None:
        self.connection.request("POST", "/v1/completions", json.dumps(self.body), {"content-type": "application/json"})
        answer = self.connection.getresponse()
        if answer.status != 200:
            print(answer.read().decode(), file=sys.stderr)
            os._exit(1)
        try:
            while line := answer.readline():
                # What tells the end alone is no token.
                if line.startswith(b"data: {") and (choices := json.loads(line[6:])["choices"]) and (choices[0]["text"] or not choices[0]["finish_reason"]):
                    self.times.append(time.monotonic())
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            pass

    def leave(self) -> None:
        if self.connection.sock:
            self.connection.sock.close()
        self.connection.close()

    def first(self) -> float:
        """Seconds to the first token."""
        while not self.times:
            time.sleep(0.001)
        return self.times[0] - self.began

    def until(self, tokens: int) -> None:
        while len(self.times) < tokens:
            time.sleep(0.001)


def measured(port: int, prompt: int) -> dict[str, float]:
    Stream(port, ids(SHORT), 8).join()
    short, long = (statistics.median(Stream(port, ids(n), 1).first() for _ in range(turns)) for n, turns in [(SHORT, 3), (prompt, 1)])
    answer = Stream(port, ids(SHORT), 1 << 14)
    answer.until(BEFORE)
    asked = Stream(port, ids(prompt), 1)
    time.sleep(long / 4)
    late = Stream(port, ids(SHORT), 1)
    late_first, long_first = late.first(), asked.first()
    times = [t for t in answer.times if asked.began <= t <= asked.began + long_first]
    answer.leave()
    gaps = sorted(b - a for a, b in zip([asked.began, *times], times))
    # As many as tell its pace well, about the middle of those: behind more tokens each takes longer.
    told_by = min(len(times), 400)
    alone = Stream(port, ids(SHORT + (len(times) - told_by) // 2), BEFORE + told_by)
    alone.join()
    pace = (alone.times[-1] - alone.times[BEFORE - 1]) / (len(alone.times) - BEFORE)
    return {
        "token_alone": pace * 1e3,
        "speed": 100 * pace * len(times) / long_first,
        "gap": gaps[len(gaps) // 2] * 1e3,
        "gap_99": gaps[(len(gaps) - 1) * 99 // 100] * 1e3,
        "long": long,
        "long_times": long_first / long,
        "short": short * 1e3,
        "short_times": late_first / short,
    }


def threads(process: int) -> dict[str, int]:
    """Ticks of the processor by the names of a server's threads."""
    found: dict[str, int] = {}
    for task in pathlib.Path(f"/proc/{process}/task").iterdir():
        fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
        name = (task / "comm").read_text().strip().rstrip("0123456789-")
        found[name] = found.get(name, 0) + int(fields[11]) + int(fields[12])
    return found


def conversation(port: int, turns: int, tokens: int) -> None:
    """Turns with tools, each with everything before it."""
    tool = {"name": "look_up", "description": "Looks up what is known of a thing.", "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}}}
    messages = [{"role": "system", "content": "You answer with what was found. " * 40}]
    words = "fox lantern bridge rain quiet boat seven stone".split()
    for _ in range(turns):
        messages.append({"role": "user", "content": " ".join(draws.choice(words) for _ in range(100))})
        body = {"messages": messages, "max_tokens": tokens, "stream": True, "temperature": 0, "ignore_eos": True, "tools": [{"type": "function", "function": tool}], "tool_choice": "none"}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        pieces = [json.loads(line[6:]) for line in answer.read().splitlines() if line.startswith(b"data: {")]
        text = "".join(p["choices"][0]["delta"].get("content") or "" for p in pieces if p.get("choices"))
        messages.append({"role": "assistant", "content": text})


def main() -> None:
    args = argparse.ArgumentParser(usage=__doc__)
    args.add_argument("model", type=pathlib.Path)
    args.add_argument("--tokkata", default="tokkata")
    args.add_argument("--llama")
    args.add_argument("--vocab", type=pathlib.Path)
    args.add_argument("--prompt", type=int, default=16_384, help="tokens of the long prompt")
    args.add_argument("--rounds", type=int, default=3)
    args.add_argument("--clients", type=int, default=8, help="that have conversations")
    args.add_argument("--turns", type=int, default=4)
    args.add_argument("--output", type=int, default=64, help="tokens of each of their answers")
    args.add_argument("--ours", default="", help="flags of tokkata serve")
    args.add_argument("--theirs", default="-fa on", help="flags of llama-server")
    asked = args.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = asked.model
        if asked.vocab:
            model = pathlib.Path(folder) / asked.model.name
            with_tokenizer(asked.model, asked.vocab, model)
        context = asked.prompt + 4096
        found: dict[str, list[dict[str, float]]] = {"tokkata": []} | ({"llama-server": []} if asked.llama else {})
        for _ in range(asked.rounds):
            for name, runs in found.items():
                port = free_port()
                common = ["-m", str(model), "--port", str(port), "--parallel", "4"]
                # Made-up weights repeat themselves, which n-grams would guess.
                ours = [asked.tokkata, "serve", *common, "-c", str(context), "--spec-type", "none", *shlex.split(asked.ours)]
                theirs = [asked.llama, *common, "-c", str(4 * context), *shlex.split(asked.theirs)]
                with running(ours if name == "tokkata" else theirs, port):
                    runs.append(measured(port, asked.prompt))
        for name, runs in found.items():
            of = lambda key, digits=1: told([run[key] for run in runs], digits)
            print(f"{name}: an answer keeps {of('speed')} % of its speed ({of('token_alone')} ms a token alone); gaps {of('gap')} ms (median), {of('gap_99')} ms (99 %)")
            print(f"  the prompt takes {of('long_times', 2)} times its time alone ({of('long')} s), a short one behind it {of('short_times', 2)} times ({of('short')} ms)", flush=True)
        port = free_port()
        command = [asked.tokkata, "serve", "-m", str(model), "--port", str(port), "--parallel", str(asked.clients), *shlex.split(asked.ours)]
        with running(command, port) as server:
            conversation(port, 1, 4)
            before = threads(server.pid)
            all_clients = [threading.Thread(target=conversation, args=(port, asked.turns, asked.output)) for _ in range(asked.clients)]
            for client in all_clients:
                client.start()
            for client in all_clients:
                client.join()
            ticks = {name: count - before.get(name, 0) for name, count in threads(server.pid).items()}
            total = max(sum(ticks.values()), 1)
            shares = ", ".join(f"{name} {100 * count / total:.2f} %" for name, count in sorted(ticks.items()))
            print(f"{asked.clients} clients, {asked.turns} turns each: {total / os.sysconf('SC_CLK_TCK'):.1f} s of the processor: {shares}")


if __name__ == "__main__":
    main()
