//! What a server counts, in Prometheus' text form under our own names, vLLM's and llama.cpp's.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use tokkata::{Figures, Stats};

/// Upper edges of the buckets of what takes milliseconds, in seconds.
const GAPS: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0,
];
/// The same of what takes seconds.
const SPANS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0,
];
/// The same of numbers of tokens.
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0,
    50000.0, 100_000.0,
];

/// How often something fell below each edge, how often at all, and the sum.
#[derive(Debug)]
pub struct Histogram {
    edges: &'static [f64],
    state: Mutex<(Vec<u64>, u64, f64)>,
}

impl Histogram {
    fn new(edges: &'static [f64]) -> Self {
        Histogram {
            edges,
            state: Mutex::new((vec![0; edges.len()], 0, 0.0)),
        }
    }

    /// Counts a value.
    pub fn observe(&self, value: f64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = self.edges.iter().position(|&edge| value <= edge) {
            state.0[place] += 1;
        }
        state.1 += 1;
        state.2 += value;
    }

    /// How often, and the sum.
    pub fn total(&self) -> (u64, f64) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.1, state.2)
    }

    fn write(&self, out: &mut String, name: &str, model: &str) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(out, "# TYPE {name} histogram");
        let mut sum = 0;
        for (edge, count) in self.edges.iter().zip(&state.0) {
            sum += count;
            let _ = writeln!(
                out,
                "{name}_bucket{{model_name=\"{model}\",le=\"{edge}\"}} {sum}"
            );
        }
        let (count, total) = (state.1, state.2);
        let _ = writeln!(
            out,
            "{name}_bucket{{model_name=\"{model}\",le=\"+Inf\"}} {count}"
        );
        let _ = writeln!(out, "{name}_sum{{model_name=\"{model}\"}} {total}");
        let _ = writeln!(out, "{name}_count{{model_name=\"{model}\"}} {count}");
    }
}

/// What is counted of one model.
#[derive(Debug)]
pub struct Metrics {
    /// Tokens of prompts.
    pub prompt_tokens: AtomicU64,
    /// Those of them that were cached.
    pub cached_tokens: AtomicU64,
    /// Tokens of answers.
    pub generated_tokens: AtomicU64,
    /// Requests that found no place.
    pub refused: AtomicU64,
    drafts: AtomicU64,
    drafted: AtomicU64,
    accepted: AtomicU64,
    prompt_ns: AtomicU64,
    generate_ns: AtomicU64,
    /// Calls for vectors.
    reads: AtomicU64,
    /// The most tokens that a prompt and its answer had.
    longest: AtomicU64,
    /// By how answers ended.
    ended: [AtomicU64; ENDS.len()],
    /// Seconds to the first token.
    pub first_token: Histogram,
    /// Seconds between tokens.
    pub gap: Histogram,
    per_token: Histogram,
    /// Seconds of whole answers.
    pub whole: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    prompt_size: Histogram,
    answer_size: Histogram,
    /// Tokens that requests allow.
    pub most_tokens: Histogram,
}

/// How answers end, in vLLM's words.
const ENDS: [&str; 4] = ["stop", "length", "abort", "error"];

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            prompt_tokens: AtomicU64::new(0),
            cached_tokens: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            drafts: AtomicU64::new(0),
            drafted: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            prompt_ns: AtomicU64::new(0),
            generate_ns: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            ended: Default::default(),
            first_token: Histogram::new(SPANS),
            gap: Histogram::new(GAPS),
            per_token: Histogram::new(GAPS),
            whole: Histogram::new(SPANS),
            queue: Histogram::new(SPANS),
            prefill: Histogram::new(SPANS),
            decode: Histogram::new(SPANS),
            prompt_size: Histogram::new(TOKENS),
            answer_size: Histogram::new(TOKENS),
            most_tokens: Histogram::new(TOKENS),
        }
    }
}

impl Metrics {
    /// Counts an answer that has ended; `first` and `whole` are seconds from its arrival.
    pub fn ended(&self, how: &str, stats: Option<&Stats>, first: Option<f64>, whole: f64) {
        if let Some(place) = ENDS.iter().position(|e| *e == how) {
            self.ended[place].fetch_add(1, Ordering::Relaxed);
        }
        self.whole.observe(whole);
        let Some(stats) = stats else { return };
        let add = |to: &AtomicU64, n: u64| {
            to.fetch_add(n, Ordering::Relaxed);
        };
        add(&self.prompt_tokens, stats.prompt_tokens as u64);
        add(&self.cached_tokens, stats.reused_tokens as u64);
        add(&self.generated_tokens, stats.generated_tokens as u64);
        add(&self.drafts, stats.drafts as u64);
        add(&self.drafted, stats.drafted_tokens as u64);
        add(&self.accepted, stats.accepted_tokens as u64);
        add(&self.prompt_ns, stats.prompt_ns);
        add(&self.generate_ns, stats.generate_ns);
        let tokens = (stats.prompt_tokens + stats.generated_tokens) as u64;
        self.longest.fetch_max(tokens, Ordering::Relaxed);
        let (prefill, decode) = (stats.prompt_ns as f64 / 1e9, stats.generate_ns as f64 / 1e9);
        self.prefill.observe(prefill);
        self.decode.observe(decode);
        if let Some(first) = first {
            self.queue.observe((first - prefill).max(0.0));
        }
        self.prompt_size.observe(stats.prompt_tokens as f64);
        self.answer_size.observe(stats.generated_tokens as f64);
        if stats.generated_tokens > 1 {
            self.per_token
                .observe(decode / (stats.generated_tokens - 1) as f64);
        }
    }

