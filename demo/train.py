"""Trains the demo model on one GPU, from text that worker processes write meanwhile.

    python train.py OUT --layers 8 --seconds 480 --seed 1 [--tests tests.json --stories stories.txt]

Writes OUT/model-<layers>.safetensors (F16), and OUT/log-<layers>.txt with the loss. Several `--layers` train one after
the other, each for its own `--seconds`: the sweep.
"""

import argparse
import json
import math
import multiprocessing as mp
import os
import queue
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS_PER_SHARD = 256
PROMPT_WEIGHT = 0.1
HEAD_STEPS = 3


# Data

def _documents(rng, tokenizer, count):
    """Token ids of documents and the weight of each token."""
    import chat
    documents = [chat.document(rng) for _ in range(count)]
    flat = [text for parts in documents for text, _ in parts]
    encoded = iter(tokenizer.encode_batch_fast(flat, add_special_tokens=False))
    for parts in documents:
        ids, weights = [], []
        for _, learned in parts:
            piece = next(encoded).ids
            ids += piece
            weights += [1.0 if learned else PROMPT_WEIGHT] * len(piece)
        yield ids, weights


class Packer:
    """Fills rows of one length with whole documents; what stays free is padding that nothing learns from."""

    def __init__(self, length, open_rows=24):
        self.length, self.open, self.most = length, [], open_rows

    def add(self, ids, weights):
        """A full row, once one must go."""
        if len(ids) > self.length:
            return None
        fitting = [row for row in self.open if len(row[0]) + len(ids) <= self.length]
        if fitting:
            row = max(fitting, key=lambda r: len(r[0]))
            row[0].extend(ids)
            row[1].extend(weights)
            return None
        self.open.append((list(ids), list(weights)))
        if len(self.open) <= self.most:
            return None
        self.open.sort(key=lambda r: len(r[0]))
        ids, weights = self.open.pop()
        free = self.length - len(ids)
        return ids + [0] * free, weights + [0.0] * free


def _worker(seed, length, out):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import words
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(os.path.join(HERE, "tokenizer.json"))
    rng, packer, rows = words.new_rng(seed), Packer(length), []
    while True:
        for ids, weights in _documents(rng, tokenizer, 512):
            row = packer.add(ids, weights)
            if row:
                rows.append(row)
            if len(rows) == ROWS_PER_SHARD:
                ids, weights = zip(*rows)
                out.put((np.array(ids, np.uint16), np.array(weights, np.float16)))
                rows = []


