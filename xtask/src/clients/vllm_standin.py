"""A pytest plug-in: vLLM's server tests, unedited, without vLLM.

`tests.utils` is replaced by a server of ours with the model in the box under the name that a test asks for, and modules of
`vllm` by empty ones. Whatever a test needs of them beyond that skips it by name.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import socket
import subprocess
import sys
import time
import types
import urllib.request
from pathlib import Path

import pytest

SERVE = os.environ["CLIENTS_SERVE"]
MODELS = Path(os.environ["CLIENTS_MODELS"])
ENCODERS = ("MiniLM", "e5-", "bge-base", "arctic-embed", "bge-m3")
RANKERS = ("reranker", "ms-marco", "apeach")
# Files whose tests count Qwen's tokens, or want long answers, and nothing that a model has to know.
WRITERS = ("completion/test_completion.py", "tokenize/test_tokenization.py", "test_multi_api_servers.py", "test_logprob_token_ids.py", "test_return_tokens_as_ids.py", "test_orca_metrics.py", "test_chunked_prompt.py", "test_token_in_token_out.py", "test_generative_scoring_e2e.py", "test_online_batch_invariance.py")
# Files whose models have to think, and those whose have to call a tool: models of a script do.
THINKERS = ("test_completion_with_function_calling.py", "test_include_reasoning.py", "responses/test_simple.py", "test_thinking_token_budget.py")
CALLERS = ("test_return_token_ids.py",)
# Those whose models have to remember a name.
RECALLERS = ("responses/test_stateful.py",)
# Flags of vLLM's that ask for what is so anyway, or for a model that the one in the box stands in for.
DROPPED = {"--dtype", "--tokenizer", "--runner", "--hf-overrides", "--load-format", "--trust-remote-code", "--async-scheduling", "--attention-backend", "-tp"}
# Adapters by name are not served: whoever asks for one is told that there is no such model.
DROPPED |= {"--enable-lora", "--lora-modules", "--max-lora-rank", "--max-cpu-loras", "--max-loras"}


class Missing(types.ModuleType):
    """A module of which nothing is there."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub(f"{self.__name__}.{name}")


class Stub:
    """Something of vLLM's, which a test may hold but not use."""

    def __init__(self, name):
        self.name = name

    def __call__(self, *_, **__):
        pytest.skip(f"needs {self.name}")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if self.name.endswith("current_platform") and name.startswith(("is_", "supports_")):
            # Answers do not depend on their company here on any processor: what asks that is run as on one that can.
            return lambda *_: name == "is_rocm" and any("determinism" in frame.filename for frame in inspect.stack())
        if name == "model_validate":
            return Loose
        return Stub(f"{self.name}.{name}")


class Loose(types.SimpleNamespace):
    """An object of JSON whose members are attributes."""

    def __init__(self, value):
        super().__init__(**{k: loose(v) for k, v in value.items()})


def loose(value):
    if isinstance(value, dict):
        return Loose(value)
    return [loose(v) for v in value] if isinstance(value, list) else value


