"""The demo model in PyTorch: a decoder as GGUF's `qwen3` describes it (RMS norms, normed queries and keys, SwiGLU)."""

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

    def forward(self, x, cos, sin):
        h = self.attn_norm(x)
        heads = lambda y: y.view(*y.shape[:2], self.c.n_heads, self.c.head_dim).transpose(1, 2)
        q = rotate(self.q_norm(heads(self.q(h))), cos, sin)
        k = rotate(self.k_norm(heads(self.k(h))), cos, sin)
        y = F.scaled_dot_product_attention(q, k, heads(self.v(h)), is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embd = nn.Embedding(c.n_vocab, c.n_embd)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.n_layers))
        self.norm = Norm(c.n_embd, c.eps)
        self._init()

    def _init(self):
        nn.init.normal_(self.embd.weight, std=0.02)
        for name, p in self.blocks.named_parameters():
            if p.dim() == 2:
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.04 / (2 * self.c.n_layers) ** 0.5 if residual else 0.04)

    def forward(self, ids):
        cos, sin = rotation(self.c, ids.device)
        x = self.embd(ids)
        if torch.is_autocast_enabled():
            x = x.to(torch.bfloat16)
        for block in self.blocks:
            x = block(x, cos[: ids.shape[1]], sin[: ids.shape[1]])
        return F.linear(self.norm(x), self.embd.weight)
