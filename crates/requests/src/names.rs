//! Names of fields that OpenAI, llama.cpp, vLLM and others use.

/// Fields that name the caller or the call, of which nothing here depends.
pub const LABELS: [&str; 9] = [
    "user",
    "metadata",
    "safety_identifier",
    "request_id",
    "client_metadata",
    "session_id",
    "id_slot",
    "slot_id",
    "keep_alive",
];

/// Fields that change no answer here, and are told where they ask for something.
pub const HINTS: [&str; 11] = [
    "service_tier",
    "store",
    "prompt_cache_retention",
    "verbosity",
    "prediction",
    "stream_interval",
    "kv_transfer_params",
    "n_discard",
    "n_indent",
    "min_keep",
    "backend_sampling",
];

/// Fields that only what sees and hears could honour.
pub const SENSES: [&str; 3] = ["audio", "mm_processor_kwargs", "web_search_options"];

/// Seconds as OpenAI writes them, and the name of this build.
pub fn fingerprint() -> &'static str {
    concat!("b", env!("CARGO_PKG_VERSION"), "-tokkata")
}
