"""Windows of thirty seconds: who says what when, the tokens for it, and the sound made on the device."""
import math, random
import numpy as np
import torch
from lexicon import (BY_LANGUAGE, EOT, LANGUAGE_IDS, LANGUAGES, NO_SPEECH, NO_TIMES, PREV, SOT, TIMES, TRANSCRIBE, TRANSLATE,
                     WORDS, APART_PAIRS, token)

RATE, SAMPLES = 16000, 480000
USED = sorted({token(w) for line in WORDS for w in line} | {EOT, SOT, TRANSLATE, TRANSCRIBE, PREV, NO_SPEECH, NO_TIMES}
              | set(LANGUAGE_IDS.values()) | set(range(TIMES, TIMES + 1501)))
ROW = {id: i for i, id in enumerate(USED)}
FIRST_TIME = ROW[TIMES]
PLACE = {l: {w: i for i, w in enumerate(words)} for l, words in BY_LANGUAGE.items()}
CLASSES = 1 + len(LANGUAGES) * len(WORDS)

class Bank:
    """All takes, one after the other."""
    def __init__(self):
        self.waves, self.samples, self.people = [], 0, {(l, a): [] for l in LANGUAGES for a in (False, True)}

    def add(self, wave, about):
        takes, at = [], self.samples
        for t in about["takes"]:
            takes.append((at, t["n"], t["words"], t["limits"]))
            at += t["n"]
        self.people[about["language"], about["apart"]].append(takes)
        self.waves.append(wave)
        self.samples += len(wave)

    def on(self, device):
        wave = torch.empty(self.samples, dtype=torch.int16, device=device)
        at = 0
        for w in self.waves:
            wave[at:at + len(w)] = torch.from_numpy(w).to(device)
            at += len(w)
        self.waves = []
        return wave

def stamp(seconds):
    return TIMES + min(1500, max(0, round(seconds * 50)))

def meant(word, language, translate):
    return token(WORDS[PLACE[language][word]][0] if translate else word)

class Window:
    """What is heard where, and what is to be written: of a whole window, or of a part of one that begins at `first` seconds."""
    def __init__(self, rng, bank, prompted, apart=False, length=30):
        self.length, self.first = float(length), 0.0
        if length < 30 and rng.random() < 0.7:
            self.first = rng.randrange(0, (30 - length) * 50) / 50
        self.language = rng.choice(LANGUAGES)
        self.heard = []           # (place in the bank, samples, offset, gain)
        self.said = []            # (words, [(start, end)])
        self.silent = rng.random() < 0.1
        self.end = self.length
        if not self.silent:
            self.fill(rng, bank, apart)
        self.translate = self.language != "en" and rng.random() < 0.12
        self.times = rng.random() < 0.65
        self.write(rng, prompted)

    def fill(self, rng, bank, apart):
        people = bank.people[self.language, apart]
        person = rng.choice(people)
        other = rng.choice(people) if rng.random() < 0.25 else person
        at = rng.uniform(0.0, 1.0) if rng.random() < 0.85 else rng.uniform(1.0, self.length / 3)
        if rng.random() < 0.15:
            at = 0.0
        most = rng.choice([1, 2, 3, 99, 99, 99])
        pause = rng.choice([0.5, 0.8, 1.5, 4.0])
        gain = 10 ** (rng.uniform(-30, -1) / 20)
        while len(self.said) < most and at < self.length - 0.3:
            for _ in range(8):
                place, n, words, limits = rng.choice(person if rng.random() < 0.6 else other)
                last = self.said[-1][0][-1] if self.said else None
                if ((last, words[0]) in APART_PAIRS[self.language]) == apart or last is None:
                    break
            else:
                break
            offset = int(at * RATE)
            self.heard.append((place, min(n, int(self.length * RATE) - offset), offset, gain * 10 ** (rng.uniform(-3, 0) / 20)))
            self.said.append((words, [(offset / RATE + a, offset / RATE + b) for a, b in limits]))
            at = self.said[-1][1][-1][1] + 0.25 + rng.expovariate(1 / pause)
        if at < self.length - 1 and rng.random() < 0.6:
            self.end = min(self.length, self.said[-1][1][-1][1] + rng.uniform(0.05, 2.0))

    def write(self, rng, prompted):
        """Tokens; for each, the stretch of sound that it stands for."""
        whole = [(w, l) for w, l in self.said if l[-1][1] < self.length - 0.02]
        cut = self.said[len(whole):]
        self.tokens = [PREV, *earlier(rng, self.language)] if prompted else []
        self.prompt = len(self.tokens)
        task = TRANSLATE if self.translate else TRANSCRIBE
        self.tokens += [SOT, LANGUAGE_IDS[self.language], task] + [NO_TIMES] * (not self.times)
        self.head = len(self.tokens)
        self.spans = [None] * self.head
        def put(id, span):
            self.tokens.append(id)
            self.spans.append(span)
        for i, (words, limits) in enumerate(whole):
            start, end = limits[0][0], limits[-1][1]
            if self.times:
                put(stamp(start + self.first if i or self.first else min(start, 1.0)), (start - 0.1, start + 0.1))
            for word, limit in zip(words, limits):
                put(meant(word, self.language, self.translate), limit)
            if self.times:
                put(stamp(end + self.first), (end - 0.1, end + 0.1))
        for words, limits in cut:
            if self.times:
                if whole:
                    put(stamp(limits[0][0] + self.first), (limits[0][0] - 0.1, limits[0][0] + 0.1))
            else:
                for word, limit in zip(words, limits):
                    if limit[1] < self.length - 0.02:
                        put(meant(word, self.language, self.translate), limit)
        if self.times and len(self.tokens) == self.head:
            put(stamp(self.first), None)
        last = max((l[-1][1] for _, l in whole), default=None)
        put(EOT, None if last is None else (last, last + 0.3))

    def frames(self):
        """What each fiftieth of a second is: a word or nothing, and the last word before it and the next after it."""
        n = int(self.length * 50)
        out = np.zeros((3, n), np.int16)
        known = [(1 + LANGUAGES.index(self.language) * len(WORDS) + PLACE[self.language][w], round(a * 50), round(b * 50))
                 for words, limits in self.said for w, (a, b) in zip(words, limits)]
        for i, (word, a, b) in enumerate(known):
            out[0, a:b] = word
            out[1, b:known[i + 1][2] if i + 1 < len(known) else n] = word
            out[2, known[i - 1][1] if i else 0:a] = word
        return out

