"""Measures the small model: makes recordings of voices and pairs of words that were never trained, and compares what is heard.

Usage: check.py FILE.bin --tokkata PROGRAM [--openai] [--count N] [--folder F]; prints a table.
"""
import argparse, json, os, random, struct, subprocess, tempfile
import numpy as np
from lexicon import APART, LANGUAGES, VARIANTS
from speak import RATE, Speaker
from voices import Person, sentence

def wav(path, wave):
    raw = (np.clip(wave, -1, 1) * 32767).astype("<i2").tobytes()
    with open(path, "wb") as f:
        f.write(b"RIFF" + struct.pack("<I", 36 + len(raw)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, RATE, RATE * 2, 2, 16) + b"data" + struct.pack("<I", len(raw)) + raw)

def recordings(folder, count, apart, seed):
    """Of one person each: a few sentences with pauses, some with noise, up to 50 seconds long."""
    speaker, out = Speaker(), []
    for i in range(count):
        rng = random.Random(f"{seed} {i}")
        person = Person(rng, LANGUAGES[i % 3], APART if apart else VARIANTS)
        parts, words, at = [], [], 0.0
        def pause(seconds):
            nonlocal at
            parts.append(np.zeros(int(seconds * RATE), np.float32)); at += int(seconds * RATE) / RATE
        pause(rng.uniform(0.1, 0.9))
        for _ in range(rng.choice([1, 2, 3, 5, 12])):
            said = None
            while said is None:
                text = sentence(rng, person.language, apart)
                said = person.say(speaker, rng, text)
            words += [(w, at + a, at + b) for w, (a, b) in zip(text, said[1])]
            parts.append(said[0]); at += len(said[0]) / RATE
            pause(rng.uniform(0.3, 1.5))
        wave = np.concatenate(parts) * 10 ** (rng.uniform(-20, -1) / 20)
        if rng.random() < 0.5:
            wave = wave + np.random.default_rng(i).standard_normal(len(wave)) * np.abs(wave).max() * 10 ** (rng.uniform(-60, -30) / 20)
        path = f"{folder}/{seed}-{i}.wav"
        wav(path, wave)
        out.append(dict(path=path, language=person.language, voice=person.voice, words=words))
    return out

def quiet(folder):
    rng, n, out = np.random.default_rng(5), 8 * RATE, []
    t = np.arange(n) / RATE
    for name, wave in (("zeros", t * 0), ("faint noise", rng.standard_normal(n) * 1e-4), ("noise", rng.standard_normal(n) * 0.05),
                       ("hum", 0.1 * np.sin(314.16 * t) + 0.03 * np.sin(942.5 * t)), ("tone", 0.2 * np.sin(2764.6 * t))):
        path = f"{folder}/quiet-{len(out)}.wav"
        wav(path, wave)
        out.append(dict(path=path, name=name))
    return out

def distance(a, b):
    """Insertions, deletions and replacements; with the pairs that agree."""
    n, m = len(a), len(b)
    d = np.zeros((n + 1, m + 1), int)
    d[:, 0], d[0] = range(n + 1), range(m + 1)
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            d[i, j] = min(d[i - 1, j] + 1, d[i, j - 1] + 1, d[i - 1, j - 1] + (a[i - 1] != b[j - 1]))
    pairs, i, j = [], n, m
    while i and j:
        if a[i - 1] == b[j - 1] and d[i, j] == d[i - 1, j - 1]:
            pairs.append((i - 1, j - 1)); i, j = i - 1, j - 1
        elif d[i, j] == d[i - 1, j - 1] + 1: i, j = i - 1, j - 1
        elif d[i, j] == d[i - 1, j] + 1: i -= 1
        else: j -= 1
    return d[n, m], pairs

def tokkata(program, model, folder, all, *more):
    """(language, [(word, start)]) by recording."""
    for old in os.listdir(folder):
        if old.endswith(".json"): os.remove(f"{folder}/{old}")
    command = [program, "transcribe", "-m", model, "-ojf", "-np", *more, *[r["path"] for r in all]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    out = []
    for r in all:
        with open(next(p for p in (r["path"] + ".json", r["path"][:-4] + ".json") if os.path.exists(p))) as f: heard = json.load(f)
        out.append(heard)
    return out

def openai(model, all, language, words):
    import torch, whisper
    torch.set_grad_enabled(False)
    out = []
    for r in all:
        raw = np.frombuffer(open(r["path"], "rb").read()[44:], "<i2").astype(np.float32) / 32768
        heard = whisper.transcribe(model, torch.from_numpy(raw), language=r["language"] if language else None, fp16=False, beam_size=5, temperature=0.0, word_timestamps=words)
        out.append(heard)
    return out

def main():
    a = argparse.ArgumentParser()
    a.add_argument("model"); a.add_argument("--tokkata"); a.add_argument("--openai", action="store_true")
    a.add_argument("--count", type=int, default=60); a.add_argument("--folder"); a.add_argument("--words", action="store_true")
    a = a.parse_args()
    folder = a.folder or tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    sets = {"voices and pairs of training": recordings(folder, a.count, False, "known"), "voices and pairs never trained": recordings(folder, a.count, True, "apart")}
    print("| what | by | word errors | of words | | word starts, median | languages found |\n|---|---|---|---|---|---|---|")
    for name, all in sets.items():
        results = {}
        if a.tokkata: results["tokkata"] = [ours(h) for h in tokkata(a.tokkata, a.model, folder, all, "--word-timestamps", "-l", "auto", "-nf")]
        if a.openai:
            import export
            results["openai's code"] = [theirs(h) for h in openai(export.openai(a.model), all, False, True)]
        for by, heard in results.items():
            wrong, total, late, right = 0, 0, [], 0
            for r, (language, words) in zip(all, heard):
                e, pairs = distance([w for w, _, _ in r["words"]], [w for w, _ in words])
                wrong += e; total += len(r["words"]); right += language == r["language"]
                late += [abs(r["words"][i][1] - words[j][1]) for i, j in pairs]
                if a.words and e: print(" ".join(w for w, _, _ in r["words"]), "->", " ".join(w for w, _ in words), r["voice"])
            print(f"| {name} | {by} | {wrong} | {total} | {100 * wrong / total:.2f} % | {1000 * np.median(late):.0f} ms | {right} of {len(all)} |", flush=True)
        if len(results) == 2:
            same = sum([w for w, _ in x[1]] == [w for w, _ in y[1]] for x, y in zip(*results.values()))
            print(f"| {name} | both | same text in {same} of {len(all)} | | | | |")
    if a.tokkata:
        for r, h in zip(silent := quiet(folder), tokkata(a.tokkata, a.model, folder, silent, "-l", "en")):
            print(f"| {r['name']}, no speech | tokkata | {len(ours(h)[1])} | 0 | | | |")

def ours(h):
    words = [(w["word"].strip(), w["start"]) for s in h["transcription"] for w in s.get("words", [])]
    return h["result"]["language"], words

def theirs(h):
    return h["language"], [(w["word"].strip(), w["start"]) for s in h["segments"] for w in s["words"]]

if __name__ == "__main__":
    main()
