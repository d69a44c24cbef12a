"""Writes hello.wav: a sentence of three seconds for tests, by a voice that was trained. Usage: hello.py FILE."""
import sys
import numpy as np
from check import wav
from speak import RATE, Speaker

wave, limits = Speaker().say("en-us+m3", "hello open door six seven".split(), 130)
wav(sys.argv[1], np.concatenate([np.zeros(RATE // 4, np.float32), wave * 0.5, np.zeros(RATE // 4, np.float32)]))
print([(round(a + 0.25, 2), round(b + 0.25, 2)) for a, b in limits])