def earlier(rng, language):
    """Text that came before, as it is given: with the times of its segments, or without, cut at its beginning."""
    out, at, times = [], rng.uniform(0, 5), rng.random() < 0.7
    for _ in range(rng.randint(1, 36)):
        words = [token(rng.choice(BY_LANGUAGE[language])) for _ in range(rng.randint(1, 7))]
        length = len(words) * rng.uniform(0.25, 0.5)
        out += [stamp(at), *words, stamp(at + length)] if times else words
        at = (at + length + rng.uniform(0.3, 2)) % 29
    return out[-223:]

class Batch:
    def __init__(self, rng, bank, size, prompted, apart=False, length=30):
        w = [Window(rng, bank, prompted, apart, length) for _ in range(size)]
        heard = [(i, *h) for i, window in enumerate(w) for h in window.heard if h[1] > 0]
        self.heard = np.array(heard or [(0, 0, 1, 0, 0.0)], np.float64)
        self.samples, frames = length * RATE, length * 50
        self.first = np.array([round(x.first * 50) for x in w])
        self.end = np.array([int(x.end * RATE) for x in w])
        self.silent = np.array([x.silent for x in w])
        longest = -(-max(len(x.tokens) for x in w) // 16) * 16
        self.inputs = np.zeros((size, longest), np.int64)
        self.targets = np.full((size, longest), -100, np.int64)
        self.spans = np.zeros((size, longest, 2), np.int64)
        self.classes = np.stack([x.frames() for x in w])
        for i, x in enumerate(w):
            rows = [ROW[t] for t in x.tokens]
            n = len(rows)
            self.inputs[i, :n] = rows
            self.targets[i, x.head - 1:n - 1] = rows[x.head:]
            self.targets[i, x.prompt] = ROW[NO_SPEECH] if x.silent else rows[x.prompt + 1]
            for j in range(x.head, n):
                # Now and then what was written before is wrong.
                if not apart and rows[j] < ROW[EOT] and rng.random() < 0.08:
                    self.inputs[i, j] = rng.randrange(ROW[EOT])
                if x.spans[j]:
                    a = min(frames - 1, max(0, round(x.spans[j][0] * 50)))
                    self.spans[i, j - 1] = a, min(frames, max(a + 1, round(x.spans[j][1] * 50)))

def filters():
    """Slaney's bands: 80 triangles over 201 bins."""
    def mel(f): return np.where(f < 1000, f * 3 / 200, 15 + np.log(np.maximum(f, 1) / 1000) * 27 / math.log(6.4))
    def hertz(m): return np.where(m < 15, m * 200 / 3, 1000 * np.exp((m - 15) * math.log(6.4) / 27))
    edges = hertz(np.linspace(0, mel(np.float64(8000)), 82))
    f = np.linspace(0, 8000, 201)
    up, down = (f - edges[:-2, None]) / np.diff(edges)[:-1, None], (edges[2:, None] - f) / np.diff(edges)[1:, None]
    return (np.maximum(0, np.minimum(up, down)) * (2 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)

class Sound:
    """Makes a batch's features on a device."""
    def __init__(self, device):
        self.device, self.filters, self.hann = device, torch.from_numpy(filters()).to(device), torch.hann_window(400, device=device)
        self.noise = torch.stack([self.clip(i) for i in range(40)])

    def clip(self, i):
        """Noise of some colour, hum, tones, clicks; of the same power."""
        g = torch.Generator().manual_seed(i)
        n, t = SAMPLES, torch.arange(SAMPLES) / RATE
        u = lambda a, b: a + (b - a) * torch.rand(1, generator=g).item()
        f = torch.fft.rfftfreq(n, 1 / RATE)
        shape = (f + 20) ** -u(0, 1.2) * torch.exp(-0.5 * ((f - u(0, 6000)) / u(1500, 9000)) ** 2)
        x = torch.fft.irfft(torch.fft.rfft(torch.randn(n, generator=g)) * shape, n)
        x = x / x.std()
        if i % 4 == 1:
            x = x * (0.3 + (0.5 + 0.5 * torch.sin(6.2832 * u(0.2, 6) * t + u(0, 6))) ** 2)
        if i % 4 == 2:
            base = u(45, 400)
            x = 0.2 * x + sum(torch.sin(6.2832 * base * k * t + u(0, 6)) * u(0, 1) / k for k in range(1, 8))
        if i % 8 == 3:
            x = 0.1 * x + torch.sin(6.2832 * (u(100, 3000) * t + u(-40, 40) * t * t))
        if i % 8 == 7:
            hits = (torch.rand(n, generator=g) < 2e-5 * u(1, 10)).float()
            decay = torch.exp(-torch.arange(800) / u(20, 300)) * torch.randn(800, generator=g)
            x = 0.05 * x + 10 * torch.fft.irfft(torch.fft.rfft(hits, 2 * n) * torch.fft.rfft(decay, 2 * n), 2 * n)[:n]
        return (x / x.std()).to(self.device)

    def waves(self, speech, b):
        size, dev, samples = len(b.end), self.device, b.samples
        win, place, n, off, gain = (torch.from_numpy(c).to(dev) for c in b.heard.T)
        n = n.long()
        seg = torch.repeat_interleave(torch.arange(len(n), device=dev), n)
        local = torch.arange(len(seg), device=dev) - (n.cumsum(0) - n)[seg]
        out = torch.zeros(size * samples, device=dev)
        out.index_add_(0, (win.long() * samples + off.long())[seg] + local, speech[place.long()[seg] + local].float() * (gain.float() / 32768)[seg])
        out = out.view(size, samples)
        level = torch.empty(size, device=dev).uniform_(-80, -38)
        level = torch.where(torch.from_numpy(b.silent).to(dev), torch.empty(size, device=dev).uniform_(-80, -12), level)
        loud = out.abs().amax(1).clamp(min=1e-9)
        # No more noise than twenty decibels below the loudest.
        level = torch.where(torch.from_numpy(b.silent).to(dev), 10 ** (level / 20), torch.minimum(10 ** (level / 20), loud * 0.1))
        level = level * (torch.rand(size, device=dev) > 0.25)
        which = torch.randint(len(self.noise), (size,), device=dev)
        shift = torch.randint(SAMPLES, (size, 1), device=dev)
        at = torch.arange(samples, device=dev)
        out = out + self.noise[which].gather(1, (at + shift) % SAMPLES) * level[:, None]
        out = out * (at < torch.from_numpy(b.end).to(dev)[:, None])
        # Sixteen bits.
        return (out.clamp(-1, 1) * 32767).round() / 32768

    def features(self, wave, vary=True):
        f = torch.stft(wave, 400, 160, window=self.hann, return_complex=True)[..., :-1]
        mel = self.filters @ (f.real ** 2 + f.imag ** 2)
        size = len(mel)
        if vary:
            knots = torch.randn(size, 1, 6, device=self.device) * 3 * (torch.rand(size, 1, 1, device=self.device) < 0.6)
            mel = mel * 10 ** (torch.nn.functional.interpolate(knots, 80, mode="linear", align_corners=True).transpose(1, 2) / 10)
        x = mel.clamp(min=1e-10).log10()
        top = x.amax((1, 2), keepdim=True)
        if vary:
            top = top + torch.rand(size, 1, 1, device=self.device) * (torch.rand(size, 1, 1, device=self.device) < 0.2)
        return (torch.maximum(x, top - 8) + 4) / 4
