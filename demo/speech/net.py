"""The model in PyTorch, with openai's names: Whisper's shape, made small."""
import math
import torch
import torch.nn.functional as F
from torch import nn
from lexicon import N_VOCAB

DIMS = dict(n_mels=80, n_audio_ctx=1500, n_audio_state=96, n_audio_head=3, n_audio_layer=4,
            n_vocab=N_VOCAB, n_text_ctx=448, n_text_state=96, n_text_head=3, n_text_layer=4)

def sinusoids(length, width):
    step = math.log(10000) / (width // 2 - 1)
    x = torch.arange(length)[:, None] * torch.exp(-step * torch.arange(width // 2))[None]
    return torch.cat([x.sin(), x.cos()], 1)

class Attention(nn.Module):
    def __init__(self, n, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = nn.Linear(n, n), nn.Linear(n, n, bias=False), nn.Linear(n, n), nn.Linear(n, n)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, source=None, causal=False, shown=False):
        """With `shown`, logarithms of the attention too: [B, heads, L, frames]."""
        source = x if source is None else source
        q, k, v = self.split(self.query(x)), self.split(self.key(source)), self.split(self.value(source))
        if not shown:
            return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)), None
        w = (q @ k.transpose(-1, -2)).float().mul(q.shape[-1] ** -0.5).log_softmax(-1)
        return self.out((w.exp().to(v.dtype) @ v).transpose(1, 2).flatten(2)), w

class Block(nn.Module):
    def __init__(self, n, heads, cross=False):
        super().__init__()
        self.attn, self.attn_ln = Attention(n, heads), nn.LayerNorm(n)
        if cross:
            self.cross_attn, self.cross_attn_ln = Attention(n, heads), nn.LayerNorm(n)
        self.mlp, self.mlp_ln = nn.Sequential(nn.Linear(n, 4 * n), nn.GELU(), nn.Linear(4 * n, n)), nn.LayerNorm(n)

    def forward(self, x, source=None, shown=False):
        x = x + self.attn(self.attn_ln(x), causal=source is not None)[0]
        w = None
        if source is not None:
            y, w = self.cross_attn(self.cross_attn_ln(x), source, shown=shown)
            x = x + y
        return x + self.mlp(self.mlp_ln(x)), w

class Encoder(nn.Module):
    def __init__(self, d):
        super().__init__()
        n = d["n_audio_state"]
        self.conv1, self.conv2 = nn.Conv1d(d["n_mels"], n, 3, padding=1), nn.Conv1d(n, n, 3, stride=2, padding=1)
        self.register_buffer("positional_embedding", sinusoids(d["n_audio_ctx"], n))
        self.blocks = nn.ModuleList(Block(n, d["n_audio_head"]) for _ in range(d["n_audio_layer"]))
        self.ln_post = nn.LayerNorm(n)

    def forward(self, mel, first=None):
        """Of features; with `first`, the frame of the window at which each row's part of it begins."""
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2)
        at = torch.arange(x.shape[1], device=x.device)
        x = x + self.positional_embedding[at if first is None else first[:, None] + at]
        for block in self.blocks:
            x = block(x)[0]
        return self.ln_post(x)

