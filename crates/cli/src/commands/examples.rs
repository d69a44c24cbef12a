//! Examples that `--help` shows; a test runs each of them.

pub(super) const RUN: &str = "\
Examples:
  tokkata run
  tokkata run -m MODEL.gguf
  tokkata run llama3.2:1b
  tokkata run -hf USER/NAME:q4_k_m
  tokkata run -m MODEL.gguf -p 'Which is larger, 482 or 1204?' --temp 0
  tokkata run -m MODEL.gguf --no-think -n 20 < TEXT.txt";

#[cfg(feature = "server")]
pub(super) const SERVE: &str = "\
Examples:
  tokkata serve
  tokkata serve -m MODEL.gguf --port 8000 --api-key SECRET
  tokkata serve -m MODEL.gguf -c 8192 --parallel 16";

#[cfg(feature = "server")]
pub(super) const LAUNCH: &str = "\
Examples:
  tokkata launch codex
  tokkata launch claude --server http://127.0.0.1:8080";

pub(super) const LICENCES: &str = "\
Examples:
  tokkata licences";

pub(super) const COMPLETIONS: &str = "\
Examples:
  tokkata completions bash";

pub(super) const DEVICES: &str = "\
Examples:
  tokkata devices";

pub(super) const DOCTOR: &str = "\
Examples:
  tokkata doctor -o REPORT.md
  tokkata doctor --device cpu --no-bench";

pub(super) const COMPLETE: &str = "\
Examples:
  tokkata complete -m MODEL.gguf -p 'Once upon a time' -n 20
  tokkata complete -m MODEL.gguf -f TEXT.txt -n 20 -o json
  tokkata complete -m MODEL.gguf -p 'A number:' -n 20 --regex '[0-9]+'";

pub(super) const EMBED: &str = "\
Examples:
  tokkata embed -m MODEL.gguf --pooling mean -p 'One text' -p 'Another'
  tokkata embed -m MODEL.gguf --pooling mean -f TEXT.txt -o VECTORS.safetensors";

pub(super) const TRANSCRIBE: &str = "\
Examples:
  tokkata transcribe -m SPEECH.bin AUDIO.wav
  tokkata transcribe -m SPEECH.bin AUDIO.wav -l de --output-srt
  tokkata transcribe -m SPEECH.bin AUDIO.wav --word-timestamps --output-json-full";

pub(super) const RERANK: &str = "\
Examples:
  tokkata rerank -m RANKER.gguf --query 'What is a llama?' -p 'An animal' -p 'A fruit'";

pub(super) const CLASSIFY: &str = "\
Examples:
  tokkata classify -m CLASSIFIER.gguf -p 'What a day!'";

pub(super) const BENCH: &str = "\
Examples:
  tokkata bench -m MODEL.gguf -p 64 -n 16 -r 2
  tokkata bench --synthetic tiny:q4_0 -p 64,128 -n 16 -o json";

pub(super) const INSPECT: &str = "\
Examples:
  tokkata inspect MODEL.gguf
  tokkata inspect MODEL.gguf --tensors";

pub(super) const PLAN: &str = "\
Examples:
  tokkata plan MODEL.gguf
  tokkata plan MODEL.gguf --dump";

pub(super) const PROFILE: &str = "\
Examples:
  tokkata profile -m MODEL.gguf -p 32 -n 8
  tokkata profile -m MODEL.gguf -p 32 -n 8 -o html > PROFILE.html";

pub(super) const TUNE: &str = "\
Examples:
  tokkata tune
  tokkata tune --device wgpu:0
  tokkata tune --device wgpu:0 -m MODEL.gguf --dry-run
  tokkata tune --forget";

pub(super) const TOKENIZE: &str = "\
Examples:
  tokkata tokenize -m MODEL.gguf -p 'Once upon a time' --ids";

pub(super) const DETOKENIZE: &str = "\
Examples:
  tokkata detokenize -m MODEL.gguf --ids 1,2,3";

pub(super) const WATERMARK: &str = "\
Examples:
  tokkata watermark -m MODEL.gguf --watermark-config '{\"key\": 42}' -f TEXT.txt
  tokkata watermark --watermark-config '{\"key\": 42}' --ids 1,2,3 -o json";

pub(super) const TEMPLATE: &str = "\
Examples:
  tokkata template -m MODEL.gguf REQUEST.json";

pub(super) const PARSE: &str = "\
Examples:
  tokkata parse -m MODEL.gguf -f TEXT.txt";

pub(super) const ARCHS: &str = "\
Examples:
  tokkata archs
  tokkata archs llama
  tokkata archs check MINE.toml";

pub(super) const LOGITS: &str = "\
Examples:
  tokkata logits -m MODEL.gguf --ids 1,2,3 -o LOGITS.safetensors";

pub(super) const PERPLEXITY: &str = "\
Examples:
  tokkata perplexity -m MODEL.gguf -f TEXT.txt -c 64";

pub(super) const IMATRIX: &str = "\
Examples:
  tokkata imatrix -m MODEL.gguf -f TEXT.txt -c 64 -o IMATRIX.gguf";

pub(super) const QUANTIZE: &str = "\
Examples:
  tokkata quantize BIG.gguf SMALL.gguf q4_k_m
  tokkata quantize -m BIG.gguf SMALL.gguf q8_0 --dry-run";

pub(super) const CONVERT: &str = "\
Examples:
  tokkata convert FOLDER MODEL.gguf --outtype f16
  tokkata convert BIG.gguf BIG.safetensors";

pub(super) const PULL: &str = "\
Examples:
  tokkata pull USER/NAME:q4_k_m
  tokkata pull llama3.2:1b";

pub(super) const LS: &str = "\
Examples:
  tokkata ls";

pub(super) const RM: &str = "\
Examples:
  tokkata rm USER/NAME";

pub(super) const SPLIT: &str = "\
Examples:
  tokkata split BIG.gguf PARTS --max-size 2M";

pub(super) const MERGE: &str = "\
Examples:
  tokkata merge PARTS-00001-of-00002.gguf WHOLE.gguf";
