"""Many clients at once, some of whom leave or send nonsense: `python load.py SERVE [REQUESTS [IN_FLIGHT]]`, one line per check.

SERVE is the program; it is started with little memory for its caches. Each answer is held against the one that the same
request gets alone. Then clients that mean ill: slow ones, huge ones, deep ones, schemas and patterns made to explode. At
the end the server is killed and started again.
"""

import asyncio
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import aiohttp

PROGRAM = sys.argv[1]
REQUESTS = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
AT_ONCE = int(sys.argv[3]) if len(sys.argv) > 3 else 64
draws = random.Random(7)
WORDS = "a fox carries the lantern over an old stone bridge while rain falls on seven quiet boats".split()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [PROGRAM, "serve", "-m", "demo", "--port", str(self.port), "-t", "1", "-np", "8", "--queue", "512", "--kv-memory", "4M"]
        self.process = subprocess.Popen([*command, "--temp", "0", "--timeout", "5"], stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=1)
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("the server did not start")

    def megabytes(self):
        text = open(f"/proc/{self.process.pid}/status").read()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024

    def figures(self):
        return json.load(urllib.request.urlopen(f"{self.url}/v1/metrics", timeout=10))["models"][0]


def phrase(most):
    return " ".join(draws.choice(WORDS) for _ in range(draws.randint(1, most)))


def wanted(number):
    """A request: its path, its body, and how the text is read from the reply."""
    kind, text, most = number % 8, phrase(40), draws.randint(1, 24)
    chat = {"messages": [{"role": "user", "content": text}], "max_tokens": most}
    if kind == 0:
        return "/v1/chat/completions", chat, lambda r: r["choices"][0]["message"]["content"]
    if kind == 1:
        return "/v1/chat/completions", chat | {"stream": True}, None
    if kind == 2:
        return "/v1/completions", {"prompt": text, "max_tokens": most, "seed": number, "temperature": 1}, lambda r: r["choices"][0]["text"]
    if kind == 3:
        return "/v1/embeddings", {"input": text}, lambda r: r["data"][0]["embedding"]
    if kind == 4:
        return "/tokenize", {"content": text}, lambda r: r["tokens"]
    if kind == 5:
        return "/v1/messages", chat, lambda r: r["content"]
    if kind == 6:
        schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
        return "/v1/completions", {"prompt": text, "max_tokens": 24, "json_schema": schema}, lambda r: r["choices"][0]["text"]
    return "/v1/responses", {"input": text, "max_output_tokens": most, "store": False}, lambda r: r["output"][0]["content"][0]["text"] if r["output"] else ""


async def ask(session, server, path, body, read):
    while True:
        async with session.post(server.url + path, json=body) as reply:
            if reply.status in (429, 503):
                assert int(reply.headers["retry-after"]) >= 1
                await asyncio.sleep(0.05)
                continue
            assert reply.status == 200, (reply.status, await reply.text())
            if read:
                return read(await reply.json())
            lines = [line async for line in reply.content]
            chunks = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
            assert not any("error" in c for c in chunks), chunks[-1]
            return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


async def leave(session, server):
    """Asks for a long answer, and is gone before its end."""
    body = {"prompt": phrase(40), "max_tokens": 600, "ignore_eos": True, "stream": True}
    try:
        async with session.post(f"{server.url}/v1/completions", json=body) as reply:
            if draws.random() < 0.5:
                await reply.content.readline()
    except aiohttp.ClientError:
        pass


async def nonsense(session, server):
    bodies = [b"{", b"[]", b"null", b"\xff\xfe", b'{"messages": 7}', b'{"prompt": "a", "temperature": "hot"}', b'{"prompt": [-1]}']
    headers = {"content-type": "application/json"}
    path = draws.choice(["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/completion"])
    async with session.post(server.url + path, data=draws.choice(bodies), headers=headers) as reply:
        assert 400 <= reply.status < 500, (reply.status, await reply.text())


async def load(server):
    requests = [wanted(i) for i in range(200)]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as session:
        alone = [await ask(session, server, *one) for one in requests]
        left, wrong, sent = REQUESTS, [], {"left": 0, "nonsense": 0, "answered": 0}

        async def client():
            nonlocal left
            while left > 0:
                left -= 1
                luck = draws.random()
                if luck < 0.01:
                    await leave(session, server)
                    sent["left"] += 1
                elif luck < 0.02:
                    await nonsense(session, server)
                    sent["nonsense"] += 1
                else:
                    i = draws.randrange(len(requests))
                    if await ask(session, server, *requests[i]) != alone[i]:
                        wrong.append(requests[i])
                    sent["answered"] += 1

        before, began, sizes = server.megabytes(), time.monotonic(), []

        async def watch():
            while True:
                sizes.append(server.megabytes())
                await asyncio.sleep(0.5)

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(client() for _ in range(AT_ONCE)))
        watching.cancel()
        seconds = time.monotonic() - began
    assert sum(sent.values()) == REQUESTS, f"{REQUESTS} were to be sent: {sent}"
    assert not wrong, f"{len(wrong)} answers differ, such as that to {wrong[0]}"
    for _ in range(200):
        now = server.figures()
        if now["running"] == 0 and now["waiting"] == 0:
            break
        await asyncio.sleep(0.05)
    assert (now["running"], now["waiting"]) == (0, 0), f"stuck: {now}"
    half, late = max(sizes[: len(sizes) // 2] or [before]), max(sizes[len(sizes) // 2 :] or [before])
    assert late < half * 1.1 + 16, f"memory grows: {before:.0f}, {half:.0f}, {late:.0f} MiB"
    return f"{sent} in {seconds:.0f} s, {before:.0f} to {late:.0f} MiB"


async def send_raw(server, data, patience=20):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(data)
        await writer.drain()
        return await asyncio.wait_for(reader.read(4096), patience)
    except (ConnectionError, asyncio.TimeoutError):
        return b""
    finally:
        writer.close()


def post(path, body, length=None):
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length or len(body)}\r\nconnection: close\r\n\r\n"
    return head.encode() + body


async def gaps(session, server, seconds):
    """Times between the pieces of somebody else's answers."""
    out, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        body = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "stream": True}
        async with session.post(f"{server.url}/v1/completions", json=body) as reply:
            last = None
            async for line in reply.content:
                now = time.monotonic()
                if line.startswith(b"data: {"):
                    if last:
                        out.append(now - last)
                    last = now
    return sorted(out)[int(len(out) * 0.999)] * 1e3


