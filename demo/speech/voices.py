"""Takes by speakers, written by many processes as files: what training and tests hear."""
import json, os, random, time
import numpy as np
from lexicon import APART, APART_PAIRS, BY_LANGUAGE, LANGUAGES, VARIANTS, VOICES
from speak import RATE, Speaker

class Person:
    """A voice with its own pace and pitch, at times in a room."""
    def __init__(self, rng, language, variants):
        self.language = language
        self.voice = f"{rng.choice(VOICES[language])}+{rng.choice(variants)}"
        self.speed, self.pitch, self.span = rng.randint(110, 230), rng.randint(10, 90), rng.randint(20, 80)
        self.gap = rng.choice([0, 0, 0, 1, 2, 4])
        self.room = None
        if rng.random() < 0.25:
            n = int(RATE * rng.uniform(0.1, 0.4))
            noise = np.random.default_rng(rng.getrandbits(32)).standard_normal(n).astype(np.float32)
            self.room = noise * np.exp(-6.0 * np.arange(n, dtype=np.float32) / n) * rng.uniform(0.02, 0.08)

    def say(self, speaker, rng, words):
        jitter = rng.uniform(0.9, 1.1)
        said = speaker.say(self.voice, words, int(self.speed * jitter), min(99, int(self.pitch * rng.uniform(0.9, 1.1))), self.span, self.gap)
        if said is None:
            return None
        wave, limits = said
        if self.room is not None:
            n = 1 << (len(wave) + len(self.room)).bit_length()
            tail = np.fft.irfft(np.fft.rfft(wave, n) * np.fft.rfft(self.room, n), n)[:len(wave) + len(self.room)]
            tail[:len(wave)] += wave
            wave = tail.astype(np.float32)
        return wave / max(1e-3, float(np.abs(wave).max())), limits

def sentence(rng, language, apart, most=7):
    """Words in a row: no pair of them is kept apart for tests, or each is."""
    words, pairs = BY_LANGUAGE[language], APART_PAIRS[language]
    said = [rng.choice(words)]
    for _ in range(rng.randint(1 if apart else 0, most - 1)):
        after = [w for w in words if ((said[-1], w) in pairs) == apart]
        if not after:
            break
        said.append(rng.choice(after))
    return said

def write(folder, number, stop, apart_every=25):
    """Files of one person's takes until the time is up; every so many one is of the voices for tests."""
    speaker, k = Speaker(), 0
    while time.time() < stop:
        rng = random.Random(f"{number} {k}")
        apart = (k + number) % apart_every == apart_every - 1
        person = Person(rng, rng.choice(LANGUAGES), APART if apart else VARIANTS)
        waves, takes = [], []
        for _ in range(40):
            words = sentence(rng, person.language, apart)
            said = person.say(speaker, rng, words)
            if said is not None:
                waves.append(np.int16(said[0] * 32767))
                takes.append(dict(words=words, limits=said[1], n=len(said[0])))
        if takes:
            name = f"{folder}/{number}-{k}"
            np.save(f"{name}.npy", np.concatenate(waves))
            with open(f"{name}.part", "w") as f:
                json.dump(dict(language=person.language, voice=person.voice, apart=apart, takes=takes), f)
            os.rename(f"{name}.part", f"{name}.json")
        k += 1
