"""Trains the small model of speech: all processors make speech, then the device learns by the clock.

Usage: train.py FOLDER [--seconds N] [--speech N] [--batch N] [--workers N]; writes FOLDER/model.pt and FOLDER/log.txt.
"""
import argparse, glob, json, math, multiprocessing, os, random, shutil, tempfile, time
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
import voices
from lexicon import LANGUAGES
from net import Net, Optimiser
from windows import Bank, Batch, CLASSES, FIRST_TIME, Sound, USED

def losses(net, frames, mel, b, device):
    inputs, targets, spans, classes = (torch.from_numpy(a).to(device, non_blocking=True) for a in (b.inputs, b.targets, b.spans, b.classes))
    first = torch.from_numpy(b.first).to(device)
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        encoded = net.encoder(mel, first)
        logits, seen = net.decoder(inputs, encoded)
        guess = frames(encoded).unflatten(-1, (3, -1))
    logp = logits.float().log_softmax(-1)
    live = targets >= 0
    at = targets.clamp(min=0)
    pick = lambda rows: logp.gather(-1, rows[..., None])[..., 0]
    # A fiftieth of a second more or less is nearly right.
    near = pick(at) * 0.6 + 0.2 * (pick((at - 1).clamp(min=FIRST_TIME)) + pick((at + 1).clamp(max=FIRST_TIME + 1500)))
    text = -torch.where(at >= FIRST_TIME, near, pick(at))[live].mean()
    # Heads of the upper half look where the word is.
    place = torch.arange(encoded.shape[1], device=device)
    inside = (place >= spans[..., :1]) & (place < spans[..., 1:])
    heard = inside.any(-1)
    share = (inside / inside.sum(-1, keepdim=True).clamp(min=1)).to(torch.bfloat16 if device == "cuda" else torch.float32)
    look = sum(-torch.einsum("bhlf,blf->bl", w.to(share.dtype).clamp(min=-30), share).float()[heard].mean() for w in seen) / (len(seen) * seen[0].shape[1])
    sound = sum(F.cross_entropy(guess[:, :, i].float().flatten(0, 1), classes[:, i].flatten().long()) for i in range(3))
    right = (logp.argmax(-1) == targets)
    words = live & (at < FIRST_TIME)
    return text, look, sound, right[words].float().mean(), (right & live & ~words).sum() / (live & ~words).sum().clamp(min=1)

def speech(workers, seconds, folder):
    """All that is said in so many seconds by the clock."""
    takes = tempfile.mkdtemp(dir=folder)
    stop = time.time() + seconds
    speakers = [multiprocessing.Process(target=voices.write, args=(takes, i, stop)) for i in range(workers)]
    for p in speakers: p.start()
    bank = Bank()
    while True:
        over = not any(p.is_alive() for p in speakers)
        for about in sorted(glob.glob(f"{takes}/*.json")):
            with open(about) as f: bank.add(np.load(about[:-5] + ".npy"), json.load(f))
            os.remove(about); os.remove(about[:-5] + ".npy")
        if over: break
        time.sleep(0.1)
    shutil.rmtree(takes)
    return bank

