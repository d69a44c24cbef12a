"""Which text models this Transformers can build, and which of them the descriptors read from directories.

    python hf_survey.py [--quick]       the lists below; --quick builds nothing
    python hf_survey.py --check         the same, and fails where an architecture of ours has neither support nor a reason

A text model is a causal language model, an encoder-decoder or an encoder of text, alone or as the language part of a
model that sees or hears. Buildable is a class that its default configuration builds on tensors without storage. Ours are the classes that `[hf]` tables of crates/archs/archs name; every architecture without
a table must have a line in REASONS, so that the list of what is left is exhaustive.
"""

import os
import re
import sys
import tomllib
import warnings

import torch
import transformers
from transformers.models.auto import configuration_auto, modeling_auto

HERE = os.path.dirname(os.path.abspath(__file__))
ARCHS = os.path.join(HERE, "..", "..", "archs", "archs")
GOLDENS = os.path.join(HERE, "..", "goldens-hf")
KINDS = [
    ("causal", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    ("encoder-decoder", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
    ("encoder", "MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES"),
    ("encoder", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    ("language part", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"),
    ("language part", "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES"),
]

NO_CLASS = "Transformers has no class of it: its code came with the checkpoint"
# Why an architecture of ours has no [hf] table; descriptors that refuse a model say so themselves.
REASONS = {
    **dict.fromkeys("""arctic arwkv7 baichuan bailingmoe bailingmoe2 codeshell cogvlm deci deepseek exaone grok grovemoe
        internlm2 jais jina-bert-v2 kimi-k3 llada llada-moe llama-embed maincoder maple minicpm nanbeige neo-bert nomic-bert-moe
        openelm orion pangu-embedded plamo plamo2 plamo3 plm qwen qwen3tts refact rnd1 rwkv6 rwkv6qwen2 rwkv7
        smallthinker spark2_5 talkie xverse dream""".split(), NO_CLASS),
    "deepseek2-ocr": "its class there is DeepSeek OCR 2, whose pictures pass through another encoder; nobody compared the text part",
    "gemma-embedding": "its dense layers stand in folders of their own (2_Dense, 3_Dense), which are not read",
    "pockettts": "its class there is a whole synthesiser whose steps are continuous latents",
    "step35": "its class there is Step 3.7 with sparse attention",
}


def descriptors():
    """Names of architectures, the classes that they read, and why they refuse, by file."""
    found = {}
    for file in sorted(os.listdir(ARCHS)):
        with open(os.path.join(ARCHS, file), "rb") as f:
            table = tomllib.load(f)
        found[file[:-5]] = (table["names"], table.get("hf", {}).get("classes", []), table.get("unsupported"))
    return found


def text_models():
    """Every class of a text model: its kinds and model types."""
    found = {}
    for kind, table in KINDS:
        for model_type, classes in getattr(modeling_auto, table, {}).items():
            for name in [classes] if isinstance(classes, str) else classes:
                kinds, types = found.setdefault(name, (set(), set()))
                kinds.add(kind)
                types.add(model_type)
    return found


def has_class(arch):
    """Whether a model type there has the name of an architecture of ours."""
    plain = lambda name: re.sub("[^a-z0-9]", "", name.lower())
    return plain(arch) in map(plain, configuration_auto.CONFIG_MAPPING_NAMES)


def builds(name, types):
    """Nothing, or why the class does not come out of its default configuration."""
    model = getattr(transformers, name, None)
    if model is None:
        return "no such class"
    try:
        config = model.config_class() if getattr(model, "config_class", None) else \
            configuration_auto.CONFIG_MAPPING[sorted(types)[0]]()
        with torch.device("meta"):
            model._from_config(config)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:90]}" if str(error) else type(error).__name__
    return None


def goldens():
    """Classes that a golden holds."""
    found = set()
    for file in os.listdir(GOLDENS):
        if file.endswith(".json"):
            with open(os.path.join(GOLDENS, file)) as f:
                found.update(re.findall(r'"architectures": \[\s*"(\w+)"', f.read()))
    return found


def main(args):
    ours = descriptors()
    classes = {name: file for file, (_, names, _) in ours.items() for name in names}
    models, held = text_models(), goldens()
    print(f"Transformers {transformers.__version__}")
    print("\n# Classes of text models that a descriptor reads")
    for name, file in sorted(classes.items()):
        state = "not in this Transformers" if not hasattr(transformers, name) else \
            "golden" if name in held else "the same code as another class, without a golden"
        print(f"{name:<44} {file:<18} {state}")
    print("\n# Architectures without directories, and why")
    unexplained = []
    for file, (names, own, refuses) in ours.items():
        if own:
            continue
        if REASONS.get(file) == NO_CLASS and has_class(file):
            unexplained.append(file)
        why = f"refused as GGUF too: {refuses}" if refuses else REASONS.get(file)
        unexplained += [] if why else [file]
        print(f"{', '.join(names):<24} {why or 'NO REASON'}")
    print("\n# Classes of Transformers that no descriptor reads")
    built = 0
    left = sorted(set(models) - set(classes))
    for name in left:
        kinds, types = models[name]
        fault = "not tried" if "--quick" in args else builds(name, types)
        built += fault is None
        print(f"{name:<44} {', '.join(sorted(kinds)):<24} {', '.join(sorted(types)):<40} {fault or 'builds'}")
    stale = sorted(file for file in REASONS if ours.get(file, ("", True))[1])
    print(f"\n{len(models)} classes of text models; {len(set(models) & set(classes))} are read, {len(left)} are not, "
          f"{built} of which build; {len(held)} classes have goldens")
    print(f"without support or reason: {unexplained or 'none'}; reasons of what is read: {stale or 'none'}")
    return 1 if "--check" in args and (unexplained or stale) else 0


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    sys.exit(main(sys.argv[1:]))
