//! Names that people know models by, and the repositories that hold them.

/// Name, size and repository; the first size of a name is taken where none is asked for.
const KNOWN: &[(&str, &str, &str)] = &[
    ("llama3.2", "3b", "bartowski/Llama-3.2-3B-Instruct-GGUF"),
    ("llama3.2", "1b", "bartowski/Llama-3.2-1B-Instruct-GGUF"),
    (
        "llama3.1",
        "8b",
        "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF",
    ),
    ("llama3.3", "70b", "bartowski/Llama-3.3-70B-Instruct-GGUF"),
    ("qwen3", "8b", "Qwen/Qwen3-8B-GGUF"),
    ("qwen3", "0.6b", "Qwen/Qwen3-0.6B-GGUF"),
    ("qwen3", "1.7b", "Qwen/Qwen3-1.7B-GGUF"),
    ("qwen3", "4b", "Qwen/Qwen3-4B-GGUF"),
    ("qwen3", "14b", "Qwen/Qwen3-14B-GGUF"),
    ("qwen3", "32b", "Qwen/Qwen3-32B-GGUF"),
    ("qwen3", "30b-a3b", "Qwen/Qwen3-30B-A3B-GGUF"),
    ("qwen2.5", "7b", "bartowski/Qwen2.5-7B-Instruct-GGUF"),
    ("qwen2.5", "0.5b", "Qwen/Qwen2.5-0.5B-Instruct-GGUF"),
    ("qwen2.5", "1.5b", "Qwen/Qwen2.5-1.5B-Instruct-GGUF"),
    ("qwen2.5", "3b", "Qwen/Qwen2.5-3B-Instruct-GGUF"),
    ("gemma3", "4b", "ggml-org/gemma-3-4b-it-GGUF"),
    ("gemma3", "1b", "ggml-org/gemma-3-1b-it-GGUF"),
    ("gemma3", "12b", "ggml-org/gemma-3-12b-it-GGUF"),
    ("gemma3", "27b", "ggml-org/gemma-3-27b-it-GGUF"),
    ("gemma2", "9b", "bartowski/gemma-2-9b-it-GGUF"),
    ("gemma2", "2b", "bartowski/gemma-2-2b-it-GGUF"),
    ("gpt-oss", "20b", "ggml-org/gpt-oss-20b-GGUF"),
    ("gpt-oss", "120b", "ggml-org/gpt-oss-120b-GGUF"),
    ("mistral", "7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF"),
    (
        "mistral-nemo",
        "12b",
        "bartowski/Mistral-Nemo-Instruct-2407-GGUF",
    ),
    ("phi4", "14b", "microsoft/phi-4-gguf"),
    ("phi3.5", "3.8b", "bartowski/Phi-3.5-mini-instruct-GGUF"),
    (
        "smollm2",
        "1.7b",
        "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
    ),
    (
        "smollm2",
        "360m",
        "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF",
    ),
    (
        "tinyllama",
        "1.1b",
        "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF",
    ),
    (
        "deepseek-r1",
        "7b",
        "bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF",
    ),
    (
        "deepseek-r1",
        "1.5b",
        "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF",
    ),
    (
        "nomic-embed-text",
        "v1.5",
        "nomic-ai/nomic-embed-text-v1.5-GGUF",
    ),
];

/// The repository of a well-known name: `name`, `name:size`, or `name:size-type` such as `qwen3:4b-q8_0`, written as
/// [`Wanted`](crate::Wanted) reads it.
#[must_use]
pub fn known(name: &str) -> Option<String> {
    let (name, size) = name.split_once(':').unwrap_or((name, "latest"));
    let size = size.to_ascii_lowercase();
    let mut sizes = KNOWN.iter().filter(|k| k.0.eq_ignore_ascii_case(name));
    if size == "latest" {
        return sizes.next().map(|k| k.2.to_owned());
    }
    let rest = |k: &(_, &str, _)| size.strip_prefix(k.1).map(str::to_owned);
    let found = sizes.filter_map(|k| Some((k.2, rest(k)?)));
    let found = found.filter(|(_, rest)| rest.is_empty() || rest.starts_with('-'));
    // The longer name of a size is the closer one.
    let (repo, rest) = found.min_by_key(|(_, rest)| rest.len())?;
    Some(match rest.strip_prefix('-') {
        Some(quant) => format!("{repo}:{quant}"),
        None => repo.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Wanted;

    #[test]
    fn every_name_is_a_repository() {
        for (name, size, repo) in KNOWN {
            assert_eq!(known(&format!("{name}:{size}")).as_deref(), Some(*repo));
            assert!(repo.parse::<Wanted>().is_ok(), "{repo}");
        }
    }

    #[test]
    fn sizes_and_types_are_chosen() {
        assert!(known("llama3.2").is_some_and(|r| r.contains("3B")));
        assert!(known("Llama3.2:latest").is_some_and(|r| r.contains("3B")));
        assert_eq!(
            known("qwen3:4b-q8_0").as_deref(),
            Some("Qwen/Qwen3-4B-GGUF:q8_0")
        );
        assert_eq!(
            known("qwen3:30b-a3b").as_deref(),
            Some("Qwen/Qwen3-30B-A3B-GGUF")
        );
        assert_eq!(known("qwen3:5b"), None);
        assert_eq!(known("model.gguf"), None);
    }
}
