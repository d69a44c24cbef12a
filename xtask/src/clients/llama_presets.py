"""A pytest plug-in: llama.cpp's server tests, unedited, on small local models.

The tests name models of the hub and expect words of theirs. Here a name stands for a file of $CLIENTS_MODELS, a model that
is not there skips the test by name, and words that another model would have said are not compared: what is checked is
everything else. Their `-c` is shared by all slots, ours is of each request, so that it is divided before it is given.
"""

import os
from pathlib import Path

import pytest
import utils

MODELS = Path(os.environ["CLIENTS_MODELS"])
FILES = {
    "ggml-org/models": "tiny.gguf",
    "ggml-org/models:tinyllamas/stories260K.gguf": "tiny.gguf",
    "ggml-org/models:tinyllamas/split/stories15M-q8_0-00001-of-00003.gguf": "tiny.gguf",
    "ggml-org/test-model-stories260K": "tiny.gguf",
    "ggml-org/test-model-stories260K-infill": "infill.gguf",
    "ggml-org/models:bert-bge-small/ggml-model-f16.gguf": "bert.gguf",
    "ggml-org/models:jina-reranker-v1-tiny-en/ggml-model-f16.gguf": "reranker.gguf",
}
TEXTS = {"match_regex": lambda regex, text: isinstance(text, str)}

start = utils.ServerProcess.start


def local_start(self, timeout_seconds=utils.DEFAULT_HTTP_TIMEOUT):
    kept = (self.model_hf_repo, self.model_hf_file, self.model_file, self.n_ctx)
    if self.model_hf_repo:
        name = self.model_hf_repo + (f":{self.model_hf_file}" if self.model_hf_file else "")
        file = FILES.get(name)
        if file is None or not (MODELS / file).exists():
            pytest.skip(f"there is no local model for {name}")
        self.model_hf_repo = self.model_hf_file = None
        self.model_file = str(MODELS / file)
    if self.n_ctx and self.n_slots and not self.kv_unified:
        self.n_ctx //= self.n_slots
    try:
        start(self, timeout_seconds)
    finally:
        self.model_hf_repo, self.model_hf_file, self.model_file, self.n_ctx = kept


utils.ServerProcess.start = local_start
utils.ServerPreset.load_all = staticmethod(lambda: None)
for name, function in TEXTS.items():
    setattr(utils, name, function)
