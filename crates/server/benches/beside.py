"""`tokkata serve` beside llama-server on the same file: python beside.py MODEL.gguf --llama LLAMA_SERVER [--tokkata PROGRAM]

Both servers answer the same clients in turn, round after round; `tokkata bench serve` is the clients, its prompts differ from
round to round. --setting gives flags of llama-server that are tried beside each other, such as '-fa on' and '-fa on
--no-repack'; the best of them counts for each number of clients. Both get as many slots as there are clients. A file made by
`tokkata bench --synthetic SHAPE:MIX --save FILE` has no tokenizer: --vocab names a GGUF whose tokenizer is written into a copy.
Needs nothing but Python and Linux. Prints medians over rounds with their smallest and largest: tokens written per second, the
ratio round by round, the 95th percentile of the first token, the median time of a token, and CPU time of the server.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shlex
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9


class Header:
    """What stands before the tensors of a GGUF file: metadata as bytes by key, and the tensors' entries."""

    def __init__(self, path: pathlib.Path) -> None:
        with path.open("rb") as f:
            self.bytes = f.read(64 << 20)
        if self.bytes[:4] != b"GGUF":
            sys.exit(f"{path}: expected GGUF")
        self.at = 8
        tensors, entries = self.word(8), self.word(8)
        self.meta = dict(self.entry() for _ in range(entries))
        begin = self.at
        for _ in range(tensors):
            self.string()
            dims = self.word(4)
            self.at += 8 * dims + 12
        self.count, self.tensors = tensors, self.bytes[begin : self.at]
        self.align = 32
        if (align := self.meta.get(b"general.alignment")) is not None:
            self.align = struct.unpack("<I", align[4:])[0]
        self.data = -(-self.at // self.align) * self.align

    def word(self, size: int) -> int:
        self.at += size
        return int.from_bytes(self.bytes[self.at - size : self.at], "little")

    def string(self) -> bytes:
        size = self.word(8)
        self.at += size
        return self.bytes[self.at - size : self.at]

    def skip(self, kind: int) -> None:
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            inner, count = self.word(4), self.word(8)
            if inner in SIZES:
                self.at += SIZES[inner] * count
            else:
                for _ in range(count):
                    self.skip(inner)
        else:
            self.at += SIZES[kind]

    def entry(self) -> tuple[bytes, bytes]:
        key, begin = self.string(), self.at
        self.skip(self.word(4))
        return key, self.bytes[begin : self.at]


def with_tokenizer(model: pathlib.Path, vocab: pathlib.Path, out: pathlib.Path) -> None:
    """Writes the model with the other file's tokenizer."""
    ours, theirs = Header(model), Header(vocab)
    meta = {k: v for k, v in ours.meta.items() if not k.startswith(b"tokenizer.")}
    meta |= {k: v for k, v in theirs.meta.items() if k.startswith(b"tokenizer.")}
    head = b"GGUF" + struct.pack("<IQQ", 3, ours.count, len(meta))
    head += b"".join(struct.pack("<Q", len(k)) + k + v for k, v in meta.items())
    head += ours.tensors
    head += bytes(-len(head) % ours.align)
    with out.open("wb") as into, model.open("rb") as data:
        into.write(head)
        data.seek(ours.data)
        while piece := data.read(64 << 20):
            into.write(piece)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The server from when it is healthy on; its last lines are shown where it ends before."""
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            for _ in range(1200):
                with contextlib.suppress(OSError):
                    if urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200:
                        break
                if server.poll() is not None:
                    log.seek(0)
                    sys.exit(f"{shlex.join(command)} ended: {log.read()[-2000:].decode(errors='replace')}")
                time.sleep(0.1)
            else:
                sys.exit(f"{shlex.join(command)}: not healthy within two minutes")
            yield server
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def cpu_seconds(process: int) -> float:
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def clients(asked: argparse.Namespace, port: int, count: int, requests: int, seed: int, lengths: tuple[int, int]) -> dict:
    command = [asked.tokkata, "bench", "serve", "--server", f"http://127.0.0.1:{port}", "-o", "json"]
    command += ["-n", str(requests), "-c", str(count), "--seed", str(seed)]
    command += ["--input-len", str(lengths[0]), "--output-len", str(lengths[1])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}: {done.stderr}")
    figures = json.loads(done.stdout)
    if figures["failed"] or figures["output_tokens"] != requests * lengths[1]:
        sys.exit(f"{shlex.join(command)}: {figures['failed']} failed, {figures['output_tokens']} tokens; {done.stderr}")
    return figures


def once(asked: argparse.Namespace, command: list[str], port: int, count: int, seed: int) -> dict:
    with running(command, port) as server:
        clients(asked, port, count, count, 1_000_000 + seed, (16, 8))
        before = cpu_seconds(server.pid)
        figures = clients(asked, port, count, count * asked.each, seed, (asked.input, asked.output))
        figures["cpu"] = cpu_seconds(server.pid) - before
        return figures


def told(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def main() -> None:
    args = argparse.ArgumentParser(usage=__doc__)
    args.add_argument("model", type=pathlib.Path)
    args.add_argument("--tokkata", default="tokkata")
    args.add_argument("--llama", required=True)
    args.add_argument("--vocab", type=pathlib.Path)
    args.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    args.add_argument("--each", type=int, default=2, help="requests of each client")
    args.add_argument("--input", type=int, default=512)
    args.add_argument("--output", type=int, default=128)
    args.add_argument("--rounds", type=int, default=3)
    args.add_argument("--ours", default="", help="flags of tokkata serve")
    args.add_argument("--theirs", default="", help="flags of llama-server, always")
    args.add_argument("--setting", action="append", help="flags of llama-server, tried beside others")
    asked = args.parse_args()
    settings = asked.setting or ["-fa on"]
    if asked.input <= 0 or asked.output <= 0 or asked.rounds <= 0:
        sys.exit("expected lengths and rounds of at least 1")
    with tempfile.TemporaryDirectory() as folder:
        model = asked.model
        if asked.vocab:
            model = pathlib.Path(folder) / asked.model.name
            with_tokenizer(asked.model, asked.vocab, model)
        context = asked.input + asked.output + 128
        for count in asked.clients:
            found: dict[str, list[dict]] = {name: [] for name in ["", *settings]}
            for turn in range(asked.rounds):
                for name in found:
                    port = free_port()
                    slots = ["-m", str(model), "--port", str(port), "--parallel", str(count)]
                    if name:
                        command = [asked.llama, *slots, "-c", str(context * count), *shlex.split(f"{asked.theirs} {name}")]
                    else:
                        command = [asked.tokkata, "serve", *slots, "-c", str(context), *shlex.split(asked.ours)]
                    found[name].append(once(asked, command, port, count, turn + 1))
            rates = {n: [f["output_tokens_per_second"] for f in runs] for n, runs in found.items()}
            best = max(settings, key=lambda n: statistics.median(rates[n]))
            print(f"{asked.model.name}, {count} clients: ratio {told([a / b for a, b in zip(rates[''], rates[best])], 2)}")
            for name in ["", *settings]:
                runs = found[name]
                line = f"  {'llama-server ' + name if name else 'tokkata':<32} {told(rates[name], 1)} tokens/s"
                line += f", first token 95 % {told([f['ttft_ms']['p95'] for f in runs], 0)} ms"
                line += f", a token {told([f['tpot_ms']['p50'] for f in runs], 2)} ms, {told([f['cpu'] for f in runs], 1)} s of CPU"
                print(line, flush=True)


if __name__ == "__main__":
    main()
