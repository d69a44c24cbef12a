"""Signals that Rust and Python make alike, in integers: noise, sweeps and bursts as 16-bit samples."""
import numpy as np

def noise(n, seed, volume):
    out = np.empty(n, np.int64)
    x = seed
    for i in range(n):
        x = (x * 1664525 + 1013904223) % (1 << 32)
        out[i] = ((x >> 16) - 32768) * volume // 32768
    return out

def sweep(n, first, last, volume):
    """A triangle whose frequency goes from first to last, in 1/65536 of a turn per sample."""
    i = np.arange(n, dtype=np.int64)
    phase = first * i + (last - first) * i * i // (2 * n)
    p = phase % 65536
    return (np.abs(p - 32768) - 16384) * volume // 16384

def signal(kind, n):
    if kind == "noise":
        s = noise(n, 1, 9000)
    elif kind == "sweep":
        s = sweep(n, 400, 26000, 12000) + noise(n, 3, 200)
    else:  # bursts with silence between
        s = sweep(n, 900, 5200, 15000) + noise(n, 7, 600)
        s[(np.arange(n) // 4800) % 3 == 2] = 0
    return (np.clip(s, -32768, 32767) / 32768.0).astype(np.float32)