    /// Counts texts that were read for their vectors.
    pub fn read(&self, tokens: usize, seconds: f64) {
        self.prompt_tokens
            .fetch_add(tokens as u64, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.whole.observe(seconds);
    }

    /// After how many seconds a place is free, with so many waiting for `seqs` places.
    pub fn wait_seconds(&self, waiting: usize, seqs: u32) -> u64 {
        let (count, sum) = self.whole.total();
        let each = if count == 0 { 1.0 } else { sum / count as f64 };
        let rounds = (waiting + 1) as f64 / f64::from(seqs.max(1));
        (each * rounds).ceil().clamp(1.0, 600.0) as u64
    }

    /// As text; `now` is what the engine is doing, and `name` what the model is called.
    pub fn write(&self, out: &mut String, name: &str, now: Figures) {
        let model = name.replace('\\', "\\\\").replace('"', "\\\"");
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
        let mut one = |kind: &str, name: &str, value: f64| {
            let _ = writeln!(out, "# TYPE {name} {kind}");
            let _ = writeln!(out, "{name}{{model_name=\"{model}\"}} {value}");
        };
        let (prompt, generated) = (get(&self.prompt_tokens), get(&self.generated_tokens));
        let cached = get(&self.cached_tokens);
        let (waiting, running) = (now.waiting as f64, now.running as f64);
        let singles: [(&str, &str, f64); 16] = [
            ("gauge", "tokkata:requests_running", running),
            ("gauge", "tokkata:requests_waiting", waiting),
            ("gauge", "tokkata:cache_usage", now.cache_usage),
            ("counter", "tokkata:prompt_tokens_total", prompt),
            ("counter", "tokkata:cached_tokens_total", cached),
            ("counter", "tokkata:generated_tokens_total", generated),
            ("counter", "tokkata:refused_total", get(&self.refused)),
            ("gauge", "vllm:num_requests_running", running),
            ("gauge", "vllm:num_requests_waiting", waiting),
            ("gauge", "vllm:kv_cache_usage_perc", now.cache_usage),
            ("counter", "vllm:prompt_tokens_total", prompt),
            ("counter", "vllm:generation_tokens_total", generated),
            ("counter", "vllm:prefix_cache_queries_total", prompt),
            ("counter", "vllm:prefix_cache_hits_total", cached),
            ("counter", "vllm:iteration_tokens_total_count", generated),
            ("counter", "vllm:num_preemptions_total", 0.0),
        ];
        for (kind, name, value) in singles {
            one(kind, name, value);
        }
        let _ = writeln!(out, "# TYPE vllm:request_success_total counter");
        for (how, count) in ENDS.iter().zip(&self.ended) {
            let count = count.load(Ordering::Relaxed);
            let labels = format!("model_name=\"{model}\",finished_reason=\"{how}\"");
            let _ = writeln!(out, "vllm:request_success_total{{{labels}}} {count}");
        }
        let (size, blocks) = now.blocks;
        let _ = writeln!(out, "# TYPE vllm:cache_config_info gauge");
        let labels =
            format!("model_name=\"{model}\",block_size=\"{size}\",num_gpu_blocks=\"{blocks}\"");
        let _ = writeln!(out, "vllm:cache_config_info{{{labels}}} 1");
        for (stem, histogram) in self.histograms() {
            histogram.write(out, &format!("vllm:{stem}"), &model);
        }
        for (stem, histogram) in self.histograms().into_iter().take(4) {
            histogram.write(out, &format!("tokkata:{stem}"), &model);
        }
    }

    fn histograms(&self) -> [(&'static str, &Histogram); 10] {
        [
            ("time_to_first_token_seconds", &self.first_token),
            ("inter_token_latency_seconds", &self.gap),
            ("request_time_per_output_token_seconds", &self.per_token),
            ("e2e_request_latency_seconds", &self.whole),
            ("request_queue_time_seconds", &self.queue),
            ("request_prefill_time_seconds", &self.prefill),
            ("request_decode_time_seconds", &self.decode),
            ("request_prompt_tokens", &self.prompt_size),
            ("request_generation_tokens", &self.answer_size),
            ("request_max_num_generation_tokens", &self.most_tokens),
        ]
    }

    /// The same figures as an object.
    pub fn object(&self, name: &str, now: Figures) -> Value {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let spread = |h: &Histogram| {
            let (count, sum) = h.total();
            json!({"count": count, "sum": sum})
        };
        json!({
            "model": name,
            "running": now.running,
            "waiting": now.waiting,
            "cache_usage": now.cache_usage,
            "prompt_tokens": get(&self.prompt_tokens),
            "cached_tokens": get(&self.cached_tokens),
            "generated_tokens": get(&self.generated_tokens),
            "refused": get(&self.refused),
            "time_to_first_token_seconds": spread(&self.first_token),
            "inter_token_latency_seconds": spread(&self.gap),
            "e2e_request_latency_seconds": spread(&self.whole),
        })
    }
}

/// llama.cpp's figures, which know no models: those of all of them together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    prompt: f64,
    cached: f64,
    generated: f64,
    prompt_seconds: f64,
    generate_seconds: f64,
    works: f64,
    drafts: f64,
    drafted: f64,
    accepted: f64,
    longest: f64,
    running: f64,
    waiting: f64,
    usage: f64,
}

impl Sums {
    /// Adds a model's.
    pub fn add(&mut self, metrics: &Metrics, now: Figures) {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
        self.prompt += get(&metrics.prompt_tokens);
        self.cached += get(&metrics.cached_tokens);
        self.generated += get(&metrics.generated_tokens);
        self.prompt_seconds += get(&metrics.prompt_ns) / 1e9;
        self.generate_seconds += get(&metrics.generate_ns) / 1e9;
        self.works += get(&metrics.generated_tokens) + get(&metrics.reads);
        self.drafts += get(&metrics.drafts);
        self.drafted += get(&metrics.drafted);
        self.accepted += get(&metrics.accepted);
        self.longest = self.longest.max(get(&metrics.longest));
        self.running += now.running as f64;
        self.waiting += now.waiting as f64;
        self.usage = self.usage.max(now.cache_usage);
    }