class Decoder(nn.Module):
    """Rows of the embedding are those of tokens in use; one more stands for each of all the others."""
    def __init__(self, d, used):
        super().__init__()
        n = d["n_text_state"]
        self.layers = d["n_text_layer"]
        rows = torch.randn(used + 1, n) * 0.1
        # Times, the last in use, begin as the positions that they name.
        rows[used - 1501:used] = 0.15 * sinusoids(1501, n)
        self.rows = nn.Parameter(rows)
        self.others = math.log(d["n_vocab"] - used)
        self.positional_embedding = nn.Parameter(sinusoids(d["n_text_ctx"], n) * 0.1)
        self.blocks = nn.ModuleList(Block(n, d["n_text_head"], True) for _ in range(self.layers))
        self.ln = nn.LayerNorm(n)

    def forward(self, tokens, source):
        """Logits of the rows, and the attention of the upper half's heads, by which words are timed."""
        x = self.rows[tokens] + self.positional_embedding[:tokens.shape[1]]
        seen = []
        for i, block in enumerate(self.blocks):
            x, w = block(x, source, shown=i >= self.layers // 2)
            seen += [] if w is None else [w]
        logits = self.ln(x) @ self.rows.T
        # The last row is that of many tokens.
        return torch.cat([logits[..., :-1], logits[..., -1:] + self.others], -1), seen

class Net(nn.Module):
    def __init__(self, used, dims=DIMS):
        super().__init__()
        self.dims = dims
        self.encoder, self.decoder = Encoder(dims), Decoder(dims, used)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, std=m.in_features ** -0.5)
                if m.bias is not None:
                    nn.init.zeros_(m.bias)
        for block in [*self.encoder.blocks, *self.decoder.blocks]:
            for m in [block.mlp[2], block.attn.out] + ([block.cross_attn.out] if hasattr(block, "cross_attn") else []):
                nn.init.normal_(m.weight, std=0.25 * m.in_features ** -0.5)
        for conv in (self.encoder.conv1, self.encoder.conv2):
            nn.init.normal_(conv.weight, std=1.4 * (3 * conv.in_channels) ** -0.5)
        for i, block in enumerate(self.encoder.blocks):
            look_near(block.attn, 5 * (i + 1))

@torch.no_grad()
def look_near(attn, reach):
    """Heads begin by looking a little back, here, and a little ahead: by the sines of positions, turned."""
    n, gain = attn.query.in_features, 1.7
    size, half = n // attn.heads, n // 2
    for weight in (attn.query.weight, attn.key.weight):
        weight.mul_(0.1)
    for head in range(attn.heads):
        for j in range(size // 2):
            i = j * 2 * half // (3 * size // 2)
            turn = math.exp(-math.log(10000) / (half - 1) * i) * reach * (head - (attn.heads - 1) / 2)
            sin, cos = head * size + 2 * j, head * size + 2 * j + 1
            attn.query.weight[sin, i] += gain; attn.query.weight[cos, half + i] += gain
            attn.key.weight[sin, i] += gain * math.cos(turn); attn.key.weight[sin, half + i] += gain * math.sin(turn)
            attn.key.weight[cos, half + i] += gain * math.cos(turn); attn.key.weight[cos, i] -= gain * math.sin(turn)

class Optimiser:
    """Muon for the matrices of the blocks, AdamW for everything else."""
    def __init__(self, net, more, rate):
        self.rate, self.groups = rate, {}
        for name, p in net.named_parameters():
            if ".blocks." in name and p.dim() == 2:
                self.groups.setdefault(tuple(p.shape), []).append(p)
        taken = {id(p) for ps in self.groups.values() for p in ps}
        self.momentum = {shape: torch.zeros(len(ps), *shape, device=ps[0].device) for shape, ps in self.groups.items()}
        rest = [p for p in [*net.parameters(), *more] if id(p) not in taken]
        self.adam = torch.optim.AdamW(rest, lr=0, betas=(0.9, 0.98), weight_decay=0.0, fused=rest[0].is_cuda)

    @torch.no_grad()
    def step(self, scale):
        for shape, ps in self.groups.items():
            gradient, m = torch.stack([p.grad for p in ps]), self.momentum[shape]
            m.lerp_(gradient, 0.05)
            update = orthogonal(gradient.lerp(m, 0.95)).float()
            rate = 10 * self.rate * scale * max(1.0, shape[0] / shape[1]) ** 0.5
            torch._foreach_mul_(ps, 1 - rate * 0.05)
            torch._foreach_add_(ps, list(update.unbind(0)), alpha=-rate)
            torch._foreach_zero_([p.grad for p in ps])
        for group in self.adam.param_groups:
            group["lr"] = self.rate * scale
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)

def orthogonal(g):
    """The nearest (half-)orthogonal matrices, by Newton and Schulz's iteration."""
    x = g.bfloat16()
    x = x.mT if g.shape[-2] > g.shape[-1] else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x.mT if g.shape[-2] > g.shape[-1] else x
