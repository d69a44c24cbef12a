"""Compiles the kernels with NVRTC; run by `cargo xtask cuda`.

usage: compile.py LIBNVRTC KERNELS TABLES OUT [-v] [--disturbed]

LIBNVRTC is the library of CUDA 12 (the package nvidia-cuda-nvrtc-cu12 has it), TABLES the folder with the quant crate's
tables. OUT is the file of images: a magic word, the digest of the sources, and a compressed stream of names, lengths
and images. No header of the toolkit is needed. Disturbed images are for 9.0 alone; their warps sleep now and then.
"""

import ctypes
import hashlib
import pathlib
import re
import struct
import sys
import zlib
from concurrent.futures import ProcessPoolExecutor

ARCHITECTURES = ["sm_90a", "sm_80", "compute_80", "compute_75"]
KERNELS = ["rows", "adapt", "matmul", "matvec", "vec", "tape", "tape90", "tape_tiles", "gemm", "gemm16", "gemm90", "replies", "replies16", "few", "crowd", "attention", "flash", "prompts", "whole", "recurrent", "experts", "sample", "step"]


def tables(quant):
    """Lattice points and levels as CUDA arrays."""
    out = ["#pragma once\n"]
    text = (quant / "grids.rs").read_text() + (quant / "tables.rs").read_text()
    for name, kind, body in re.findall(r"const (\w+): \[(u16|i8); \d+\] = \[(.*?)\];", text, re.S):
        cuda = "unsigned short" if kind == "u16" else "signed char"
        prefix = "GRID_" if kind == "u16" else ""
        out.append(f"static __device__ const {cuda} {prefix}{name}[] = {{{body}}};\n")
    return "".join(out)


class Nvrtc:
    def __init__(self, path):
        folder = pathlib.Path(path).resolve().parent
        for builtins in sorted(folder.glob("libnvrtc-builtins.so*")):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self.lib = ctypes.CDLL(str(path))

    def check(self, code, program=None):
        if code == 0:
            return
        log = self.text("ProgramLog", program) if program else ""
        sys.exit(f"nvrtc: error {code}\n{log}")

    def text(self, what, program):
        return self.bytes(what, program).rstrip(b"\0").decode()

    def bytes(self, what, program):
        size = ctypes.c_size_t()
        getattr(self.lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self.lib, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw

    def compile(self, name, source, headers, arch, verbose):
        program = ctypes.c_void_p()
        names = (ctypes.c_char_p * len(headers))(*[n.encode() for n in headers])
        texts = (ctypes.c_char_p * len(headers))(*[t.encode() for t in headers.values()])
        self.check(self.lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), len(headers), texts, names))
        options = [f"--gpu-architecture={arch}", "--std=c++17", "--extra-device-vectorization"]
        if "--disturbed" in sys.argv:
            options.append("--define-macro=DISTURBED")
        if verbose:
            options.append("--ptxas-options=-v")
        options = [o.encode() for o in options]
        self.check(self.lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)), program)
        log = self.text("ProgramLog", program)
        if log:
            print(log, file=sys.stderr)
        return self.bytes("CUBIN" if arch.startswith("sm_") else "PTX", program)


def packed(images):
    """Names with lengths, then the images, compressed."""
    table = struct.pack("<I", len(images))
    for name, image in images:
        table += struct.pack("<II", len(image), len(name)) + name.encode()
    return zlib.compress(table + b"".join(image for _, image in images), 9)


def digest(kernels):
    """What the images are made from, in the order of names."""
    total = hashlib.sha256()
    for path in sorted(p for p in kernels.iterdir() if p.suffix in (".cu", ".cuh", ".py")):
        total.update(path.name.encode() + path.read_bytes())
    return total.digest()


def arguments():
    return [pathlib.Path(a) for a in sys.argv[1:] if not a.startswith("-")]


def image(job):
    name, arch = job
    library, kernels, quant, _ = arguments()
    headers = {p.name: p.read_text() for p in sorted(kernels.glob("*.cuh"))}
    headers["grids.cuh"] = tables(quant)
    source = (kernels / f"{name}.cu").read_text()
    verbose = "-v" in sys.argv and arch == "sm_90a"
    return f"{name}.{arch}", Nvrtc(library).compile(f"{name}.cu", source, headers, arch, verbose)


def main():
    _, kernels, _, out = arguments()
    architectures = ARCHITECTURES[:1] if "--disturbed" in sys.argv else ARCHITECTURES
    jobs = [(name, arch) for arch in architectures for name in KERNELS]
    # The library compiles one program at a time in a process.
    with ProcessPoolExecutor() as pool:
        images = list(pool.map(image, jobs))
    stream = packed(images)
    out.write_bytes(b"TOKCUDA1" + digest(kernels) + stream)
    print(f"{len(images)} images, {sum(len(i) for _, i in images)} bytes, {len(stream)} compressed")


if __name__ == "__main__":
    main()
