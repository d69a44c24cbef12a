"""Speech by espeak-ng, through its library: samples at 16 kHz and where each word begins and ends."""
import ctypes, ctypes.util, os
import numpy as np

RATE = 16000

class _Event(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("uid", ctypes.c_uint), ("text", ctypes.c_int), ("length", ctypes.c_int),
                ("ms", ctypes.c_int), ("sample", ctypes.c_int), ("user", ctypes.c_void_p), ("id", ctypes.c_char * 8)]

_Heard = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))

class Speaker:
    """One in a process. ESPEAK_LIBRARY and ESPEAK_DATA name places other than the system's."""

    def __init__(self):
        self.lib = ctypes.CDLL(os.environ.get("ESPEAK_LIBRARY") or ctypes.util.find_library("espeak-ng") or "libespeak-ng.so.1")
        data = os.environ.get("ESPEAK_DATA")
        self.rate = self.lib.espeak_Initialize(2, 0, data.encode() if data else None, 0x8000)
        assert self.rate == 22050, self.rate
        self.parts, self.starts = [], []
        self.heard = _Heard(self._take)
        self.lib.espeak_SetSynthCallback(self.heard)
        self.voice = None

    def _take(self, wave, n, events):
        if wave and n:
            self.parts.append(np.ctypeslib.as_array(wave, (n,)).copy())
        i = 0
        while events[i].type:
            if events[i].type == 1:
                self.starts.append(events[i].ms / 1000)
            i += 1
        return 0

    def say(self, voice, words, speed=160, pitch=50, span=50, gap=0):
        """Samples as f32, and (start, end) of each word in seconds; None where espeak's words are not ours."""
        if voice != self.voice:
            if self.lib.espeak_SetVoiceByName(voice.encode()):
                raise ValueError(f"espeak-ng has no voice {voice}")
            self.voice = voice
        for key, value in ((1, speed), (3, pitch), (4, span), (7, gap)):
            self.lib.espeak_SetParameter(key, value, 0)
        self.parts, self.starts = [], []
        text = " ".join(words).encode() + b"\0"
        self.lib.espeak_Synth(text, len(text), 0, 1, 0, 1, None, None)
        if not self.parts:
            return None
        wave = resample(np.concatenate(self.parts).astype(np.float32) / 32768)
        # There may be one more, of no word, at the end.
        self.starts = [s for s in self.starts if s < len(wave) / RATE - 0.1] if len(self.starts) > len(words) else self.starts
        if len(self.starts) != len(words):
            return None
        loud = np.flatnonzero(np.abs(wave) > 0.01 * np.abs(wave).max())
        if len(loud) < RATE // 20:
            return None
        first, last = loud[0] / RATE, float(loud[-1] + 1) / RATE
        starts = [max(float(first), self.starts[0]), *self.starts[1:]]
        limits = list(zip(starts, [*starts[1:], last]))
        if any(b - a < 0.04 for a, b in limits):
            return None
        # A tenth of a second around it is enough.
        cut = max(0, int(loud[0]) - RATE // 50)
        wave = wave[cut:loud[-1] + RATE // 50]
        return wave, [(a - cut / RATE, b - cut / RATE) for a, b in limits]

def resample(x):
    """From 22050 to 16000, by Fourier transforms."""
    n = -(-len(x) // 2205) * 2205
    f = np.fft.rfft(x, n)
    m = n * 320 // 441
    return np.fft.irfft(f[:m // 2 + 1], m).astype(np.float32) * (m / n)