    /// As text.
    pub fn write(&self, out: &mut String) {
        let computed = self.prompt - self.cached;
        let rate = |tokens: f64, seconds: f64| if seconds > 0.0 { tokens / seconds } else { 0.0 };
        let prompt_rate = rate(computed, self.prompt_seconds);
        let rates = (prompt_rate, rate(self.generated, self.generate_seconds));
        let busy = if self.works > 0.0 { 1.0 } else { 0.0 };
        let (count, now) = ("counter", "gauge");
        let all = [
            (
                count,
                "prompt_tokens_total",
                computed,
                "Tokens of prompts that were computed",
            ),
            (
                count,
                "prompt_tokens_cached_total",
                self.cached,
                "Tokens of prompts that were cached",
            ),
            (
                count,
                "prompt_seconds_total",
                self.prompt_seconds,
                "Seconds that prompts took",
            ),
            (
                count,
                "tokens_predicted_total",
                self.generated,
                "Tokens of answers",
            ),
            (
                count,
                "tokens_predicted_seconds_total",
                self.generate_seconds,
                "Seconds that answers took",
            ),
            (
                count,
                "n_decode_total",
                self.works,
                "Rows of answers and texts that were read",
            ),
            (
                count,
                "n_tokens_max",
                self.longest,
                "The most tokens of a prompt and its answer",
            ),
            (
                count,
                "spec_decode_num_draft_tokens_total",
                self.drafted,
                "Tokens that were drafted",
            ),
            (
                count,
                "spec_decode_num_accepted_tokens_total",
                self.accepted,
                "Drafted tokens that were right",
            ),
            (count, "spec_decode_num_drafts_total", self.drafts, "Drafts"),
            (
                now,
                "prompt_tokens_seconds",
                rates.0,
                "Tokens of prompts a second",
            ),
            (
                now,
                "predicted_tokens_seconds",
                rates.1,
                "Tokens of an answer a second",
            ),
            (
                now,
                "kv_cache_usage_ratio",
                self.usage,
                "Share of the cache in use",
            ),
            (
                now,
                "requests_processing",
                self.running,
                "Answers under way",
            ),
            (now, "requests_deferred", self.waiting, "Answers that wait"),
            (
                now,
                "n_busy_slots_per_decode",
                busy,
                "Answers per row of an answer, which is one",
            ),
        ];
        for (kind, name, value, help) in all {
            let _ = writeln!(out, "# HELP llamacpp:{name} {help}.");
            let _ = writeln!(
                out,
                "# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_all_that_is_below_their_edge() {
        let histogram = Histogram::new(&[0.1, 1.0]);
        for x in [0.05, 0.1, 0.5, 3.0] {
            histogram.observe(x);
        }
        let mut out = String::new();
        histogram.write(&mut out, "h", "m");
        assert!(
            out.contains("h_bucket{model_name=\"m\",le=\"0.1\"} 2\n"),
            "{out}"
        );
        assert!(out.contains("le=\"1\"} 3\n") && out.contains("le=\"+Inf\"} 4\n"));
        assert!(out.contains("h_count{model_name=\"m\"} 4\n"));
    }

    #[test]
    fn a_full_queue_says_when_to_come_back() {
        let metrics = Metrics::default();
        assert_eq!(metrics.wait_seconds(0, 1), 1);
        metrics.ended("stop", None, None, 4.0);
        assert_eq!(metrics.wait_seconds(7, 4), 8);
    }
}
