//! The structs of the header, member by member.
#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_void};

use crate::border::Sized32;

macro_rules! handles {
    ($($name:ident)*) => {
        $(
            /// A handle; nothing of the kind exists.
            #[derive(Clone, Copy, Debug)]
            #[repr(C)]
            pub struct $name {
                _private: [u8; 0],
            }
        )*
    };
}

handles!(tokkata_error tokkata_model tokkata_request tokkata_session tokkata_grammar tokkata_matcher);

pub type tokkata_log_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, level: i32, text: *const c_char, len: usize)>;
pub type tokkata_progress_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, done: u64, total: u64) -> i32>;
pub type tokkata_event_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, event: *const tokkata_event) -> i32>;
pub type tokkata_tap_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        name: *const c_char,
        name_len: usize,
        values: *const f32,
        rows: usize,
        width: usize,
    ) -> i32,
>;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tokkata_adapter {
    pub path: *const c_char,
    pub path_len: usize,
    pub scale: f32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tokkata_model_options {
    pub size: u32,
    pub purpose: i32,
    pub pooling: i32,
    pub n_ctx: u32,
    pub n_seqs: u32,
    pub n_rows: u32,
    pub n_logit_rows: u32,
    pub threads: u32,
    pub device: *const c_char,
    pub device_len: usize,
    pub kv_type: *const c_char,
    pub kv_type_len: usize,
    pub kv_memory_bytes: u64,
    pub cpu_features: *const c_char,
    pub cpu_features_len: usize,
    pub tuning: *const c_char,
    pub tuning_len: usize,
    pub adapters: *const tokkata_adapter,
    pub n_adapters: usize,
    pub progress: tokkata_progress_fn,
    pub progress_user: *mut c_void,
    pub taps: u32,
    pub words: u32,
    pub speculation: *const c_char,
    pub speculation_len: usize,
    pub draft_model: *const c_char,
    pub draft_model_len: usize,
    pub draft_max: u32,
    pub gpu_layers: u32,
    pub cpu_experts: u32,
    pub reserved: u32,
}

// SAFETY: numbers, pointers and an optional function, a size first.
unsafe impl Sized32 for tokkata_model_options {
    const INIT: Self = tokkata_model_options {
        size: size_of::<Self>() as u32,
        pooling: -1,
        n_seqs: 4,
        ..Self::NOTHING
    };
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct tokkata_model_info {
    pub size: u32,
    pub n_vocab: u32,
    pub n_ctx: u32,
    pub n_ctx_train: u32,
    pub n_embd: u32,
    pub n_layers: u32,
    pub n_seqs: u32,
    pub n_rows: u32,
    pub vector_width: u32,
    pub writes_text: u32,
    pub has_template: u32,
    pub n_tensors: u32,
    pub n_params: u64,
    pub file_bytes: u64,
    pub memory_bytes: u64,
    pub hears: u32,
    pub reserved: u32,
}

// SAFETY: numbers, a size first.
unsafe impl Sized32 for tokkata_model_info {
    const INIT: Self = tokkata_model_info {
        size: size_of::<Self>() as u32,
        ..Self::NOTHING
    };
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tokkata_tensor {
    pub size: u32,
    pub n_dims: u32,
    pub dims: [u64; 4],
    pub bytes: u64,
    pub name: *const c_char,
    pub name_len: usize,
    pub r#type: *const c_char,
    pub type_len: usize,
}

// SAFETY: numbers and pointers, a size first.
unsafe impl Sized32 for tokkata_tensor {
    const INIT: Self = tokkata_tensor {
        size: size_of::<Self>() as u32,
        ..Self::NOTHING
    };
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tokkata_figures {
    pub size: u32,
    pub waiting: u32,
    pub running: u32,
    pub reserved: u32,
    pub cache_usage: f64,
}

// SAFETY: numbers, a size first.
unsafe impl Sized32 for tokkata_figures {
    const INIT: Self = tokkata_figures {
        size: size_of::<Self>() as u32,
        ..Self::NOTHING
    };
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tokkata_sampling {
    pub size: u32,
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    pub min_p: f32,
    pub typical_p: f32,
    pub top_n_sigma: f32,
    pub xtc_probability: f32,
    pub xtc_threshold: f32,
    pub repeat_penalty: f32,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    pub repeat_last_n: i32,
    pub reserved: u32,
    pub seed: u64,
}

// SAFETY: numbers, a size first.
unsafe impl Sized32 for tokkata_sampling {
    const INIT: Self = tokkata_sampling {
        size: size_of::<Self>() as u32,
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        typical_p: 1.0,
        xtc_threshold: 0.1,
        repeat_penalty: 1.0,
        repeat_last_n: 64,
        ..Self::NOTHING
    };
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tokkata_bias {
    pub token: u32,
    pub bias: f32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tokkata_text {
    pub data: *const c_char,
    pub len: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tokkata_generate_options {
    pub size: u32,
    pub max_tokens: u32,
    pub sampling: *const tokkata_sampling,
    pub biases: *const tokkata_bias,
    pub n_biases: usize,
    pub stop: *const tokkata_text,
    pub n_stop: usize,
    pub stop_tokens: *const u32,
    pub n_stop_tokens: usize,
    pub ignore_end: u32,
    pub logprobs: i32,
    pub grammar: *const tokkata_grammar,
    pub session: *mut tokkata_session,
    pub priority: i32,
    pub timeout_ms: u32,
    pub salt: u64,
}

// SAFETY: numbers and pointers, a size first.
unsafe impl Sized32 for tokkata_generate_options {
    const INIT: Self = tokkata_generate_options {
        size: size_of::<Self>() as u32,
        logprobs: -1,
        ..Self::NOTHING
    };
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tokkata_logprob {
    pub token: u32,
    pub logprob: f32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tokkata_word {
    pub text: *const c_char,
    pub len: usize,
    pub start: f64,
    pub end: f64,
    pub probability: f64,
}

// SAFETY: it points into the request that holds it, whose memory is never another thread's.
unsafe impl Send for tokkata_word {}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tokkata_transcribe_options {
    pub size: u32,
    pub translate: u32,
    pub language: *const c_char,
    pub language_len: usize,
    pub prompt: *const c_char,
    pub prompt_len: usize,
    pub beams: u32,
    pub best_of: u32,
    pub temperature: f32,
    pub temperature_step: f32,
    pub words: u32,
    pub no_timestamps: u32,
    pub no_context: u32,
    pub channel: i32,
    pub clips: *const f64,
    pub n_clips: usize,
    pub seed: u64,
}

// SAFETY: numbers and pointers, a size first.
unsafe impl Sized32 for tokkata_transcribe_options {
    const INIT: Self = tokkata_transcribe_options {
        size: size_of::<Self>() as u32,
        beams: 5,
        best_of: 5,
        temperature_step: 0.2,
        channel: -1,
        ..Self::NOTHING
    };
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tokkata_event {
    pub size: u32,
    pub kind: i32,
    pub text: *const c_char,
    pub text_len: usize,
    pub token: u32,
    pub logprob: f32,
    pub top: *const tokkata_logprob,
    pub n_top: usize,
    pub values: *const f32,
    pub n_values: usize,
    pub width: usize,
    pub finish: i32,
    pub n_prompt: u32,
    pub n_cached: u32,
    pub n_reused: u32,
    pub n_generated: u32,
    pub reserved: u32,
    pub prompt_ns: u64,
    pub generate_ns: u64,
    pub n_drafted: u32,
    pub n_accepted: u32,
    pub start: f64,
    pub end: f64,
    pub no_speech: f32,
    pub reserved2: u32,
    pub words: *const tokkata_word,
    pub n_words: usize,
}

// SAFETY: numbers and pointers, a size first.
unsafe impl Sized32 for tokkata_event {
    const INIT: Self = tokkata_event {
        size: size_of::<Self>() as u32,
        ..Self::NOTHING
    };
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tokkata_feed {
    pub session: *mut tokkata_session,
    pub tokens: *const u32,
    pub n_tokens: usize,
    pub logits: i32,
    pub answers: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct tokkata_sample_options {
    pub size: u32,
    pub position: u32,
    pub sampling: *const tokkata_sampling,
    pub biases: *const tokkata_bias,
    pub n_biases: usize,
    pub recent: *const u32,
    pub n_recent: usize,
    pub mask: *const u32,
    pub n_mask: usize,
}

// SAFETY: numbers and pointers, a size first.
unsafe impl Sized32 for tokkata_sample_options {
    const INIT: Self = tokkata_sample_options {
        size: size_of::<Self>() as u32,
        ..Self::NOTHING
    };
}
