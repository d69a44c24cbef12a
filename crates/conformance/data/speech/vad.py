"""What Silero's net says, and where speech is by its rules.

  vad.py goldens WHEEL DIR             writes silero.f32 (a net with made-up weights) and silero.txt (rules) for crates/audio/tests
  vad.py net FILE                      writes that net as safetensors
  vad.py real WHEEL NET WAV FILE       writes what is expected of a net for a recording at 16 kHz (`--test silero`)

WHEEL is the unpacked wheel of the package `silero-vad`, NET its safetensors or a file of whisper.cpp. The net is written here in
doubles, and held against the package's ONNX file in onnxruntime with the same weights put into it, since the package's files are
not all of one version. Its rules are run as they are, without torch.
"""
import json, struct, sys, types, wave
import numpy as np
from signals import noise, signal

# Name, shape, and the power of two that scales a made-up weight.
TENSORS = [("stft_conv.weight", (258, 1, 256), -2), ("conv1.weight", (128, 129, 3), -3), ("conv1.bias", (128,), -3),
           ("conv2.weight", (64, 128, 3), -3), ("conv2.bias", (64,), -3), ("conv3.weight", (64, 64, 3), -3), ("conv3.bias", (64,), -3),
           ("conv4.weight", (128, 64, 3), -2), ("conv4.bias", (128,), -3), ("lstm_cell.weight_ih", (512, 128), -2),
           ("lstm_cell.weight_hh", (512, 128), -2), ("lstm_cell.bias_ih", (512,), -2), ("lstm_cell.bias_hh", (512,), -2),
           ("final_conv.weight", (1, 128, 1), 0), ("final_conv.bias", (1,), -1)]
CASES = [("noise", 24000), ("sweep", 40123), ("bursts", 36007)]

def made_up():
    return {name: (noise(int(np.prod(shape)), 101 + i, 32768) / 32768.0 * 2.0**scale).reshape(shape)
            for i, (name, shape, scale) in enumerate(TENSORS)}

def stored(path):
    raw = open(path, "rb").read()
    found = whisper(raw) if raw[:4] == b"lmgg" else safetensors(raw)
    return {name: found[name].astype(np.float64).reshape(shape) for name, shape, _ in TENSORS}

def safetensors(raw):
    size, = struct.unpack("<Q", raw[:8])
    places = json.loads(raw[8:8 + size])
    at = lambda name: slice(*(8 + size + offset for offset in places[name]["data_offsets"]))
    return {name: np.frombuffer(raw[at(name)], "<f4") for name, _, _ in TENSORS}

def whisper(raw):
    """Tensors behind 4 + 4 + 10 + 5 * 4 + 4 + 12 * 4 + 4 * 4 bytes: dimensions, length of the name, type; sizes, name, numbers."""
    at, found = 106, []
    while at < len(raw):
        dims, length, half = struct.unpack_from("<3i", raw, at)
        count = int(np.prod(struct.unpack_from(f"<{dims}i", raw, at + 12))) if dims else 1
        at += 12 + 4 * dims + length
        found.append(np.frombuffer(raw, "<f2" if half else "<f4", count, at))
        at += count * (2 if half else 4)
    return dict(zip([name for name, _, _ in TENSORS[1:] + TENSORS[:1]], found))

def sigmoid(x): return 1 / (1 + np.exp(-x))

class Net:
    def __init__(self, weights):
        self.w, self.context, self.h, self.c = weights, np.zeros(64), np.zeros(128), np.zeros(128)

    def conv(self, x, name, stride):
        w, b = self.w[name + ".weight"], self.w[name + ".bias"]
        x = np.pad(x, ((0, 0), (1, 1)))
        steps = range(0, x.shape[1] - 2, stride)
        return np.maximum(np.stack([np.einsum("oik,ik->o", w, x[:, s:s + 3]) + b for s in steps], 1), 0)

    def step(self, samples):
        x = np.concatenate([self.context, samples])
        self.context = samples[-64:]
        x = np.pad(x, (0, 64), "reflect")
        spectrum = np.stack([self.w["stft_conv.weight"][:, 0] @ x[s:s + 256] for s in range(0, 385, 128)], 1)
        x = np.sqrt(spectrum[:129] ** 2 + spectrum[129:] ** 2)
        for name, stride in [("conv1", 1), ("conv2", 2), ("conv3", 2), ("conv4", 1)]:
            x = self.conv(x, name, stride)
        w = lambda name: self.w["lstm_cell." + name]
        gates = w("weight_ih") @ x[:, 0] + w("bias_ih") + w("weight_hh") @ self.h + w("bias_hh")
        i, f, g, o = gates.reshape(4, 128)
        self.c = sigmoid(f) * self.c + sigmoid(i) * np.tanh(g)
        self.h = sigmoid(o) * np.tanh(self.c)
        return sigmoid(self.w["final_conv.weight"][0, :, 0] @ np.maximum(self.h, 0) + self.w["final_conv.bias"][0])

