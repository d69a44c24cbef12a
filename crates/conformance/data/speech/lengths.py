"""Lengths that zlib makes of ten thousand texts. Usage: lengths.py FILE"""
import sys, zlib
import numpy as np
from fixture import M
WORDS = "the of and a to in is you that it he was for on are as with his they I at be this have from or one had by word but not what all were we when your can said there use an each which she do how their if will up other about out many then them these so some her would make like him into time has look two more write go see number no way could people my than first water been call who oil its now find long down day did get come made may part".split()
def text(case):
    x = case + 1
    def word():
        nonlocal x
        x = (x * 6364136223846793005 + 1442695040888963407) & M
        return x >> 33
    n, few, out = word() % 120, 1 + word() % 98, []
    for _ in range(n):
        k = word() % 12
        w = WORDS[word() % few]
        if k == 0: w = w + ","
        if k == 1: w = chr(0xe0 + word() % 30) + w
        if k == 2: w = str(word() % 10000)
        if k == 3 and out: w = " ".join(out[-(1 + word() % 9):])
        out.append(w)
    return " ".join(out)
if __name__ == "__main__":
    np.array([len(zlib.compress(text(i).encode())) for i in range(10000)], dtype="<u2").tofile(sys.argv[1])