ABSENT = {"vllm"} | {name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Missing(spec.name)

    def exec_module(self, module):
        pass


class Tokenizer:
    """Qwen's, out of a model's file and by its own code: what a test compares our tokens with."""

    SPLIT = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )

    def __init__(self):
        import gguf
        import regex

        fields = gguf.GGUFReader(MODELS / "caller.gguf").fields
        self.words = fields["tokenizer.ggml.tokens"].contents()
        self.template = fields["tokenizer.chat_template"].contents()
        self.special = {i for i, kind in enumerate(fields["tokenizer.ggml.token_type"].contents()) if kind == 3}
        self.special |= {i for i, word in enumerate(self.words) if word in ("<think>", "</think>")}
        self.ids = {word: i for i, word in enumerate(self.words)}
        self.ranks = {tuple(pair.split(" ")): i for i, pair in enumerate(fields["tokenizer.ggml.merges"].contents())}
        printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printed]
        self.letters = {byte: chr(byte) for byte in printed} | {byte: chr(256 + i) for i, byte in enumerate(others)}
        self.bytes = {letter: byte for byte, letter in self.letters.items()}
        self.split = regex.compile(self.SPLIT).findall
        self.marks = regex.compile("(" + "|".join(regex.escape(self.words[i]) for i in self.special) + ")").split

    def encode(self, text, **_):
        ids = []
        for part in self.marks(text):
            own = self.ids.get(part)
            ids += [own] if own in self.special else [i for word in self.split(part) for i in self.word(word)]
        return ids

    def word(self, text):
        parts = [self.letters[byte] for byte in text.encode()]
        while len(parts) > 1:
            rank, at = min((self.ranks.get(pair, len(self.ranks)), i) for i, pair in enumerate(zip(parts, parts[1:])))
            if rank == len(self.ranks):
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self.ids[part] for part in parts]

    def apply_chat_template(self, conversation, add_generation_prompt, continue_final_message, tools=None, **_):
        import jinja2

        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        template = environment.from_string(self.template)
        text = template.render(messages=conversation, tools=tools, add_generation_prompt=add_generation_prompt)
        if not continue_final_message:
            return text
        last = conversation[-1]["content"].strip()
        return text[: text.rindex(last) + len(last)]

    def convert_ids_to_tokens(self, ids):
        return [self.words[i] for i in ids]

    def decode(self, ids, skip_special_tokens=False):
        out = b""
        for i in [ids] if isinstance(ids, int) else ids:
            word = self.words[i]
            if all(letter in self.bytes for letter in word):
                out += b"" if skip_special_tokens and i in self.special else bytes(self.bytes[letter] for letter in word)
            elif not (skip_special_tokens and i in self.special):
                out += word.encode()
        return out.decode(errors="replace")


class Config:
    """What a test asks of a model's configuration."""

    def __init__(self, model, **_):
        self.model = model

    def get_vocab_size(self):
        import gguf

        demo = Path(__file__).parents[3] / "demo/demo.gguf"
        writes = any(name in os.environ["PYTEST_CURRENT_TEST"] for name in WRITERS)
        fields = gguf.GGUFReader(MODELS / "qwen.gguf" if writes else demo).fields
        return len(fields["tokenizer.ggml.tokens"].data)