class Data:
    """Shards from worker processes; each is used a few times, since writing is slower than learning."""

    def __init__(self, workers, length, seed, keep=1500):
        self.queue = mp.Queue(64)
        self.processes = [mp.Process(target=_worker, args=(f"train {seed} {i}", length, self.queue), daemon=True) for i in range(workers)]
        for process in self.processes:
            process.start()
        self.shards, self.keep, self.made = [], keep, 0
        self.rng = np.random.default_rng(seed)

    def fill(self, block=False):
        """Takes what the workers have; the oldest shards go."""
        while True:
            try:
                self.shards.append(self.queue.get(block=block))
                self.made += 1
                block = False
            except queue.Empty:
                break
        del self.shards[: max(0, len(self.shards) - self.keep)]

    def batch(self, rows):
        self.fill(block=len(self.shards) < 4)
        ids, weights = [], []
        for _ in range(8):
            a, b = self.shards[self.rng.integers(len(self.shards))]
            take = self.rng.choice(len(a), rows // 8, replace=False)
            ids.append(a[take])
            weights.append(b[take])
        return np.concatenate(ids).astype(np.int64), np.concatenate(weights).astype(np.float32)

    def stop(self):
        for process in self.processes:
            process.terminate()


# Optimisers

def orthogonal(g, steps=5):
    """The nearest (half-)orthogonal matrices, by the Newton-Schulz iteration of the Muon optimiser."""
    import torch
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


class Optimiser:
    """Muon for the matrices of the layers, AdamW for embeddings and norms."""

    def __init__(self, model, decay=0.05):
        import torch
        self.decay = decay
        matrices = [p for part in (model.blocks, model.head) for p in part.parameters() if p.dim() == 2]
        self.groups = {}
        for p in matrices:
            self.groups.setdefault(tuple(p.shape), []).append(p)
        self.momentum = {shape: torch.zeros(len(ps), *shape, device=ps[0].device) for shape, ps in self.groups.items()}
        rest = [p for p in model.parameters() if all(p is not m for m in matrices)]
        self.adam = torch.optim.AdamW(rest, lr=0.004, betas=(0.9, 0.98), weight_decay=0.0, fused=rest[0].is_cuda)

    def step(self, scale):
        import torch
        for shape, ps in self.groups.items():
            with torch.no_grad():
                gradient = torch.stack([p.grad for p in ps])
                m = self.momentum[shape]
                m.lerp_(gradient, 0.05)
                update = orthogonal(gradient.lerp(m, 0.95)).float()
                rate = 0.02 * scale * max(1.0, shape[0] / shape[1]) ** 0.5
                for p, u in zip(ps, update):
                    p.mul_(1 - rate * self.decay).add_(u, alpha=-rate)
        for group in self.adam.param_groups:
            group["lr"] = 0.004 * scale
        self.adam.step()
        for ps in self.groups.values():
            for p in ps:
                p.grad = None
        self.adam.zero_grad(set_to_none=True)


def schedule(done):
    """Share of the full rate at a share of the training: a short rise, a plateau, a straight fall to 0."""
    return min(1.0, done / 0.01) * min(1.0, (1 - done) / 0.5)


# Training

def train(args, layers, seconds, data, say):
    import torch
    from model import Config, Model
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    model = Model(Config(n_layers=layers)).to(device)
    if args.resume:
        from safetensors.torch import load_file
        model.load_state_dict({k: v.float() for k, v in load_file(args.resume).items()})
    say(f"{layers} layers, {sum(p.numel() for p in model.parameters())} parameters, seed {args.seed}")
    optimiser = Optimiser(model)
    loss = loss_of_logits
    compiled = [*model.blocks, model.head]
    if device == "cuda":
        loss = torch.compile(loss, dynamic=False)
        for part in compiled:
            part.compile(dynamic=False)
    begin = None
    done, step, tokens = 0.0, 0, 0
    while done < 1.0 and step < args.steps:
        ids, weights = (torch.from_numpy(part).to(device) for part in data.batch(args.rows))
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            states = model.states(ids[:, :-1])
            value = loss(model.logits(states), ids, weights)
            guessed = head_losses(model, loss, states, ids, weights, args.head_rows)
        (value + sum(guessed)).backward()
        if begin is None:
            value.item()
            begin = time.time()
            if args.until:
                seconds = min(seconds or args.until, args.until - (begin - args.started))
        done = min(1.0, (time.time() - begin) / seconds) if seconds else (step + 1) / args.steps
        optimiser.step(schedule(done) * args.rate)
        step += 1
        tokens += ids.numel()
        if step % args.every == 0 or done >= 1.0:
            now = time.time() - begin
            say(f"layers {layers} step {step} loss {value.item():.4f} head {' '.join(f'{g.item():.4f}' for g in guessed)} {now:.0f} s {tokens / 1e6:.0f} M tokens, {data.made} shards written, rate {schedule(done) * args.rate:.3f}")
    for part in compiled:
        part._compiled_call_impl = None
    return model


def head_losses(model, loss, states, ids, weights, rows):
    """Of the head's steps over some rows of the batch: from the trunk's states, then from its own."""
    found = []
    for step, logits in enumerate(model.guesses(states[:rows], ids[:rows, :-1], HEAD_STEPS), 1):
        seen = weights[:rows].clone()
        seen[:, : step + 1] = 0
        found.append(loss(logits, ids[:rows], seen))
    return found


def loss_of_logits(logits, ids, weights):
    import torch.nn.functional as F
    losses = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    w = weights[:, 1:].flatten()
    return (losses * w).sum() / w.sum()


# Evaluation

def answers(model, tokenizer, prompts, most=320):
    """Greedy answers of all prompts at once."""
    import torch
    stop = tokenizer.token_to_id("<|im_end|>")
    device = next(model.parameters()).device
    rows = [tokenizer.encode(p, add_special_tokens=False).ids for p in prompts]
    lengths = torch.tensor([len(r) for r in rows], device=device)
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width + most, dtype=torch.long, device=device)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row, device=device)
    ended = torch.zeros(len(rows), dtype=torch.bool, device=device)
    every = torch.arange(len(rows), device=device)
    ends = lengths.clone()
    for _ in range(most):
        live = (~ended).nonzero().flatten()
        if len(live) == 0:
            break
        used = ids[live, : int(ends[live].max())]
        logits = model(used)[torch.arange(len(live), device=device), ends[live] - 1]
        token = logits.argmax(-1)
        ids[live, ends[live]] = token
        ended[live] = token == stop
        ends[live] += 1
    texts = []
    for i in every.tolist():
        out = ids[i, int(lengths[i]): int(ends[i])].tolist()
        texts.append(tokenizer.decode([t for t in out if t != stop], skip_special_tokens=False))
    return texts


