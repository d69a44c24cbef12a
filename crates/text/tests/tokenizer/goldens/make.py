"""Trains small tokenizers and writes what they make of tricky texts, one JSON file per tokenizer.

python make.py OUT_DIR    needs `tokenizers` and `sentencepiece`; the files here came from 0.23.3 and 0.2.3.
"""
import base64, io, json, os, random, sys

import sentencepiece as spm
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = sys.argv[1]
CORPUS = [
    "The quick brown fox jumps over the lazy dog. It wasn't the dog's fault; they'd been told so!",
    "fn main() { let x = vec![1, 22, 333]; println!(\"{:?}\", x); } // done\n\tif (a && b) return 0;",
    "École élève naïve façade Straße İstanbul ÅNGSTRÖM ﬁne ½ ² Ⅷ ǅungla e\u0301te\u0301",
    "日本語のテキストと中文文本，以及한국어 텍스트。", "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم",
    "नमस्ते दुनिया 😀👍🏽🦙❤️ 1234567 3.14 1,000", "user@example.com https://a.b/c?d=e#f snake_case camelCase",
    "Hello   world  \n\n  spaces\tand\r\nlines \u00a0 \u3000 end", "a b c d e f g", "hello hello world world the the and and of of to to",
]
TEXTS = [
    "", " ", "  ", "\n", "Hello world", " Hello  world ", "HELLO WORLD", "the dog's fault, they'd've!", "a\n\n b\t c\r\n",
    "École Straße İstanbul", "e\u0301te\u0301 ﬁne ½ Ⅷ", "日本語のテキスト", "中文，文本", "한국어 텍스트", "Привет мир", "שלום עולם",
    "नमस्ते", "😀👍🏽🦙❤️", "1234567 3.14", "x=1;y==2", "user@example.com", "a_b-c", "<s>hi</s>", "<mask>", " <mask> ",
    "x <mask>y", "word<w>word <w> word", "a<n>b<N>c", "qqq zzz ЖЖЖ", "\u0000\u0007a\u200bb\ufeff", "\u00a0x\u3000y\u2028z", "▁a ▁▁b",
    "[CLS] x [SEP]", "[UNK] [MASK]", "un[MASK]related", "a" * 120, "ab " * 30, "\U000e0041 \U0001f1e9\U0001f1ea", "don't DON'T",
    "...!!!???", "$100 + 5% = €7", "tab\there", " leading", "trailing ", "Hello <s> world", "<s><s>", "x<b >y", "Κόσμε Σίσυφος",
    "①②③ ａｂｃ ㌔ ﬀ", "a\u0300\u0301b", "¡¿«»", "l'été", "hello, world! How are you?", "\r", "\ta\t", "a  b   c    d",
]


def randoms(n):
    rng = random.Random(5)
    pool = TEXTS + CORPUS
    for _ in range(n):
        parts = []
        for _ in range(rng.randint(1, 4)):
            t = rng.choice(pool)
            i = rng.randint(0, len(t)); parts.append(t[i : i + rng.randint(1, 12)])
        yield rng.choice(["", " "]).join(parts)


def write(name, tok, cases, **files):
    json.dump(dict(files=files, cases=cases), open(f"{OUT}/{name}.json", "w"), ensure_ascii=True, separators=(",", ":"))
    print(name, len(cases))


def hf(name, tok, added=(), special=()):
    if added: tok.add_tokens(list(added))
    if special: tok.add_special_tokens(list(special))
    cases, marks = [], {i for i, t in tok.get_added_tokens_decoder().items() if t.special}
    for text in TEXTS + list(randoms(60)):
        tok.encode_special_tokens = True
        plain = tok.encode(text, add_special_tokens=False).ids
        tok.encode_special_tokens = False
        # The models of that library make special tokens of plain text, which here stays text.
        if marks & set(plain): plain = None
        parsed = tok.encode(text, add_special_tokens=True).ids
        cases.append(dict(text=text, plain=plain, parsed=parsed, decoded=tok.decode(parsed, skip_special_tokens=True)))
    write(name, tok, cases, tokenizer_json=json.loads(tok.to_str()))


def train(tok, trainer):
    tok.train_from_iterator(CORPUS * 4, trainer)
    return tok


SPECIAL = [AddedToken("<s>", special=True), AddedToken("</s>", special=True), AddedToken("<mask>", lstrip=True, special=True)]
ADDED = [AddedToken("<w>", single_word=True), AddedToken("<n>", normalized=True), AddedToken("hello", normalized=True), AddedToken("<b >", rstrip=True, normalized=False)]
BYTES = pre_tokenizers.ByteLevel.alphabet()
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def bpe_trainer(n=420, **kw):
    return trainers.BpeTrainer(vocab_size=n, show_progress=False, **kw)


t = Tokenizer(models.BPE()); t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True); t.decoder = decoders.ByteLevel()
train(t, bpe_trainer(initial_alphabet=BYTES)); t.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
hf("byte_bpe_roberta", t, ADDED, SPECIAL)

