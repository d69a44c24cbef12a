"""Goldens as the Rust side writes them: metadata, shapes and weights that follow from names."""

import json
import math
import re
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "goldens"
MASK = (1 << 64) - 1


def spreads():
    """The table of spreads in the generator's source: one fact, one place."""
    source = (HERE.parent / "src" / "generate.rs").read_text()
    table = source[source.index("const SPREADS"):]
    table = table[:table.index("];")]
    rows = re.findall(r'\("([^"]+)",\s*(-?[\d.]+),\s*(-?[\d.]+)\)', table)
    return [(name, float(centre), float(spread)) for name, centre, spread in rows]


SPREADS = spreads()


def noise(name, count):
    """Numbers in -1..1 of a name and an index, as in `fixture::noise`."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x0100000001B3) & MASK
    return (uniform(seed, np.arange(count, dtype=np.uint64)) >> np.uint64(40)).astype(np.float32) / 8388608.0 - 1.0


def uniform(seed, counter):
    """`ir::sample::uniform` over an array of counters."""
    golden = 0x9E3779B97F4A7C15
    start = mix(np.array([(seed + golden) & MASK], dtype=np.uint64))
    with np.errstate(over="ignore"):
        return mix(start ^ (counter * np.uint64(golden)))


def mix(z):
    """SplitMix64's finaliser."""
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def values(name, shape):
    """What `generate::values` gives."""
    found = next(((c, s) for part, c, s in SPREADS if part in name), None)
    centre, spread = found or (0.0, float(np.sqrt(np.float32(3.0 / shape[-1]))))
    count = math.prod(shape)
    flat = np.float32(centre) + np.float32(spread) * noise(name, count)
    return flat.astype(np.float64).reshape(shape)


def unfold(tensors):
    """`blk.0-2,5.x` stands for four tensors."""
    found = {}
    for name, shape in tensors.items():
        match = re.search(r"blk\.([\d,-]+)\.", name)
        if not match:
            found[name] = shape
            continue
        for part in match[1].split(","):
            first, _, last = part.partition("-")
            for layer in range(int(first), int(last or first) + 1):
                found[name[:match.start(1)] + str(layer) + name[match.end(1):]] = shape
    return found


class Golden:
    """A tiny model; `get` marks what was used, so that `unused` can tell what was not."""

    def __init__(self, name):
        self.name = name
        self.path = FOLDER / f"{name}.json"
        self.text = self.path.read_text()
        self.json = json.loads(self.text)
        metadata = {key.split(" ", 1)[1]: value for key, value in self.json["metadata"].items()}
        self.arch = metadata["general.architecture"]
        self.metadata = {key.removeprefix(self.arch + "."): value for key, value in metadata.items()}
        self.shapes = unfold(self.json["tensors"])
        self.used = set()

    def key(self, name, default=None):
        """A metadata key below the architecture; what files write for "unset" is unset."""
        value = self.metadata.get(name)
        return default if value is None else value

    def has(self, name):
        return name in self.shapes

    def get(self, name):
        self.used.add(name)
        return values(name, self.shapes[name])

    def unused(self):
        """Tensors that nothing read; scales of one do not count."""
        quiet = (".scale", ".input_scale")
        return sorted(n for n in self.shapes if n not in self.used and not n.endswith(quiet))

    def vocabulary(self):
        return self.key("vocab_size") or self.shapes["token_embd.weight"][0]

    def ids(self, seed=None, count=None):
        state = self.json["seed"] if seed is None else seed
        found = []
        for _ in range(count or self.json["positions"]):
            state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
            found.append((state >> 8) % self.vocabulary())
        return found

    def write(self, rows, title):
        """Rows beside the oracle's, thinned out the same way, and who computed them."""
        kept = rows[:, ::self.json["stride"]].astype("<f4")
        (FOLDER / f"{self.name}.second.f32").write_bytes(kept.tobytes())
        line = f'  "second": {json.dumps(title)},\n'
        text = re.sub(r'  "second": .*\n', "", self.text)
        self.path.write_text(text.replace('  "rows":', line + '  "rows":', 1))

    def want(self):
        return np.fromfile(FOLDER / f"{self.name}.f32", dtype="<f4").astype(np.float64)