def perplexity(model, tokenizer, text, length=512):
    """Of chunks of `length` tokens, counted over their second halves."""
    import torch
    import torch.nn.functional as F
    device = next(model.parameters()).device
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    ids = torch.tensor(ids[: len(ids) // length * length], device=device).view(-1, length)
    total = count = 0
    for chunk in ids.split(64):
        logits = model(chunk)[:, length // 2 - 1: -1].float()
        losses = F.cross_entropy(logits.flatten(0, 1), chunk[:, length // 2:].flatten(), reduction="sum")
        total, count = total + losses.item(), count + chunk[:, length // 2:].numel()
    return math.exp(total / count)


def evaluate(args, model, say, name):
    import torch
    import chat
    import check
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(os.path.join(HERE, "tokenizer.json"))
    with open(args.tests, encoding="utf-8") as f:
        tests = json.load(f)
    with open(args.stories, encoding="utf-8") as f:
        text = f.read()
    model.eval()
    with torch.no_grad():
        say(f"{name}: perplexity of held-out stories {perplexity(model, tokenizer, text):.4f}")
        prompts = [chat.render([("user", t["prompt"])], tools=t.get("tools")) for t in tests]
        given = answers(model, tokenizer, prompts)
    report = check.judge_all(tests, given)
    for line in check.table(report):
        say(line)
    for verdict in report:
        if verdict.faults:
            say(f"  {verdict.test['kind']}: {'; '.join(verdict.faults)}\n    prompt: {verdict.test['prompt'][:400]!r}\n    answer: {verdict.answer[:600]!r}")
    with open(os.path.join(args.out, f"answers-{name}.json"), "w", encoding="utf-8") as f:
        json.dump(given, f, ensure_ascii=False, indent=0)


def save(model, path):
    import torch
    from safetensors.torch import save_file
    save_file({k: v.detach().to(torch.float16).cpu().contiguous() for k, v in model.state_dict().items()}, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, nargs="+", default=[8])
    parser.add_argument("--seconds", type=float, nargs="+", default=[480])
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--every", type=int, default=200)
    parser.add_argument("--head-rows", type=int, default=32, help="rows of each batch that the head learns from")
    parser.add_argument("--until", type=float, default=0, help="end this many seconds after the start, whatever --seconds says")
    parser.add_argument("--resume")
    parser.add_argument("--tests", default=os.path.join(HERE, "tests.json"))
    parser.add_argument("--stories", default=os.path.join(HERE, "stories.txt"))
    args = parser.parse_args()
    args.started = time.time()
    os.makedirs(args.out, exist_ok=True)
    data = Data(args.workers, 1025, args.seed)
    import torch
    torch._dynamo.config.recompile_limit = 64
    torch.set_float32_matmul_precision("high")
    for layers, seconds in zip(args.layers, args.seconds):
        with open(os.path.join(args.out, f"log-{layers}.txt"), "a", encoding="utf-8") as log:
            def say(line):
                print(line, flush=True)
                print(line, file=log, flush=True)
            model = train(args, layers, seconds, data, say)
            save(model, os.path.join(args.out, f"model-{layers}.safetensors"))
            evaluate(args, model, say, str(layers))
    data.stop()


if __name__ == "__main__":
    main()
