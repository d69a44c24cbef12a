"""The demo model in PyTorch: a decoder of RMS norms, normed queries and keys and SwiGLU, with a head that guesses on.

It is what GGUF's `hy_v3` describes when no layer has experts: layers like `qwen3`'s, and a multi-token-prediction layer
behind them, which reads the trunk's normed state of a position and the next token, and then its own states."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    n_layers: int = 8
    n_embd: int = 256
    n_ff: int = 768
    n_heads: int = 4
    head_dim: int = 64
    n_vocab: int = 2048
    n_ctx: int = 1024
    theta: float = 10000.0
    eps: float = 1e-6


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps).type_as(x)


def rotation(config, device):
    """Cosines and sines `[T, Dh/2]`; pairs are a channel and the one half a head further."""
    half = config.head_dim // 2
    frequency = config.theta ** (-torch.arange(half, device=device, dtype=torch.float64) / half)
    angle = torch.arange(config.n_ctx, device=device, dtype=torch.float64)[:, None] * frequency
    return angle.cos().float(), angle.sin().float()


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).type_as(x)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        width = c.n_heads * c.head_dim
        self.c = c
        self.attn_norm, self.ffn_norm = Norm(c.n_embd, c.eps), Norm(c.n_embd, c.eps)
        self.q_norm, self.k_norm = Norm(c.head_dim, c.eps), Norm(c.head_dim, c.eps)
        self.q, self.k, self.v = (nn.Linear(c.n_embd, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, c.n_embd, bias=False)
        self.gate, self.up = (nn.Linear(c.n_embd, c.n_ff, bias=False) for _ in range(2))
        self.down = nn.Linear(c.n_ff, c.n_embd, bias=False)

    def qkv(self, x, cos, sin):
        h = self.attn_norm(x)
        heads = lambda y: y.view(*y.shape[:2], self.c.n_heads, self.c.head_dim).transpose(1, 2)
        return rotate(self.q_norm(heads(self.q(h))), cos, sin), rotate(self.k_norm(heads(self.k(h))), cos, sin), heads(self.v(h))

    def rest(self, x, y):
        """What the layer makes of its input and of what its heads read."""
        x = x + self.out(y.transpose(1, 2).flatten(2))
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(x, cos, sin)
        return self.rest(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))


class Head(nn.Module):
    """Guesses the token after the next one: from the trunk's normed state, and the next token."""

    def __init__(self, c):
        super().__init__()
        self.enorm, self.hnorm, self.norm = (Norm(c.n_embd, c.eps) for _ in range(3))
        self.proj = nn.Linear(2 * c.n_embd, c.n_embd, bias=False)
        self.block = Block(c)

    def forward(self, states, embedded, cos, sin, before=()):
        """States to guess with and to go on from, and this step's keys and values.

        A row reads the state of the row before and the embedding of its own token. `before` are keys and values of
        earlier steps: a row of step `n` sees itself, of the step before only the row before, and so on, and all rows of the
        first step before those, as a cache has them when the head goes on from its own states.
        """
        x = self.proj(torch.cat((self.enorm(embedded), self.hnorm(states)), -1))
        q, k, v = self.block.qkv(x, cos, sin)
        if before:
            mask = lasting(len(before), q.shape[2], q.device)
            keys, values = (torch.cat([*(pair[i] for pair in before), (k, v)[i]], 2) for i in (0, 1))
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.norm(self.block.rest(x, y)), (k, v)


def lasting(steps, length, device):
    """Which rows of the earlier steps, and of this one, a row sees."""
    back = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
    return torch.cat([back >= steps] + [back == steps - n for n in range(1, steps + 1)], 1)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embd = nn.Embedding(c.n_vocab, c.n_embd)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.n_layers))
        self.norm = Norm(c.n_embd, c.eps)
        self.head = Head(c)
        self._init()

    def _init(self):
        nn.init.normal_(self.embd.weight, std=0.02)
        for name, p in [*self.blocks.named_parameters(), *self.head.named_parameters()]:
            if p.dim() == 2:
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.04 / (2 * self.c.n_layers) ** 0.5 if residual else 0.04)

    def states(self, ids):
        """The trunk's normed states."""
        cos, sin = rotation(self.c, ids.device)
        x = self.embd(ids)
        if torch.is_autocast_enabled():
            x = x.to(torch.bfloat16)
        for block in self.blocks:
            x = block(x, cos[: ids.shape[1]], sin[: ids.shape[1]])
        return self.norm(x)

    def logits(self, states):
        return F.linear(states, self.embd.weight)

    def forward(self, ids):
        return self.logits(self.states(ids))

    def guesses(self, states, ids, steps):
        """Logits of the head's steps, for the token behind each row as the trunk's; step `n` has no row before `n`.

        Nothing of the trunk learns from this: its states and its table are taken as they are.
        """
        table = self.embd.weight.detach()
        cos, sin = (part[: ids.shape[1]] for part in rotation(self.c, ids.device))
        embedded = F.embedding(ids, table).to(states.dtype)
        states, before = states.detach(), []
        for _ in range(steps):
            # A row reads the state of the row before; the first has none, and is there for the others to see.
            states, cached = self.head(F.pad(states[:, :-1], (0, 0, 1, 0)), embedded, cos, sin, tuple(before))
            yield F.linear(states, table)
            before.append(cached)
