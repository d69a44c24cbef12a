"""Writes upstream-le.gguf and upstream-be.gguf with PyPI's gguf: `python make.py`, then commit both."""

import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np

HERE = Path(__file__).parent
PLAIN = {"F32": np.float32, "F16": np.float16}
BLOCKS = ["BF16", "Q4_0", "Q8_0", "Q4_K", "Q6_K", "Q1_0", "TQ2_0", "MXFP4", "NVFP4"]


def write(path):
    out = gguf.GGUFWriter(path, "llama")
    out.add_custom_alignment(64)
    out.add_uint8("a.u8", 200)
    out.add_int16("a.i16", -300)
    out.add_uint64("a.u64", 1 << 63)
    out.add_float64("a.f64", -0.1)
    out.add_bool("a.bool", True)
    out.add_string("a.text", "π")
    out.add_array("a.ints", [1, -2, 3])
    out.add_array("a.floats", [0.5, -2.0])
    out.add_array("a.strings", ["", "ab"])
    for name, dtype in PLAIN.items():
        out.add_tensor(name, np.arange(6, dtype=dtype).reshape(2, 3))
    for name in BLOCKS:
        kind = gguf.GGMLQuantizationType[name]
        size = gguf.GGML_QUANT_SIZES[kind][1]
        rows = (np.arange(4 * size) * 7).astype(np.uint8).reshape(2, 2 * size)
        out.add_tensor(name, rows, raw_dtype=kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


write(HERE / "upstream-le.gguf")
shutil.copy(HERE / "upstream-le.gguf", HERE / "upstream-be.gguf")
convert = [sys.executable, "-m", "gguf.scripts.gguf_convert_endian", HERE / "upstream-be.gguf", "big"]
subprocess.run(convert, input="YES\n", text=True, check=True)