class RemoteOpenAIServer:
    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model, vllm_serve_args=(), *, env_dict=None, max_wait_seconds=None, **_):
        args, self.host, self.port, self.uds = list(map(str, vllm_serve_args)), "127.0.0.1", None, None
        kept, skip = [], 0
        for i, arg in enumerate(args):
            if skip and not arg.startswith("-"):
                skip -= 1
                continue
            skip = 0
            if arg.replace("_", "-").split("=")[0] in DROPPED:
                skip = 0 if "=" in arg else len(args)
            elif arg == "--port":
                self.port, skip = int(args[i + 1]), 1
            else:
                self.uds = args[i + 1] if arg == "--uds" else self.uds
                kept.append(arg)
        if self.port is None:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
        file, more = "demo", []
        if any(name in model for name in RANKERS):
            file, more = str(MODELS / "reranker.gguf"), ["--reranking"]
        elif any(name in model for name in ENCODERS):
            file, more = str(MODELS / "bert.gguf"), ["--embeddings"]
        else:
            chosen = {"thinker": THINKERS, "caller": CALLERS, "recaller": RECALLERS, "qwen": WRITERS}.items()
            test = os.environ["PYTEST_CURRENT_TEST"]
            file = next((str(MODELS / f"{model}.gguf") for model, files in chosen if any(f in test for f in files)), file)
        if "--served-model-name" not in kept:
            more += ["--alias", model]
        command = [SERVE, "-m", file, "--port", str(self.port), "--strict-model", *more, *kept]
        self.process = subprocess.Popen(command, env=os.environ | (env_dict or {}), stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 30
        while True:
            if self.process.poll() is not None:
                pytest.skip(f"does not start: {self.process.stderr.read().strip().splitlines()[-1]}")
            try:
                if self.uds:
                    socket.socket(socket.AF_UNIX).connect(self.uds)
                else:
                    urllib.request.urlopen(self.url_for("health"), timeout=1)
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def __enter__(self):
        RemoteOpenAIServer.running = self
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    @property
    def url_root(self):
        return "http://localhost" if self.uds else f"http://{self.host}:{self.port}"

    def url_for(self, *parts):
        return self.url_root + "/" + "/".join(part.strip("/") for part in parts if part)

    def options(self, more):
        return {"api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": 60} | more

    def get_client(self, **more):
        import openai

        return openai.OpenAI(base_url=self.url_for("v1"), **self.options(more))

    def get_async_client(self, **more):
        import openai

        return openai.AsyncOpenAI(base_url=self.url_for("v1"), **self.options(more))

    def get_client_anthropic(self, **more):
        import anthropic

        return anthropic.Anthropic(base_url=self.url_root, **self.options(more))

    def get_async_client_anthropic(self, **more):
        import anthropic

        return anthropic.AsyncAnthropic(base_url=self.url_root, **self.options(more))


class Scores:
    """How well texts fit by their vectors, which are the server's own: others check these."""

    def __init__(self, model):
        self.model = model

    def predict(self, pairs):
        import numpy as np

        client = RemoteOpenAIServer.running.get_client()
        vectors = lambda texts: np.array([one.embedding for one in client.embeddings.create(model=self.model, input=texts).data])
        cosine = lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        return np.array([cosine(*vectors(pair)) for pair in pairs])


sys.meta_path.insert(0, Finder())
scoring = Missing("tests.entrypoints.pooling.scoring.util")
scoring.EncoderScoringHfRunner = Scores
sys.modules["tests.entrypoints.pooling.scoring.util"] = scoring
utils = Missing("tests.utils")
utils.RemoteOpenAIServer = RemoteOpenAIServer
utils.VLLM_PATH = Path(".")
utils.ROCM_EXTRA_ARGS, utils.ROCM_ENV_OVERRIDES = [], {}
for name in ("multi_gpu_test", "create_new_process_for_each_test", "large_gpu_test"):
    setattr(utils, name, lambda *_, **__: lambda function: function)
utils.multi_gpu_only = lambda num_gpus: pytest.mark.skip(reason=f"needs {num_gpus} GPUs")
utils.requires_fp8 = pytest.mark.skip(reason="needs a GPU with FP8")
sys.modules["tests.utils"] = utils
vllm = Missing("vllm")
vllm.envs = types.SimpleNamespace(VLLM_USE_RUST_FRONTEND=False)
sys.modules["vllm"] = vllm
tokenizers = Missing("vllm.tokenizers")
tokenizers.get_tokenizer = lambda *_, **__: Tokenizer()
sys.modules["vllm.tokenizers"] = tokenizers
# What a test would download is the model that stands in for it.
hub = Missing("vllm.transformers_utils.repo_utils")
hub.hf_api = lambda: types.SimpleNamespace(snapshot_download=lambda repo_id, **_: repo_id)
sys.modules["vllm.transformers_utils.repo_utils"] = hub
loaders = Missing("vllm.model_executor.model_loader.weight_utils")
loaders.download_weights_from_hf = lambda name, **_: name
sys.modules["vllm.model_executor.model_loader.weight_utils"] = loaders
config = Missing("vllm.config")
config.ModelConfig = Config
sys.modules["vllm.config"] = config
# A version of vLLM's is asked for where the server's own is told.
version = Missing("vllm.version")
program = Path(SERVE).read_text().split("'")[1]
version.__version__ = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split()[1]
sys.modules["vllm.version"] = version
exceptions = Missing("vllm.exceptions")
exceptions.VLLMValidationError = type("VLLMValidationError", (ValueError,), {})
sys.modules["vllm.exceptions"] = exceptions