async def ill(server):
    deep = b'{"prompt": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"
    union = {"anyOf": [{"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(60)}} for _ in range(60)]}
    nested = {"type": "string"}
    for _ in range(60):
        nested = {"type": "object", "properties": {"a": nested, "b": nested}, "required": ["a", "b"]} if len(json.dumps(nested)) < 200_000 else nested
    long = {"prompt": "a", "max_tokens": 2}
    bodies = [
        deep,
        b'{"prompt": "' + b"a" * 20_000_000 + b'"}',
        json.dumps(long | {"regex": "(a|a)*" * 200 + "(x{1,1000}){1,1000}"}).encode(),
        json.dumps(long | {"regex": "(" * 3000 + ")" * 3000}).encode(),
        json.dumps(long | {"json_schema": union}).encode(),
        json.dumps(long | {"json_schema": nested}).encode(),
        json.dumps(long | {"json_schema": {"$ref": "#"}}).encode(),
        json.dumps(long | {"grammar": "root ::= " + "root root | " * 2000 + '"a"'}).encode(),
        json.dumps(long | {"logit_bias": {str(i): 1 for i in range(100_000)}}).encode(),
        json.dumps(long | {"stop": ["x" * 10_000] * 1000}).encode(),
        json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 100_000}]}).encode(),
    ]
    replies = []

    async def attack():
        for body in bodies:
            path = "/v1/chat/completions" if b"messages" in body[:20] else "/v1/completions"
            reply = await send_raw(server, post(path, body), 60)
            replies.append(reply.split(b"\r\n")[0].decode())
        for _ in range(150):
            body = bytearray(json.dumps({"prompt": phrase(9), "max_tokens": 3, "temperature": 0.5, "stop": ["a"], "n": 2}).encode())
            for _ in range(draws.randint(1, 6)):
                body[draws.randrange(len(body))] = draws.randrange(256)
            reply = await send_raw(server, post("/v1/completions", bytes(body)))
            replies.append(reply.split(b"\r\n")[0].decode())
        replies.append((await send_raw(server, post("/v1/completions", b"{", 1 << 30), 10)).split(b"\r\n")[0].decode())

    async def slow():
        socks = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(200)]
        for _, writer in socks:
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: local")
        answers = await asyncio.gather(*(asyncio.wait_for(reader.read(), 30) for reader, _ in socks), return_exceptions=True)
        assert not any(isinstance(a, asyncio.TimeoutError) for a in answers), "slow clients are not sent away"

    async def deaf():
        """Asks for much, and reads nothing."""
        pairs = [await asyncio.open_connection("127.0.0.1", server.port, limit=1) for _ in range(8)]
        for _, writer in pairs:
            body = json.dumps({"prompt": "a", "max_tokens": 900, "ignore_eos": True, "stream": True, "logprobs": 20}).encode()
            writer.write(post("/v1/completions", body))
        await asyncio.sleep(8)
        for _, writer in pairs:
            writer.close()

    before = server.megabytes()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
        calm = await gaps(session, server, 4)
        watch = asyncio.create_task(gaps(session, server, 12))
        await asyncio.gather(attack(), slow(), deaf())
        troubled = await watch
    assert server.process.poll() is None, "the server is gone"
    bad = [r for r in replies if " 500 " in r]
    assert not bad, f"{len(bad)} internal errors"
    for _ in range(400):
        if server.figures()["running"] == 0:
            break
        await asyncio.sleep(0.05)
    assert server.figures()["running"] == 0, "an answer goes on for nobody"
    after = server.megabytes()
    assert after < before + 200, f"memory grew from {before:.0f} to {after:.0f} MiB"
    return f"{len(replies)} bodies; 99.9 % of gaps below {calm:.0f} ms before, {troubled:.0f} ms then; {before:.0f} to {after:.0f} MiB"


async def killed(server):
    async with aiohttp.ClientSession() as session:
        body = {"prompt": "a", "max_tokens": 900, "ignore_eos": True, "stream": True}
        async with session.post(f"{server.url}/v1/completions", json=body) as reply:
            await reply.content.readline()
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait()
    again = Server()
    try:
        async with aiohttp.ClientSession() as session:
            text = await ask(session, again, "/v1/completions", {"prompt": "a", "max_tokens": 3}, lambda r: r["choices"][0]["text"])
        assert isinstance(text, str)
    finally:
        again.process.send_signal(signal.SIGTERM)
        assert again.process.wait(40) == 0, "it did not end well"
    return "killed in the middle of an answer, and serving again"


def main():
    failed, server = 0, Server()
    try:
        for check in [load, ill, killed]:
            try:
                print(f"ok  {check.__name__}: {asyncio.run(check(server))}", flush=True)
            except Exception as error:
                failed += 1
                print(f"failed  {check.__name__}: {type(error).__name__}: {str(error)[:400]}".replace("\n", " "), flush=True)
    finally:
        server.process.kill()
    sys.exit(1 if failed else 0)


main()
