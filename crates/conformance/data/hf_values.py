"""Weights and ids of goldens, which follow from names and seeds alone."""

import numpy as np


def mix(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def noise(name, n):
    """Numbers in -1..1 that follow from a name and an index alone."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x0100000001B3) % 2**64
    with np.errstate(over="ignore"):
        golden = np.uint64(0x9E3779B97F4A7C15)
        counter = np.arange(n, dtype=np.uint64) * golden
        bits = mix(mix(np.uint64(seed) + golden) ^ counter) >> np.uint64(40)
    return bits.astype(np.float32) / np.float32(8388608.0) - np.float32(1.0)


def listed(name, shape, experts):
    """The experts of each token, all of them different."""
    rows, used = shape
    first = ((noise(name, rows) + np.float32(1.0)) * np.float32(experts / 2)).astype(np.int64)
    return (first[:, None] + np.arange(used)) % int(experts)


def values(name, shape, rule):
    if name.endswith("tid2eid"):
        return listed(name, shape, rule[1])
    u = noise(name, int(np.prod(shape)) if shape else 1)
    return (np.float32(rule[0]) + np.float32(rule[1]) * u).astype(np.float32).reshape(shape)


def ids(seed, n, vocabulary):
    state, out = seed, []
    for _ in range(n):
        state = (state * 1664525 + 1013904223) % 2**32
        out.append((state >> 8) % vocabulary)
    return out
