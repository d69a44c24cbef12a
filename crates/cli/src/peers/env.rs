//! llama.cpp's environment variables: each stands for a flag that was not given.

use std::ffi::{OsStr, OsString};

/// A variable, the spellings of its flag, and of the flag that says the opposite; `None` where a value follows.
type Variable = (&'static str, &'static str, Option<&'static str>);

/// The prefix of variables that are flags.
const PREFIX: &str = "LLAMA_ARG_";

const VARIABLES: &[Variable] = &[
    ("LLAMA_API_KEY", "--api-key", None),
    ("LLAMA_ARG_AGENT", "--agent -ag", Some("-no-ag --no-agent")),
    ("LLAMA_ARG_ALIAS", "--alias -a", None),
    ("LLAMA_ARG_API_KEY_FILE", "--api-key-file", None),
    ("LLAMA_ARG_API_PREFIX", "--api-prefix", None),
    (
        "LLAMA_ARG_BACKEND_SAMPLING",
        "--backend-sampling -bs",
        Some(""),
    ),
    ("LLAMA_ARG_BATCH", "--batch-size -b", None),
    (
        "LLAMA_ARG_CACHE_IDLE_SLOTS",
        "--cache-idle-slots",
        Some("--no-cache-idle-slots"),
    ),
    (
        "LLAMA_ARG_CACHE_PROMPT",
        "--cache-prompt",
        Some("--no-cache-prompt"),
    ),
    ("LLAMA_ARG_CACHE_RAM", "--cache-ram -cram", None),
    ("LLAMA_ARG_CACHE_REUSE", "--cache-reuse", None),
    ("LLAMA_ARG_CACHE_TYPE_K", "--cache-type-k -ctk", None),
    ("LLAMA_ARG_CACHE_TYPE_V", "--cache-type-v -ctv", None),
    ("LLAMA_ARG_CHAT_TEMPLATE", "--chat-template", None),
    ("LLAMA_ARG_CHAT_TEMPLATE_FILE", "--chat-template-file", None),
    (
        "LLAMA_ARG_CHAT_TEMPLATE_KWARGS",
        "--chat-template-kwargs",
        None,
    ),
    (
        "LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT",
        "--checkpoint-min-step -cms",
        None,
    ),
    (
        "LLAMA_ARG_CONTEXT_SHIFT",
        "--context-shift",
        Some("--no-context-shift"),
    ),
    (
        "LLAMA_ARG_CONT_BATCHING",
        "--cont-batching -cb",
        Some("-nocb --no-cont-batching"),
    ),
    (
        "LLAMA_ARG_CORS_CREDENTIALS",
        "--cors-credentials",
        Some("--no-cors-credentials"),
    ),
    ("LLAMA_ARG_CORS_HEADERS", "--cors-headers", None),
    ("LLAMA_ARG_CORS_METHODS", "--cors-methods", None),
    ("LLAMA_ARG_CORS_ORIGINS", "--cors-origins", None),
    ("LLAMA_ARG_CPU_MOE", "--cpu-moe -cmoe", Some("")),
    (
        "LLAMA_ARG_CTX_CHECKPOINTS",
        "--ctx-checkpoints --swa-checkpoints -ctxcp",
        None,
    ),
    ("LLAMA_ARG_CTX_SIZE", "--ctx-size -c", None),
    ("LLAMA_ARG_DEFRAG_THOLD", "--defrag-thold -dt", None),
    ("LLAMA_ARG_DEVICE", "--device -dev", None),
    ("LLAMA_ARG_DRAFT_MAX", "--draft --draft-n --draft-max", None),
    ("LLAMA_ARG_DRAFT_MIN", "--draft-min --draft-n-min", None),
    ("LLAMA_ARG_EMBEDDINGS", "--embedding --embeddings", Some("")),
    ("LLAMA_ARG_ENDPOINT_METRICS", "--metrics", Some("")),
    ("LLAMA_ARG_ENDPOINT_PROPS", "--props", Some("")),
    ("LLAMA_ARG_ENDPOINT_SLOTS", "--slots", Some("--no-slots")),
    ("LLAMA_ARG_FIT", "--fit -fit", None),
    ("LLAMA_ARG_FIT_CTX", "--fit-ctx -fitc", None),
    ("LLAMA_ARG_FIT_TARGET", "--fit-target -fitt", None),
    ("LLAMA_ARG_FLASH_ATTN", "--flash-attn -fa", None),
    ("LLAMA_ARG_FREQUENCY_PENALTY", "--frequency-penalty", None),
    ("LLAMA_ARG_HF_FILE", "--hf-file -hff", None),
    ("LLAMA_ARG_HF_REPO", "--hf-repo -hf -hfr", None),
    ("LLAMA_ARG_HOST", "--host", None),
    ("LLAMA_ARG_IMAGE_MAX_TOKENS", "--image-max-tokens", None),
    ("LLAMA_ARG_IMAGE_MIN_TOKENS", "--image-min-tokens", None),
    ("LLAMA_ARG_JINJA", "--jinja", Some("--no-jinja")),
    (
        "LLAMA_ARG_KV_OFFLOAD",
        "--kv-offload -kvo",
        Some("-nkvo --no-kv-offload"),
    ),
    (
        "LLAMA_ARG_KV_UNIFIED",
        "--kv-unified -kvu",
        Some("-no-kvu --no-kv-unified"),
    ),
    ("LLAMA_ARG_LAZY_MODE", "--lazy-mode -lzm", None),
    ("LLAMA_ARG_LOAD_MODE", "--load-mode -lm", None),
    ("LLAMA_ARG_LOG_COLORS", "--log-colors", None),
    ("LLAMA_ARG_LOG_JSONL", "--log-jsonl", Some("--no-log-jsonl")),
    (
        "LLAMA_ARG_LOG_PREFIX",
        "--log-prefix",
        Some("--no-log-prefix"),
    ),
    (
        "LLAMA_ARG_LOG_TIMESTAMPS",
        "--log-timestamps",
        Some("--no-log-timestamps"),
    ),
    (
        "LLAMA_ARG_LOG_VERBOSITY",
        "--verbosity --log-verbosity -lv",
        None,
    ),
    ("LLAMA_ARG_MAIN_GPU", "--main-gpu -mg", None),
    ("LLAMA_ARG_MCP_SERVERS_CONFIG", "--mcp-servers-config", None),
    ("LLAMA_ARG_MCP_SERVERS_JSON", "--mcp-servers-json", None),
    ("LLAMA_ARG_MIN_P", "--min-p", None),
    ("LLAMA_ARG_MMPROJ", "--mmproj -mm", None),
    (
        "LLAMA_ARG_MMPROJ_AUTO",
        "--mmproj-auto",
        Some("--no-mmproj --no-mmproj-auto"),
    ),
    (
        "LLAMA_ARG_MMPROJ_OFFLOAD",
        "--mmproj-offload",
        Some("--no-mmproj-offload"),
    ),
    ("LLAMA_ARG_MMPROJ_URL", "--mmproj-url -mmu", None),
    ("LLAMA_ARG_MODEL", "--model -m", None),
    (
        "LLAMA_ARG_MODELS_AUTOLOAD",
        "--models-autoload",
        Some("--no-models-autoload"),
    ),
    ("LLAMA_ARG_MODELS_DIR", "--models-dir", None),
    ("LLAMA_ARG_MODELS_MAX", "--models-max", None),
    ("LLAMA_ARG_MODELS_PRESET", "--models-preset", None),
    ("LLAMA_ARG_MODEL_URL", "--model-url -mu", None),
    ("LLAMA_ARG_NO_HOST", "--no-host", Some("")),
    ("LLAMA_ARG_NUMA", "--numa", None),
    ("LLAMA_ARG_N_CPU_FFN", "--n-cpu-ffn -ncffn", None),
    ("LLAMA_ARG_N_CPU_MOE", "--n-cpu-moe -ncmoe", None),
    (
        "LLAMA_ARG_N_GPU_LAYERS",
        "--gpu-layers --n-gpu-layers -ngl",
        None,
    ),
    (
        "LLAMA_ARG_N_GPU_LAYERS_DRAFT",
        "--spec-draft-ngl --gpu-layers-draft --n-gpu-layers-draft -ngld",
        None,
    ),
    ("LLAMA_ARG_N_PARALLEL", "--parallel -np", None),
    ("LLAMA_ARG_N_PREDICT", "--predict --n-predict -n", None),
    ("LLAMA_ARG_OVERRIDE_TENSOR", "--override-tensor -ot", None),
    ("LLAMA_ARG_PERF", "--perf", Some("--no-perf")),
    ("LLAMA_ARG_POOLING", "--pooling", None),
    ("LLAMA_ARG_PORT", "--port", None),
    (
        "LLAMA_ARG_PREFILL_ASSISTANT",
        "--prefill-assistant",
        Some("--no-prefill-assistant"),
    ),
    ("LLAMA_ARG_PRESENCE_PENALTY", "--presence-penalty", None),
    ("LLAMA_ARG_REASONING", "--reasoning -rea", None),
    ("LLAMA_ARG_REASONING_EFFORT", "--reasoning-effort", None),
    (
        "LLAMA_ARG_REASONING_PRESERVE",
        "--reasoning-preserve",
        Some("--no-reasoning-preserve"),
    ),
    ("LLAMA_ARG_REPACK", "--repack", Some("-nr --no-repack")),
    ("LLAMA_ARG_REPEAT_PENALTY", "--repeat-penalty", None),
    ("LLAMA_ARG_RERANKING", "--rerank --reranking", Some("")),
    ("LLAMA_ARG_REUSE_PORT", "--reuse-port", Some("")),
    ("LLAMA_ARG_ROPE_FREQ_BASE", "--rope-freq-base", None),
    ("LLAMA_ARG_ROPE_FREQ_SCALE", "--rope-freq-scale", None),
    ("LLAMA_ARG_ROPE_SCALE", "--rope-scale", None),
    ("LLAMA_ARG_ROPE_SCALING_TYPE", "--rope-scaling", None),
    ("LLAMA_ARG_RPC", "--rpc", None),
    (
        "LLAMA_ARG_SKIP_CHAT_PARSING",
        "--skip-chat-parsing",
        Some("--no-skip-chat-parsing"),
    ),
    (
        "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K",
        "--spec-draft-type-k --cache-type-k-draft -ctkd",
        None,
    ),
    (
        "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V",
        "--spec-draft-type-v --cache-type-v-draft -ctvd",
        None,
    ),
    (
        "LLAMA_ARG_SPEC_DRAFT_CPU_MOE",
        "--spec-draft-cpu-moe --cpu-moe-draft -cmoed",
        Some(""),
    ),
    (
        "LLAMA_ARG_SPEC_DRAFT_HF_REPO",
        "--spec-draft-hf --hf-repo-draft -hfd -hfrd",
        None,
    ),
    (
        "LLAMA_ARG_SPEC_DRAFT_MODEL",
        "--spec-draft-model --model-draft -md",
        None,
    ),
    (
        "LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE",
        "--spec-draft-n-cpu-moe --spec-draft-ncmoe --n-cpu-moe-draft -ncmoed",
        None,
    ),
    ("LLAMA_ARG_SPEC_DRAFT_N_MAX", "--spec-draft-n-max", None),
    ("LLAMA_ARG_SPEC_DRAFT_N_MIN", "--spec-draft-n-min", None),
    (
        "LLAMA_ARG_SPEC_DRAFT_P_MIN",
        "--spec-draft-p-min --draft-p-min",
        None,
    ),
    (
        "LLAMA_ARG_SPEC_DRAFT_P_SPLIT",
        "--spec-draft-p-split --draft-p-split",
        None,
    ),
    ("LLAMA_ARG_SPEC_TYPE", "--spec-type", None),
    ("LLAMA_ARG_SPLIT_MODE", "--split-mode -sm", None),
    ("LLAMA_ARG_SSE_PING_INTERVAL", "--sse-ping-interval", None),
    ("LLAMA_ARG_SSL_CERT_FILE", "--ssl-cert-file", None),
    ("LLAMA_ARG_SSL_KEY_FILE", "--ssl-key-file", None),
    ("LLAMA_ARG_STATIC_PATH", "--path", None),
    ("LLAMA_ARG_SWA_FULL", "--swa-full", Some("")),
    ("LLAMA_ARG_TAGS", "--tags", None),
    ("LLAMA_ARG_TEMPERATURE", "--temp --temperature", None),
    ("LLAMA_ARG_TENSOR_SPLIT", "--tensor-split -ts", None),
    ("LLAMA_ARG_THINK", "--reasoning-format", None),
    ("LLAMA_ARG_THINK_BUDGET", "--reasoning-budget", None),
    (
        "LLAMA_ARG_THINK_BUDGET_MESSAGE",
        "--reasoning-budget-message",
        None,
    ),
    ("LLAMA_ARG_THREADS", "--threads -t", None),
    ("LLAMA_ARG_THREADS_HTTP", "--threads-http", None),
    ("LLAMA_ARG_TIMEOUT", "--timeout -to", None),
    ("LLAMA_ARG_TOOLS", "--tools", None),
    ("LLAMA_ARG_TOOLS_RUNTIME", "--tools-runtime", None),
    ("LLAMA_ARG_TOP_K", "--top-k", None),
    ("LLAMA_ARG_TOP_P", "--top-p", None),
    ("LLAMA_ARG_UBATCH", "--ubatch-size -ub", None),
    ("LLAMA_ARG_UI", "--ui --webui", Some("--no-ui --no-webui")),
    (
        "LLAMA_ARG_UI_MCP_PROXY",
        "--ui-mcp-proxy --webui-mcp-proxy",
        Some("--no-ui-mcp-proxy --no-webui-mcp-proxy"),
    ),
    ("LLAMA_ARG_YARN_ATTN_FACTOR", "--yarn-attn-factor", None),
    ("LLAMA_ARG_YARN_BETA_FAST", "--yarn-beta-fast", None),
    ("LLAMA_ARG_YARN_BETA_SLOW", "--yarn-beta-slow", None),
    ("LLAMA_ARG_YARN_EXT_FACTOR", "--yarn-ext-factor", None),
    ("LLAMA_ARG_YARN_ORIG_CTX", "--yarn-orig-ctx", None),
    ("VLLM_API_KEY", "--api-key", None),
];

/// Flags from the environment, before those of a command line that already has `given`.
pub(super) fn flags(
    environment: impl Iterator<Item = (OsString, OsString)>,
    given: &[OsString],
) -> Result<(Vec<OsString>, Vec<String>), String> {
    let has = |spellings: &str| {
        let spelled = |arg: &OsString| {
            let text = arg.to_str().unwrap_or_default();
            let flag = text.split_once('=').map_or(text, |(flag, _)| flag);
            spellings.split(' ').any(|s| s == flag)
        };
        given.iter().any(spelled)
    };
    let (mut flags, mut notes) = (Vec::new(), Vec::new());
    for (name, value) in environment {
        let text = name.to_str().unwrap_or_default();
        let known = VARIABLES.iter().find(|v| v.0 == text);
        let Some((_, spellings, opposite)) = known else {
            if text.starts_with(PREFIX) {
                notes.push(format!("{text} is not known here"));
            }
            continue;
        };
        if has(spellings) || opposite.is_some_and(&has) || value.is_empty() {
            continue;
        }
        let flag = spellings.split(' ').next().unwrap_or_default();
        match opposite {
            None => flags.push(joined(flag, &value)),
            Some(opposite) => match (is_on(text, &value)?, opposite.split(' ').next()) {
                (true, _) => flags.push(flag.into()),
                (false, Some(no)) if !no.is_empty() => flags.push(no.into()),
                (false, _) => {}
            },
        }
    }
    Ok((flags, notes))
}

fn joined(flag: &str, value: &OsStr) -> OsString {
    let mut joined = OsString::from(format!("{flag}="));
    joined.push(value);
    joined
}

fn is_on(name: &str, value: &OsStr) -> Result<bool, String> {
    match value.to_str().unwrap_or_default() {
        "1" | "on" | "true" | "enabled" => Ok(true),
        "0" | "off" | "false" | "disabled" => Ok(false),
        other => Err(format!("{name} is '{other}', expected 1 or 0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spoken(variables: &[(&str, &str)], given: &[&str]) -> Result<Vec<OsString>, String> {
        let variables = variables.iter().map(|(n, v)| (n.into(), v.into()));
        let given: Vec<OsString> = given.iter().map(Into::into).collect();
        flags(variables, &given).map(|f| f.0)
    }

    #[test]
    fn variables_stand_for_flags_that_were_not_given() {
        let port = [("LLAMA_ARG_PORT", "81")];
        assert_eq!(spoken(&port, &[]), Ok(vec!["--port=81".into()]));
        assert_eq!(spoken(&port, &["--port", "80"]), Ok(Vec::new()));
        assert_eq!(spoken(&port, &["--port=80"]), Ok(Vec::new()));
        assert_eq!(
            spoken(&[("LLAMA_ARG_CTX_SIZE", "9")], &["-c", "8"]),
            Ok(Vec::new())
        );
        assert_eq!(
            spoken(&[("LLAMA_ARG_ENDPOINT_SLOTS", "0")], &[]),
            Ok(vec!["--no-slots".into()])
        );
        assert_eq!(
            spoken(&[("LLAMA_ARG_EMBEDDINGS", "true")], &[]),
            Ok(vec!["--embedding".into()])
        );
        assert_eq!(
            spoken(&[("LLAMA_ARG_EMBEDDINGS", "0"), ("OTHER", "x")], &[]),
            Ok(Vec::new())
        );
        assert!(spoken(&[("LLAMA_ARG_EMBEDDINGS", "perhaps")], &[]).is_err());
    }

    #[test]
    fn unknown_variables_are_told() {
        let variables = [("LLAMA_ARG_NONSENSE".into(), "1".into())];
        let (flags, notes) = flags(variables.into_iter(), &[]).expect("no mistake");
        assert!(flags.is_empty() && notes[0].contains("LLAMA_ARG_NONSENSE"));
    }
}