def fill(number, bank, size, ready, whole):
    """Batches without end: parts of ten seconds, then mostly whole windows."""
    rng, i = random.Random(number), number
    while True:
        prompted = i % 4 == 3
        length = 30 if whole.is_set() and i % 8 else 10
        ready.put(Batch(rng, bank, size * 2 if length == 10 else size // 2 if prompted else size, prompted, False, length))
        i += 1

def main():
    a = argparse.ArgumentParser()
    a.add_argument("folder")
    a.add_argument("--seconds", type=float, default=300, help="of training")
    a.add_argument("--speech", type=float, default=30, help="seconds in which speech is made")
    a.add_argument("--batch", type=int, default=64, help="windows of a batch; twice as many where they are parts")
    a.add_argument("--parts", type=float, default=0.45, help="share of the time for parts of windows")
    a.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    a.add_argument("--rate", type=float, default=2e-3)
    a = a.parse_args()
    os.makedirs(a.folder, exist_ok=True)
    start = time.time()
    log = open(f"{a.folder}/log.txt", "w")
    def say(*words):
        print(*words, flush=True); print(*words, file=log, flush=True)
    bank = speech(a.workers, a.speech, "/dev/shm" if os.path.isdir("/dev/shm") else None)
    people = {f"{l}{', apart' * x}": len(p) for (l, x), p in bank.people.items()}
    say(f"{bank.samples / 16000:.0f} s of speech after {time.time() - start:.0f} s; speakers: {people}")
    ready, whole = multiprocessing.Queue(8), multiprocessing.Event()
    for i in range(max(1, a.workers // 2)):
        multiprocessing.Process(target=fill, args=(i, bank, a.batch, ready, whole), daemon=True).start()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1); torch.backends.cuda.matmul.allow_tf32 = True
    wave, sound = bank.on(device), Sound(device)
    net = Net(len(USED)).to(device)
    frames = nn.Linear(net.dims["n_audio_state"], 3 * CLASSES).to(device)
    say(f"{device}, torch {torch.__version__}, batches of {a.batch}, {sum(p.numel() for p in net.parameters())} parameters, {len(USED)} tokens in use; ready after {time.time() - start:.0f} s")
    opt = Optimiser(net, frames.parameters(), a.rate)
    def save():
        state = {n: p.detach().cpu() for n, p in net.state_dict().items()}
        torch.save(dict(dims=net.dims, used=USED, state=state), f"{a.folder}/model.part")
        os.rename(f"{a.folder}/model.part", f"{a.folder}/model.pt")
    begun = said = saved = time.time()
    step, windows, sums = 0, 0, []
    while (now := time.time()) < begun + a.seconds:
        gone = (now - begun) / a.seconds
        if gone > a.parts: whole.set()
        b = ready.get()
        with torch.no_grad(): mel = sound.features(sound.waves(wave, b))
        text, look, heard, right, times = losses(net, frames, mel, b, device)
        aid = 1.0 if gone < 0.6 else 0.3
        (text + aid * (0.3 * look + heard)).backward()
        # Down by a cosine.
        opt.step(min(1, (step + 1) / 150) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * gone))))
        step += 1; windows += len(b.end)
        sums.append(torch.stack([text.detach(), look.detach(), heard.detach(), right, times]))
        if now - said > max(3, a.seconds / 60):
            said, m, sums = now, torch.stack(sums).mean(0).tolist(), []
            say(f"{now - begun:4.0f} s, step {step:5}, {windows:7} windows: text {m[0]:.3f}, attention {m[1]:.2f}, frames {m[2]:.3f}, "
                f"words {100 * m[3]:.1f} %, times {100 * m[4]:.1f} % of tokens right")
        if now - saved > max(20, a.seconds / 8): saved = now; save()
    save()
    net.eval()
    for name, apart in (("voices of training", False), ("voices and pairs apart", True)):
        if not all(bank.people[l, apart] for l in LANGUAGES): continue
        rng, parts = random.Random(99), []
        for _ in range(8):
            b = Batch(rng, bank, a.batch, False, apart)
            with torch.no_grad():
                parts.append(torch.stack(losses(net, frames, sound.features(sound.waves(wave, b), False), b, device)))
        m = torch.stack(parts).mean(0).tolist()
        say(f"{name}: text {m[0]:.3f}, words {100 * m[3]:.2f} %, times {100 * m[4]:.1f} % of tokens right")
    say(f"{step} steps, {windows} windows, {time.time() - start:.0f} s in all; {max_memory(device):.1f} GB of the device's memory")
    os._exit(0)

def max_memory(device):
    return torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else 0.0

if __name__ == "__main__":
    main()
