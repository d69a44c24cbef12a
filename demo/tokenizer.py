"""The demo model's tokenizer: byte-level BPE, trained on generated text, split as GGUF's `qwen2` splits.

    python tokenizer.py CORPUS OUT.json
"""

import sys

import words

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SIZE = 2048
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]


def train(path):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    with open(path, encoding="utf-8") as text:
        tokenizer.train_from_iterator(_without_special(text), trainer)
    return tokenizer


def _without_special(lines):
    """The corpus, and what must be one token each: the letters of spelled words, and the topics."""
    for letter in "abcdefghijklmnopqrstuvwxyz":
        yield f"-{letter}\n" * 2000
    for topic in words.TOPICS + words.NAMES:
        yield f" {topic}\n" * 400
    for line in lines:
        for special in SPECIAL:
            line = line.replace(special, "\n")
        yield line


def main():
    tokenizer = train(sys.argv[1])
    tokenizer.save(sys.argv[2], pretty=False)
    print(f"{tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