def steps(samples):
    samples = np.pad(samples, (0, -len(samples) % 512))
    return samples.reshape(-1, 512)

def ours(weights, samples):
    net = Net(weights)
    return np.array([net.step(s) for s in steps(samples.astype(np.float64))])

def theirs(wheel, weights, samples):
    import onnx, onnxruntime
    model = onnx.load(wheel + "/silero_vad/data/silero_vad_16k_op15.onnx")
    for tensor, (name, shape, _) in zip(model.graph.initializer, TENSORS):
        assert tuple(tensor.dims) == shape, (tensor.name, name)
        tensor.CopyFrom(onnx.numpy_helper.from_array(weights[name].astype(np.float32), tensor.name))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    state, context, out = np.zeros((2, 1, 128), np.float32), np.zeros((1, 64), np.float32), []
    for s in steps(samples.astype(np.float32)):
        x = np.concatenate([context, s[None]], 1)
        context = x[:, -64:]
        p, state = session.run(None, {"input": x, "state": state, "sr": np.array(16000, np.int64)})
        out.append(p[0, 0])
    return np.array(out)

def rules(wheel):
    """The package's function, of which torch is no part."""
    torch = types.ModuleType("torch")
    torch.no_grad, torch.Tensor, torch.device = lambda: lambda f: f, object, str
    sys.modules.setdefault("torch", torch)
    import importlib.util
    spec = importlib.util.spec_from_file_location("utils_vad", wheel + "/silero_vad/utils_vad.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_speech_timestamps_from_probs

def said(found): return " ".join(f"{s['start']}-{s['end']}" for s in found)

def walk(n, seed, step):
    """Probabilities that wander, in 1/1024, so that they are the same in all precisions."""
    at, out = 512, []
    for d in noise(n, seed, step):
        at = min(max(at + int(d), 0), 1023)
        out.append(at / 1024)
    return out

def cases():
    """Threshold, least speech, least silence, most speech, padding, the lower threshold, and samples at the end left out."""
    for seed in range(1, 101):
        yield (seed, [60, 150, 400, 900][seed % 4], [0.5, 0.35, 0.6, 0.1][seed % 4 if seed % 7 else 3], [250, 0, 700, 96, 256, 32][seed % 6], [100, 400, 300, 31, 0, 400][seed // 2 % 6],
               [float("inf"), 3.0, 1.5, 5.0, 2.0, 0.7][seed // 3 % 6], [30, 0, 250, 33][seed // 3 % 4], None if seed % 7 else 0.25, seed * 37 % 512)

def lines(find):
    for seed, step, threshold, speech, silence, most, pad, lower, less in cases():
        p = walk(400, seed, step)
        found = find(p, threshold=threshold, min_speech_duration_ms=speech, min_silence_duration_ms=silence, max_speech_duration_s=most,
                     speech_pad_ms=pad, neg_threshold=lower, audio_length_samples=400 * 512 - less)
        yield f"{seed} {step} {threshold} {speech} {silence} {most} {pad} {lower or '-'} {less} | {said(found)}"

def write(path):
    places, at = {}, 0
    for name, shape, _ in TENSORS:
        size = int(np.prod(shape)) * 4
        places[name] = dict(dtype="F32", shape=list(shape), data_offsets=[at, at + size])
        at += size
    head = json.dumps(places).encode()
    data = b"".join(w.astype("<f4").tobytes() for w in made_up().values())
    open(path, "wb").write(struct.pack("<Q", len(head)) + head + data)

def goldens(wheel, out):
    weights, worst, all = made_up(), 0, []
    for kind, n in CASES:
        doubles = ours(weights, signal(kind, n))
        worst = max(worst, np.abs(doubles - theirs(wheel, weights, signal(kind, n))).max())
        all.append(doubles)
    all = np.concatenate(all)
    print(f"{len(all)} from {all.min():.3f} to {all.max():.3f}, onnxruntime's differ by {worst:.1e}")
    all.astype("<f4").tofile(out + "/silero.f32")
    open(out + "/silero.txt", "w").write("\n".join(lines(rules(wheel))) + "\n")

def real(wheel, net, path, out):
    sound = wave.open(path)
    assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (16000, 1, 2)
    samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2") / 32768.0
    weights = stored(net)
    onnx = theirs(wheel, weights, samples)
    print(f"doubles beside onnxruntime: {np.abs(onnx - ours(weights, samples)).max():.1e}")
    find = rules(wheel)
    tell = lambda **more: said(find([float(p) for p in onnx], audio_length_samples=len(samples), **more)) + "\n"
    with open(out, "w") as file:
        file.write(" ".join(f"{p:.7f}" for p in onnx) + "\n" + tell() + tell(max_speech_duration_s=4.0)
                   + tell(threshold=0.3, min_silence_duration_ms=500, speech_pad_ms=200))

{"goldens": goldens, "net": write, "real": real}[sys.argv[1]](*sys.argv[2:])