t = Tokenizer(models.BPE(ignore_merges=True)); t.decoder = decoders.ByteLevel(); t.normalizer = normalizers.NFC()
t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
train(t, bpe_trainer(initial_alphabet=BYTES)); t.add_special_tokens(SPECIAL)
t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", t.token_to_id("<s>"))])])
hf("byte_bpe_llama3", t, ADDED)

t = Tokenizer(models.BPE()); t.decoder = decoders.ByteLevel()
t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split(Regex(GPT4O), "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
train(t, bpe_trainer(initial_alphabet=BYTES)); hf("byte_bpe_gpt4o", t, ADDED, SPECIAL)

t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
train(t, bpe_trainer(420, special_tokens=["<unk>"] + ["<0x%02X>" % i for i in range(256)], limit_alphabet=100)); hf("bpe_byte_fallback", t, [], SPECIAL[:2])

t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>")); t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
t.pre_tokenizer = pre_tokenizers.BertPreTokenizer(); t.decoder = decoders.BPEDecoder("</w>")
train(t, bpe_trainer(300, special_tokens=["<unk>"], end_of_word_suffix="</w>")); hf("bpe_suffix", t, [], SPECIAL[:1])

t = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##")); t.normalizer = normalizers.Strip(); t.pre_tokenizer = pre_tokenizers.Whitespace()
train(t, bpe_trainer(300, special_tokens=["<unk>"], continuing_subword_prefix="##")); hf("bpe_prefix", t)

t = Tokenizer(models.WordPiece(unk_token="[UNK]")); t.normalizer = normalizers.BertNormalizer(); t.pre_tokenizer = pre_tokenizers.BertPreTokenizer(); t.decoder = decoders.WordPiece()
train(t, trainers.WordPieceTrainer(vocab_size=400, show_progress=False, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]); hf("wordpiece_bert", t)

t = Tokenizer(models.WordPiece(unk_token="[UNK]")); t.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=True, handle_chinese_chars=False, clean_text=False)
t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("contiguous")]); t.decoder = decoders.WordPiece(cleanup=False)
train(t, trainers.WordPieceTrainer(vocab_size=400, show_progress=False, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])); t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)); hf("wordpiece_cased", t)

for scheme in ["always", "first", "never"]:
    t = Tokenizer(models.Unigram()); t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=scheme != "first"); t.decoder = decoders.Metaspace(prepend_scheme=scheme)
    train(t, trainers.UnigramTrainer(vocab_size=220, show_progress=False, unk_token="<unk>", special_tokens=["<unk>", "<s>", "</s>"])); hf(f"unigram_{scheme}", t, ADDED[:1], SPECIAL[2:])

t = Tokenizer(models.WordLevel(unk_token="<unk>")); t.normalizer = normalizers.NFKD()
t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.CharDelimiterSplit("-"), pre_tokenizers.Split(" ", "merged_with_previous"), pre_tokenizers.Split(Regex("[aeiou]"), "merged_with_next"), pre_tokenizers.Digits(False)])
train(t, trainers.WordLevelTrainer(vocab_size=300, show_progress=False, special_tokens=["<unk>"])); hf("word_level", t, ADDED)

t = Tokenizer(models.BPE(unk_token="<unk>")); t.pre_tokenizer = pre_tokenizers.FixedLength(length=5)
train(t, bpe_trainer(300, special_tokens=["<unk>"])); hf("fixed_length", t)


def sp(name, **kw):
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS * 4), model_writer=model, minloglevel=2, hard_vocab_limit=False, **kw)
    p = spm.SentencePieceProcessor(model_proto=model.getvalue())
    cases = [dict(text=t, plain=p.encode(t), parsed=None, decoded=None if p.unk_id() in p.encode(t) else p.decode(p.encode(t))) for t in TEXTS + list(randoms(60)) if "\0" not in t]
    write(name, None, cases, tokenizer_model=base64.b64encode(model.getvalue()).decode())


sp("sp_bpe", model_type="bpe", vocab_size=500, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False)
# The full normalisation tables are 240 KiB each, so they are written only when asked for.
RULES = [("FB01", "66 69"), ("BD", "31 2F 32"), ("A0", "20"), ("3000", "20"), ("65 301", "E9"), ("41", "61"), ("200B", ""), ("4E2D 6587", "4E2D")]
with open(f"{OUT}/rules.tsv", "w") as f: f.write("".join(f"{a}\t{b}\n" for a, b in RULES))
tsv = dict(normalization_rule_tsv=f"{OUT}/rules.tsv")
sp("sp_bpe_rules", model_type="bpe", vocab_size=300, **tsv)
sp("sp_unigram", model_type="unigram", vocab_size=240, **tsv)
sp("sp_unigram_bytes", model_type="unigram", vocab_size=480, byte_fallback=True, add_dummy_prefix=False, user_defined_symbols=["<sep>", "hello"], **tsv)
if len(sys.argv) > 2:
    for rule in ["nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf"]:
        sp(f"sp_full_{rule}", model_type="bpe" if "cf" in rule else "unigram", vocab_size=300, normalization_rule_name=rule)
os.remove(f"{OUT}/rules.tsv")
