//! The flags of other programs, and what they mean here.

use super::Meaning::{self, Harmless, Is, Noted, Off, Refused, Words};
use super::Takes::{self, Maybe, Nothing, Value};

/// A line: the spellings, what follows them, what they mean.
pub(super) type Flag = (&'static str, Takes, Meaning);

const DRAFT: &str = "the draft model runs as the model does";
const HEADS: &str = "heads of the file guess by themselves, drafters with -md FILE";
const ITSELF: &str = "drafts are as long as they pay; --spec-draft-n-max limits them";
const RUNS: &str = "the server runs no tools; who asks runs them";
const SERVER: &str = "it is for `tokkata serve`";
const ROTATION: &str = "the model's file says how positions are rotated";
const CONTROL: &str =
    "vectors that steer a model cannot be added to it; adapters can be, with --lora";
const ADAPTERS: &str = "adapters are loaded and applied from the start; name them with --lora";
const SEES: &str =
    "an answer follows text alone; leave it out (`tokkata transcribe` writes down what is said)";
const CORES: &str = "threads are placed with --pin-threads, or by the system's taskset";
const TURNS: &str =
    "the chat template says what surrounds a question; --chat-template-file gives another";
const TASKS: &str = "only perplexity and divergence are measured";
const TYPES: &str = "weights have the types of the file; -q quantises them while they are loaded";
const TEXTS: &str = "requests bring their own texts";
const HUB: &str = "name the model with -hf";
const SWITCH: &[&str] = &["on", "off", "auto", "all", "true", "false"];

/// Flags that are spelled in another way here.
const SAME: &[Flag] = &[
    ("-ngl --n-gpu-layers", Value, Is("--gpu-layers")),
    ("-ot", Value, Is("--override-tensor")),
    ("-ncmoe", Value, Is("--n-cpu-moe")),
    ("-ncffn", Value, Is("--n-cpu-ffn")),
    ("-cmoe", Nothing, Is("--cpu-moe")),
    ("-ctk", Value, Is("--cache-type-k")),
    ("-ctv", Value, Is("--cache-type-v")),
    ("-hf -hfr", Value, Is("--hf-repo")),
    ("-hff", Value, Is("--hf-file")),
    ("-hft", Value, Is("--hf-token")),
    ("-mu", Value, Is("--model-url")),
    ("-npl", Value, Is("--npl")),
    ("-npp", Value, Is("--n-prompt")),
    ("-ntg", Value, Is("--n-gen")),
    ("-pg", Value, Is("--pg")),
    ("-sys", Value, Is("--system-prompt")),
    ("-sysf", Value, Is("--system-prompt-file")),
    ("-ub", Value, Is("--ubatch-size")),
    ("-bf --binary-file", Value, Is("--file")),
    (
        "-dev",
        Value,
        Words("--device", &[("none", "cpu"), ("CPU", "cpu")]),
    ),
    ("-sp", Nothing, Is("--special")),
    ("-e", Nothing, Is("--escape")),
    ("-st", Nothing, Is("--single-turn")),
    (
        "-co",
        Maybe(SWITCH),
        Words(
            "--color",
            &[
                ("on", "always"),
                ("off", "never"),
                ("auto", "auto"),
                ("", "always"),
            ],
        ),
    ),
    ("--grammar-file", Value, Is("--grammar")),
    ("-j -jf --json-schema-file", Value, Is("--json-schema")),
    ("-ofreq", Value, Is("--output-frequency")),
    (
        "-rea --reasoning",
        Value,
        Words("--think", &[("on", "on"), ("off", "off"), ("auto", "auto")]),
    ),
    ("--max-model-len", Value, Is("--ctx-size")),
    (
        "--kv-cache-dtype",
        Value,
        Words(
            "--cache-type-k",
            &[("auto", "f16"), ("bfloat16", "bf16"), ("float16", "f16")],
        ),
    ),
];

/// Flags that change no answer: what they ask for is so anyway, or nothing here does it.
const IDLE: &[Flag] = &[
    ("-fa --flash-attn", Maybe(SWITCH), Harmless),
    ("-tb --threads-batch", Value, Harmless),
    ("-mmp --mmap", Maybe(SWITCH), Harmless),
    (
        "--no-mmap --mlock --direct-io -dio --no-direct-io -ndio",
        Maybe(SWITCH),
        Harmless,
    ),
    ("-lm --load-mode -lzm --lazy-mode", Value, Harmless),
    (
        "-mg --main-gpu -sm --split-mode -ts --tensor-split",
        Value,
        Harmless,
    ),
    (
        "-kvo --kv-offload -nkvo --no-kv-offload",
        Maybe(SWITCH),
        Harmless,
    ),
    (
        "-nopo --op-offload --no-op-offload --no-host",
        Maybe(SWITCH),
        Harmless,
    ),
    ("--repack -nr", Maybe(SWITCH), Harmless),
    ("-fit --fit -fitp --fit-print", Maybe(SWITCH), Harmless),
    ("-fitt --fit-target -fitc --fit-ctx", Value, Harmless),
    (
        "--numa --prio --prio-batch --poll --poll-batch",
        Value,
        Harmless,
    ),
    ("--cpu-strict --cpu-strict-batch --delay", Value, Harmless),
    ("-np --parallel", Value, Harmless),
    (
        "-cb --cont-batching -nocb --no-cont-batching",
        Nothing,
        Harmless,
    ),
    (
        "-kvu --kv-unified -no-kvu --no-kv-unified --swa-full",
        Nothing,
        Harmless,
    ),
    (
        "-ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step",
        Value,
        Harmless,
    ),
    (
        "-cram --cache-ram --cache-reuse -dt --defrag-thold",
        Value,
        Harmless,
    ),
    ("--cache-prompt --no-cache-prompt", Nothing, Harmless),
    ("--prompt-cache", Value, Harmless),
    ("--prompt-cache-all --prompt-cache-ro", Nothing, Harmless),
    (
        "--warmup --no-warmup --check-tensors -bs --backend-sampling",
        Nothing,
        Harmless,
    ),
    ("--jinja --no-escape --no-display-prompt", Nothing, Harmless),
    (
        "-mli --multiline-input --simple-io -i --interactive -if --interactive-first",
        Nothing,
        Harmless,
    ),
    (
        "-v --verbose --log-verbose --verbose-prompt --progress",
        Nothing,
        Harmless,
    ),
    (
        "-lv --verbosity --log-verbosity --log-file --log-colors -ptc --print-token-count",
        Value,
        Harmless,
    ),
    (
        "--log-disable --log-prefix --no-log-prefix --log-timestamps --no-log-timestamps",
        Nothing,
        Harmless,
    ),
    (
        "--log-jsonl --no-log-jsonl --perf --no-perf --show-timings --no-show-timings",
        Nothing,
        Harmless,
    ),
    (
        "-a --alias --tags --served-model-name --reasoning-format",
        Value,
        Harmless,
    ),
    (
        "--no-mmproj --no-mmproj-auto --mmproj-auto --mmproj-offload --no-mmproj-offload",
        Nothing,
        Harmless,
    ),
    (
        "--tool-call-parser --reasoning-parser --gpu-memory-utilization --max-num-seqs --api-server-count",
        Value,
        Harmless,
    ),
    ("--max-num-batched-tokens --keepalive", Value, Harmless),
    (
        "--enable-prefix-caching --trust-remote-code --enforce-eager --enable-tokenizer-info-endpoint",
        Nothing,
        Harmless,
    ),
    (
        "--enable-auto-tool-choice --prefill-assistant --no-prefill-assistant",
        Nothing,
        Harmless,
    ),
    (
        "--reasoning-preserve --no-reasoning-preserve --skip-chat-parsing --no-skip-chat-parsing",
        Nothing,
        Harmless,
    ),
    ("--pps -pps --tgs -tgs", Nothing, Harmless),
    (
        "--data-parallel-size",
        Value,
        Off(
            &["1"],
            "one device, with the processor beside it, runs a model",
        ),
    ),
];

/// Flags for speculation, which changes no answer either, but whoever gives them expects speed.
const DRAFTS: &[Flag] = &[
    ("-md", Value, Is("--model-draft")),
    ("-hfd -hfrd", Value, Is("--hf-repo-draft")),
    (
        "--spec-draft-n-min --draft-min --draft-n-min --speculative-config",
        Value,
        Noted(ITSELF),
    ),
    (
        "--draft --draft-n --draft-max",
        Value,
        Is("--spec-draft-n-max"),
    ),
    ("--spec-default", Nothing, Harmless),
    (
        "--spec-ngram-simple-size-n --spec-ngram-simple-size-m --spec-ngram-simple-min-hits",
        Value,
        Noted(ITSELF),
    ),
    (
        "--spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits",
        Value,
        Noted(ITSELF),
    ),
    (
        "--spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits",
        Value,
        Noted(ITSELF),
    ),
    (
        "--spec-ngram-mod-n-match --spec-ngram-mod-n-min --spec-ngram-mod-n-max",
        Value,
        Noted(ITSELF),
    ),
    (
        "--draft-p-split --spec-draft-p-split --draft-p-min --spec-draft-p-min",
        Value,
        Noted(ITSELF),
    ),
    (
        "-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl",
        Value,
        Noted(DRAFT),
    ),
    (
        "-devd --device-draft --spec-draft-device",
        Value,
        Noted(DRAFT),
    ),
    (
        "-Cd --cpu-mask-draft --spec-draft-cpu-mask -Crd --cpu-range-draft --spec-draft-cpu-range --cpu-strict-draft --spec-draft-cpu-strict",
        Value,
        Noted(DRAFT),
    ),
    (
        "-Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch --cpu-strict-batch-draft --spec-draft-cpu-strict-batch",
        Value,
        Noted(DRAFT),
    ),
    (
        "--prio-draft --spec-draft-prio --prio-batch-draft --spec-draft-prio-batch",
        Value,
        Noted(DRAFT),
    ),
    (
        "--poll-draft --spec-draft-poll --poll-batch-draft --spec-draft-poll-batch",
        Value,
        Noted(DRAFT),
    ),
    ("--spec-draft-backend-sampling", Nothing, Noted(DRAFT)),
    (
        "--spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits --spec-synth-len",
        Value,
        Noted(ITSELF),
    ),
    (
        "-td --threads-draft --spec-draft-threads",
        Value,
        Noted(DRAFT),
    ),
    (
        "-tbd --threads-batch-draft --spec-draft-threads-batch",
        Value,
        Noted(DRAFT),
    ),
    (
        "-ctkd --cache-type-k-draft --spec-draft-type-k",
        Value,
        Noted(DRAFT),
    ),
    (
        "-ctvd --cache-type-v-draft --spec-draft-type-v",
        Value,
        Noted(DRAFT),
    ),
    (
        "-otd --override-tensor-draft --spec-draft-override-tensor",
        Value,
        Noted(DRAFT),
    ),
    (
        "-cmoed --cpu-moe-draft --spec-draft-cpu-moe",
        Nothing,
        Noted(DRAFT),
    ),
    (
        "-ncmoed --n-cpu-moe-draft --spec-draft-ncmoe --spec-draft-n-cpu-moe",
        Value,
        Noted(DRAFT),
    ),
    (
        "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
        Value,
        Noted(DRAFT),
    ),
    ("--mtp --dflash --eagle3", Nothing, Noted(HEADS)),
];

/// Flags that would change an answer or a result, and cannot.
const NEVER: &[Flag] = &[
    (
        "--control-vector --control-vector-scaled",
        Value,
        Refused(CONTROL),
    ),
    ("--control-vector-layer-range", Value, Refused(CONTROL)),
    (
        "--enable-lora --lora-init-without-apply",
        Nothing,
        Refused(ADAPTERS),
    ),
    (
        "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale",
        Value,
        Refused(ROTATION),
    ),
    (
        "--yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor",
        Value,
        Refused(ROTATION),
    ),
    (
        "--yarn-beta-slow --yarn-beta-fast",
        Value,
        Refused(ROTATION),
    ),
    ("-gan --grp-attn-n", Value, Off(&["1"], ROTATION)),
    ("-gaw --grp-attn-w", Value, Refused(ROTATION)),
    (
        "-C --cpu-mask -Cr --cpu-range -Cb --cpu-mask-batch -Crb --cpu-range-batch",
        Value,
        Refused(CORES),
    ),
    (
        "--image --audio --video -mm --mmproj -mmu --mmproj-url",
        Value,
        Refused(SEES),
    ),
    (
        "--image-min-tokens --image-max-tokens --video-fps --video-timestamp-interval --video-ffmpeg-dir --mtmd-batch-max-tokens",
        Value,
        Refused(SEES),
    ),
    ("--in-prefix --in-suffix", Value, Refused(TURNS)),
    (
        "--in-prefix-bos --no-jinja --spm-infill",
        Nothing,
        Refused(TURNS),
    ),
    (
        "--display-prompt",
        Nothing,
        Refused("the answer is printed alone"),
    ),
    (
        "--mirostat",
        Value,
        Off(
            &["0"],
            "mirostat is not known; use --top-p, --min-p or --top-n-sigma",
        ),
    ),
    (
        "--mirostat-lr --mirostat-ent --dynatemp-exp --adaptive-decay",
        Value,
        Harmless,
    ),
    (
        "--dynatemp-range",
        Value,
        Off(&["0", "0.0"], "the temperature is the same for every token"),
    ),
    (
        "--adaptive-target",
        Value,
        Off(
            &["-1", "-1.0"],
            "sampling aims at no probability; use --top-p or --min-p",
        ),
    ),
    (
        "--sampler-seq --sampling-seq",
        Value,
        Refused("give the names with --samplers"),
    ),
    (
        "--attention",
        Value,
        Refused("the model's descriptor says which tokens see each other"),
    ),
    (
        "--override-kv",
        Value,
        Refused("the metadata is the file's"),
    ),
    (
        "--rpc -rpc",
        Value,
        Refused("a model runs on this machine alone"),
    ),
    (
        "-tp --tensor-parallel-size",
        Value,
        Off(&["1"], "a model runs on one device"),
    ),
    ("--quantization", Value, Refused(TYPES)),
    ("--dtype", Value, Off(&["auto"], TYPES)),
    (
        "-dr --docker-repo",
        Value,
        Refused("models come from files or with -hf USER/NAME"),
    ),
    (
        "-cl --cache-list",
        Nothing,
        Refused("`tokkata ls` lists the models in the cache"),
    ),
    (
        "--completion-bash",
        Nothing,
        Refused("`tokkata completions bash` prints the script"),
    ),
    (
        "-oe --output-err",
        Value,
        Refused("results are printed once, in the format of -o"),
    ),
    (
        "-embd --embeddings --embedding",
        Maybe(SWITCH),
        Off(&["0"], "`tokkata embed` gives vectors"),
    ),
    (
        "--rerank --reranking",
        Nothing,
        Refused("`tokkata rerank` orders documents"),
    ),
    (
        "--hellaswag --winogrande --multiple-choice",
        Nothing,
        Refused(TASKS),
    ),
    (
        "--hellaswag-tasks --winogrande-tasks --multiple-choice-tasks",
        Value,
        Refused(TASKS),
    ),
    (
        "--ppl-stride --ppl-output-type",
        Value,
        Off(
            &["0"],
            "chunks follow each other, and one figure is printed",
        ),
    ),
    (
        "--host --port --path --api-prefix --root-path --uds --api-key --api-key-file",
        Value,
        Refused(SERVER),
    ),
    (
        "--ssl-key-file --ssl-cert-file --cors-origins --cors-methods --cors-headers",
        Value,
        Refused(SERVER),
    ),
    (
        "--timeout -to --threads-http --sse-ping-interval --slot-save-path",
        Value,
        Refused(SERVER),
    ),
    (
        "--models-dir --models-preset --models-max --sleep-idle-seconds",
        Value,
        Refused(SERVER),
    ),
    (
        "--metrics --props --slots --no-slots --ui --webui --no-ui --no-webui",
        Nothing,
        Refused(SERVER),
    ),
    ("--reuse-port --cors-credentials", Nothing, Refused(SERVER)),
    (
        "--estimate-only",
        Nothing,
        Refused("`tokkata inspect` and `tokkata plan` tell what a model needs"),
    ),
    (
        "--ttl --gpu --context-length",
        Value,
        Refused("nothing stays loaded; -c sets the context"),
    ),
];

/// Flags of conversations, where a text goes on.
pub(super) const COMPLETE: &[Flag] = &[
    ("-st --single-turn", Nothing, Harmless),
    (
        "--chat-template --chat-template-file --chat-template-kwargs",
        Value,
        Noted("the text goes on as it stands; `tokkata run` has conversations"),
    ),
];

/// Flags of whisper.cpp, which mean something else elsewhere.
pub(super) const TRANSCRIBE: &[Flag] = &[
    ("-tr", Nothing, Is("--translate")),
    ("-dl", Nothing, Is("--detect-language")),
    ("-ml", Value, Is("--max-len")),
    ("-sow", Nothing, Is("--split-on-word")),
    ("-bs", Value, Is("--beam-size")),
    ("-bo", Value, Is("--best-of")),
    ("-tp", Value, Is("--temperature")),
    ("-tpi", Value, Is("--temperature-inc")),
    ("-nf", Nothing, Is("--no-fallback")),
    ("-lpt", Value, Is("--logprob-thold")),
    ("-nth", Value, Is("--no-speech-thold")),
    ("-ot", Value, Is("--offset-t")),
    ("-d", Value, Is("--duration")),
    ("-di", Nothing, Is("--diarize")),
    ("-nt", Nothing, Is("--no-timestamps")),
    ("-np", Nothing, Is("--no-prints")),
    ("-otxt", Nothing, Is("--output-txt")),
    ("-osrt", Nothing, Is("--output-srt")),
    ("-ovtt", Nothing, Is("--output-vtt")),
    ("-olrc", Nothing, Is("--output-lrc")),
    ("-ocsv", Nothing, Is("--output-csv")),
    ("-oj -ojson", Nothing, Is("--output-json")),
    ("-ojf", Nothing, Is("--output-json-full")),
    ("-of", Value, Is("--output-file")),
    ("-vm", Value, Is("--vad-model")),
    ("-vt", Value, Is("--vad-threshold")),
    ("-vspd", Value, Is("--vad-min-speech-duration-ms")),
    ("-vsd", Value, Is("--vad-min-silence-duration-ms")),
    ("-vmsd", Value, Is("--vad-max-speech-duration-s")),
    ("-vp", Value, Is("--vad-speech-pad-ms")),
    ("-vo", Value, Is("--vad-samples-overlap")),
    ("-sns --suppress-nst", Nothing, Harmless),
    ("-pp --print-progress", Nothing, Harmless),
    ("-ng --no-gpu", Nothing, Harmless),
    ("-fa --flash-attn -nfa --no-flash-attn", Nothing, Harmless),
    ("-p --processors", Value, Is("--parallel")),
    (
        "-et --entropy-thold",
        Value,
        Noted("repetition is judged as openai's code does, by compression"),
    ),
];

/// Flags that mean something else to a server.
pub(super) const SERVE: &[Flag] = &[
    ("-a", Value, Is("--alias")),
    ("-np", Value, Is("--parallel")),
    ("-to", Value, Is("--timeout")),
    ("-v --log-verbose", Nothing, Is("--verbose")),
    ("-embd", Nothing, Is("--embeddings")),
    ("-vm", Value, Is("--vad-model")),
    (
        "--metrics --ui --webui --prefill-assistant",
        Nothing,
        Harmless,
    ),
    ("--threads-http", Value, Harmless),
    ("--no-jinja", Nothing, Harmless),
    (
        "-kvu --kv-unified -no-kvu --no-kv-unified",
        Nothing,
        Harmless,
    ),
    (
        "-cis --cache-idle-slots -no-cis --no-cache-idle-slots",
        Nothing,
        Harmless,
    ),
    ("-bs --backend-sampling", Nothing, Harmless),
    (
        "-mcpconf --mcp-servers-config -mcpjson --mcp-servers-json --tools --tools-runtime",
        Value,
        Refused(RUNS),
    ),
    (
        "--ui-mcp-proxy --webui-mcp-proxy --agent",
        Nothing,
        Refused(RUNS),
    ),
    (
        "-spf",
        Value,
        Refused("requests bring their own system messages"),
    ),
    (
        "--slot-save-path",
        Value,
        Refused("caches are not written to files; prefixes that were computed are kept in memory"),
    ),
    (
        "--path --ui-config --webui-config --ui-config-file --webui-config-file",
        Value,
        Refused("the page is inside the program and keeps its settings in the browser"),
    ),
    (
        "--grammar --grammar-file -j --json-schema -jf --json-schema-file",
        Value,
        Refused("requests bring their own grammars"),
    ),
    (
        "-p --prompt -f --file -bf --binary-file -r --reverse-prompt",
        Value,
        Refused(TEXTS),
    ),
    ("-e --escape", Nothing, Refused(TEXTS)),
    (
        "-sp --special",
        Nothing,
        Refused("a request asks for special tokens with skip_special_tokens"),
    ),
    (
        "--media-path",
        Value,
        Refused("requests bring what they ask about; no file is opened for them"),
    ),
    (
        "--embd-normalize",
        Value,
        Off(
            &["2"],
            "vectors have length 1; a request asks otherwise with embd_normalize",
        ),
    ),
    (
        "-sps --slot-prompt-similarity --kv-unified-per-slot",
        Value,
        Noted("whatever was computed of a prompt is found again, in any place"),
    ),
    (
        "--log-prompts-dir",
        Value,
        Refused("texts of requests are not logged"),
    ),
    (
        "--default-chat-template-kwargs",
        Value,
        Is("--chat-template-kwargs"),
    ),
    (
        "--models-preset",
        Value,
        Refused("name each model on the command line, or a folder of them with --models-dir"),
    ),
    (
        "--embd-gemma-default --gpt-oss-20b-default --gpt-oss-120b-default --vision-gemma-4b-default --vision-gemma-12b-default",
        Nothing,
        Refused(HUB),
    ),
    (
        "--fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default",
        Nothing,
        Refused(HUB),
    ),
    ("--models-autoload", Nothing, Harmless),
    (
        "--enable-auto-tool-choice --enable-prefix-caching --no-enable-prefix-caching",
        Nothing,
        Harmless,
    ),
    (
        "--enable-prompt-tokens-details --enable-chunked-prefill --enable-request-id-headers",
        Nothing,
        Harmless,
    ),
    (
        "--skip-tokenizer-init --enable-scale-out --cohere-is-reasoning-model --no-cohere-is-reasoning-model",
        Nothing,
        Harmless,
    ),
    (
        "--no-async-scheduling --async-scheduling --disable-log-stats --disable-log-requests --no-enable-log-requests",
        Nothing,
        Harmless,
    ),
    (
        "--reasoning-config --structured-outputs-config.backend --guided-decoding-backend --structured-outputs-config",
        Value,
        Harmless,
    ),
    (
        "--seed-offset --generation-config --uvicorn-log-level",
        Value,
        Harmless,
    ),
    ("--dtype", Value, Noted(TYPES)),
    (
        "--pooler-config --hf-overrides",
        Value,
        Refused("the model's file says how its rows become a vector; --pooling is known"),
    ),
    (
        "--tensor-parallel-size -tp",
        Value,
        Off(&["1"], "a model runs on one device"),
    ),
];

/// Every flag of other programs that is known.
pub(super) fn all() -> impl Iterator<Item = &'static Flag> {
    [SAME, IDLE, DRAFTS, NEVER].into_iter().flatten()
}

/// Commands of other programs that nothing here does, and what does instead.
pub(super) const VERBS: &[(&str, &str)] = &[
    (
        "ps",
        "nothing stays loaded; `tokkata ls` lists the models in the cache",
    ),
    ("stop", "nothing stays loaded, so there is nothing to stop"),
    (
        "cp",
        "models are files of the hub's cache; copy the file that `tokkata pull` names",
    ),
    (
        "create",
        "a model is a file; `tokkata convert` makes one from a directory",
    ),
    ("push", "models are downloaded, never uploaded"),
    ("fit-params", "`tokkata plan` tells what a model needs"),
    (
        "batched-bench",
        "`tokkata bench --npl 1,2,4` measures several sequences at once",
    ),
];
