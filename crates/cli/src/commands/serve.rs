//! `serve`: models over HTTP.

mod folder;
mod logs;
mod models;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value};
use tokkata::audio::Silero;
use tokkata::{ChatTemplate, Pooling};
use tokkata_server::{
    Cross, Hosts, ModelLimits, Opened, Place, ReasoningNames, Server, ServerOptions, Thinking,
};

use super::examples;
use super::run::think::ThinkArgs;
use crate::args::{DeviceArgs, DraftArgs, ModelArgs, SizeArgs, usage};
use crate::console::say;
use crate::sampling::{SamplingArgs, ShiftArgs};

/// Flags of `serve`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::SERVE)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// What a model is called, and further names after commas (also -a); given again, of the next model
    #[arg(long, visible_alias = "served-model-name", value_name = "NAMES")]
    alias: Vec<String>,
    /// Words that describe the model in lists, with commas between
    #[arg(long, value_name = "WORDS", hide_short_help = true)]
    tags: Option<String>,
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    several: SeveralArgs,
    /// Give vectors rather than text
    #[arg(long, visible_alias = "embedding")]
    embeddings: bool,
    /// Score documents rather than write text
    #[arg(long, visible_alias = "rerank")]
    reranking: bool,
    /// How a text's rows become one vector: none, mean, cls, last or rank [default: the file's]
    #[arg(long, value_name = "KIND", value_parser = pooling, hide_short_help = true)]
    pooling: Option<Pooling>,
    /// Use this chat template instead of the file's: a well-known name such as chatml, or the template itself
    #[arg(long, value_name = "NAME", value_parser = super::run::named::template, hide_short_help = true)]
    chat_template: Option<ChatTemplate>,
    /// Read that from a file
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "chat_template",
        hide_short_help = true
    )]
    chat_template_file: Option<PathBuf>,
    /// Further names for the template, as a JSON object, behind those of a request
    #[arg(long, value_name = "JSON", value_parser = crate::args::object, hide_short_help = true)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// What the answer's reasoning is called: auto for both names, deepseek for reasoning_content, vllm for reasoning, none to
    /// leave it in the content
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Reasoning::Auto, hide_short_help = true)]
    reasoning_format: Reasoning,
    /// Tokens of an answer that does not say how many; -1 until the model ends or the context is full
    #[arg(short = 'n', long = "predict", visible_alias = "n-predict", value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    predict: i64,
    /// Silero's net, which tells where somebody speaks in recordings to be cut there: silero_vad_16k.safetensors, or whisper.cpp's
    /// ggml-silero-*.bin (also -vm)
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    vad_model: Option<PathBuf>,
    #[command(flatten)]
    sizes: SizeArgs,
    #[command(flatten)]
    drafts: DraftArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    shift: ShiftArgs,
    #[command(flatten)]
    think: ThinkArgs,
    /// Log as JSON, an object per line
    #[arg(long, visible_alias = "log-jsonl", hide_short_help = true)]
    log_json: bool,
    /// Log every call (also -v)
    #[arg(long)]
    verbose: bool,
}

/// Where to listen, and to whom.
#[derive(Debug, Args)]
#[command(next_help_heading = "Listening")]
struct ListenArgs {
    /// Address to listen on, or several with commas between
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 for any that is free
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,
    /// A socket in the file system to listen on instead; a host that ends in .sock is one
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    uds: Option<PathBuf>,
    /// What a proxy leaves before every path, which may also be left out
    #[arg(
        long,
        value_name = "PATH",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    root_path: String,
    /// What comes before every path
    #[arg(
        long,
        value_name = "PATH",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    api_prefix: String,
    /// A key that every call must have, or several with commas between
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// A file with such keys, one per line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Listen where other machines can ask, without a key
    #[arg(long)]
    insecure: bool,
    /// A name under which this server may be asked, or * for any; given again, another
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    allowed_host: Vec<String>,
    /// Pages of these origins may ask, with commas between; * for all
    #[arg(long, value_name = "ORIGINS", hide_short_help = true)]
    cors_origins: Option<String>,
    /// A file with this server's certificate and its chain, PEM: the server speaks TLS
    #[arg(
        long,
        visible_alias = "ssl-certfile",
        value_name = "FILE",
        requires = "ssl_key_file",
        hide_short_help = true
    )]
    ssl_cert_file: Option<PathBuf>,
    /// The file with its key, PEM
    #[arg(
        long,
        visible_alias = "ssl-keyfile",
        value_name = "FILE",
        requires = "ssl_cert_file",
        hide_short_help = true
    )]
    ssl_key_file: Option<PathBuf>,
    /// No page at /
    #[arg(long, visible_alias = "no-webui", hide_short_help = true)]
    no_ui: bool,
    /// Show at /slots what is under way
    #[arg(long, overrides_with = "no_slots", hide_short_help = true)]
    slots: bool,
    /// Show nothing there
    #[arg(long, hide_short_help = true)]
    no_slots: bool,
    /// Show no figures at /metrics
    #[arg(long, hide_short_help = true)]
    no_metrics: bool,
    /// Accept POST /props
    #[arg(long, hide_short_help = true)]
    props: bool,
}

/// How much is taken on.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Answers under way at once (also -np); -1 for the default
    #[arg(long, visible_alias = "max-num-seqs", value_name = "N", default_value_t = -1, allow_negative_numbers = true, hide_default_value = true)]
    parallel: i64,
    /// Answers that may wait; more are refused with 503
    #[arg(long, value_name = "N", default_value_t = 256, hide_short_help = true)]
    queue: usize,
    /// Calls of one client under way at once; more are refused with 429
    #[arg(long, value_name = "N", hide_short_help = true)]
    per_client: Option<usize>,
    /// Megabytes of a request at most
    #[arg(long, value_name = "MB", default_value_t = 32, hide_short_help = true)]
    max_body: usize,
    /// Seconds after which a client that neither reads nor writes is gone (also -to)
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        hide_short_help = true
    )]
    timeout: u64,
    /// Seconds after which an idle stream says that it is alive; -1 for never
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 15,
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    sse_ping_interval: i64,
    /// Chats and completions tell how long they took, as `metrics`
    #[arg(long, hide_short_help = true)]
    enable_per_request_metrics: bool,
    /// Tokens whose probabilities are told are called by their ids (`token_id:5`)
    #[arg(long, hide_short_help = true)]
    return_tokens_as_token_ids: bool,
    /// The likeliest tokens that can be told with each token; -1 for all
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    max_logprobs: Option<i64>,
    /// Seconds that answers may go on when the server is told to end
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        hide_short_help = true
    )]
    drain: u64,
    /// Streams tell what they cost, whether asked to or not
    #[arg(long, hide_short_help = true)]
    enable_force_include_usage: bool,
    /// An unknown model is an error, even where only one is served
    #[arg(long, hide_short_help = true)]
    strict_model: bool,
    /// An unknown field of a request is an error
    #[arg(long, hide_short_help = true)]
    strict_fields: bool,
    /// A last message of the assistant is answered rather than continued
    #[arg(long, hide_short_help = true)]
    no_prefill_assistant: bool,
}

/// Many models, of which some are in memory.
#[derive(Debug, Args)]
#[command(next_help_heading = "Several models")]
struct SeveralArgs {
    /// A folder of models, which are loaded when they are asked for
    #[arg(long, value_name = "FOLDER")]
    models_dir: Option<PathBuf>,
    /// Models in memory at once; the one unused longest makes room
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), hide_short_help = true)]
    models_max: Option<u32>,
    /// Memory of all models together, such as 8G [default: nine tenths of what is free]
    #[arg(long, value_name = "SIZE", value_parser = crate::args::size, hide_short_help = true)]
    models_memory: Option<u64>,
    /// Seconds after which a model that nobody uses leaves memory; -1 for never
    #[arg(long, value_name = "SECONDS", default_value_t = -1, allow_negative_numbers = true, hide_short_help = true)]
    sleep_idle_seconds: i64,
    /// Load a model only where POST /v1/models/load asks for that
    #[arg(long, hide_short_help = true)]
    no_models_autoload: bool,
    /// Let callers pull models, and make, copy and remove those of the folder
    #[arg(long, hide_short_help = true)]
    allow_pull: bool,
}

/// What the answer's reasoning is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Reasoning {
    /// Both names.
    Auto,
    /// `reasoning_content`.
    Deepseek,
    /// `reasoning`.
    Vllm,
    /// It is content.
    None,
}

fn pooling(text: &str) -> Result<Pooling, String> {
    Pooling::from_name(text).ok_or_else(|| {
        let names: Vec<&str> = Pooling::ALL.iter().map(|p| p.0).collect();
        format!("found '{text}', expected one of {}", names.join(", "))
    })
}

pub(crate) fn run(args: ServeArgs) -> Result<()> {
    logs::start(args.log_json, args.verbose);
    let keys = args.listen.keys()?;
    let args = Arc::new(args);
    let net = args.vad_model.as_ref().map(Silero::open).transpose()?;
    let budget = args.several.budget();
    let stock = models::stock(&args, budget)?;
    let first = stock.offers.iter().find_map(|offer| match &offer.opened {
        Some(Opened::Text { service, .. }) => service.tokenizer().ok(),
        _ => None,
    });
    let (sampling, _) = args.sampling.sampling(first.map(AsRef::as_ref))?;
    let options = ServerOptions {
        models: args.several.limits(budget),
        vad: net.map(Arc::new),
        ..args.options(keys, sampling)
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("the system gives no threads")?;
    runtime.block_on(async {
        let server = Server::bind(options, stock).await?;
        let scheme = match args.listen.ssl_key_file {
            Some(_) => "https",
            None => "http",
        };
        let place = match server.place() {
            Place::Net(address) => format!("{scheme}://{address}{}", args.listen.api_prefix),
            Place::File(path) => path.display().to_string(),
        };
        // Whoever reads where it listens may end it at once.
        let signals = Signals::new();
        say(&format!("listening on {place}"));
        server.run(told_to_end(signals)).await?;
        say("stopped");
        Ok::<(), anyhow::Error>(())
    })?;
    // A preparation that still runs keeps nobody waiting.
    runtime.shutdown_timeout(Duration::from_millis(200));
    Ok(())
}

impl SeveralArgs {
    /// Bytes of all models together.
    fn budget(&self) -> Option<u64> {
        let usual = || Some(tokkata::memory::available()? / 10 * 9);
        self.models_memory.or_else(usual)
    }

    fn limits(&self, bytes: Option<u64>) -> ModelLimits {
        let idle = u64::try_from(self.sleep_idle_seconds).ok();
        ModelLimits {
            bytes,
            most: self.models_max.map(|n| n as usize),
            idle: idle.filter(|&s| s > 0).map(Duration::from_secs),
            on_request: !self.no_models_autoload,
            changes: self.allow_pull,
            ..ModelLimits::default()
        }
    }
}

impl ListenArgs {
    /// The file to listen at, under vLLM's name or llama.cpp's.
    fn socket(&self) -> Option<PathBuf> {
        let host = Path::new(&self.host);
        let named = host.extension().is_some_and(|e| e == "sock");
        self.uds.clone().or_else(|| named.then(|| host.to_owned()))
    }

    fn keys(&self) -> Result<Vec<String>> {
        let mut keys: Vec<String> = Vec::new();
        if let Some(path) = &self.api_key_file {
            let text = std::fs::read_to_string(path)
                .map_err(|e| anyhow!("{}: cannot be read: {e}", path.display()))?;
            keys.extend(text.lines().map(|l| l.trim().to_owned()));
        }
        let given = self.api_key.iter().flat_map(|k| k.split(','));
        keys.extend(given.map(|k| k.trim().to_owned()));
        keys.retain(|k| !k.is_empty());
        let asked = !self.api_key.is_empty() || self.api_key_file.is_some();
        if asked && keys.is_empty() {
            return Err(usage("found no key, expected at least one"));
        }
        Ok(keys)
    }
}

impl ServeArgs {
    /// How many may be served at once, if that was said.
    fn parallel(&self) -> Option<u32> {
        u32::try_from(self.limits.parallel).ok().filter(|&n| n > 0)
    }

    fn options(&self, keys: Vec<String>, sampling: tokkata::Sampling) -> ServerOptions {
        let (listen, limits) = (&self.listen, &self.limits);
        let ping = u64::try_from(limits.sse_ping_interval).ok();
        let origins = listen.cors_origins.as_deref().unwrap_or_default();
        let origins = origins.split(',').map(|o| o.trim().to_owned());
        let template_names = self.chat_template_kwargs.clone().unwrap_or_default();
        let named = template_names.get("enable_thinking");
        let named = named.and_then(Value::as_bool);
        ServerOptions {
            host: listen.host.clone(),
            port: listen.port,
            socket: listen.socket(),
            prefix: listen.api_prefix.clone(),
            root: listen.root_path.clone(),
            most_logprobs: (limits.max_logprobs).map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
            keys,
            insecure: listen.insecure,
            hosts: Hosts {
                any: listen.allowed_host.iter().any(|h| h == "*"),
                names: listen
                    .allowed_host
                    .iter()
                    .flat_map(|h| h.split(','))
                    .chain(listen.host.split(','))
                    .map(|h| h.trim().to_owned())
                    .collect(),
            },
            cross: Cross {
                origins: origins.filter(|o| !o.is_empty()).collect(),
            },
            queue: limits.queue,
            per_client: limits.per_client,
            body_bytes: limits.max_body.saturating_mul(1 << 20),
            stall: Duration::from_secs(limits.timeout.max(1)),
            ping: ping.filter(|&s| s > 0).map(Duration::from_secs),
            drain: Duration::from_secs(limits.drain),
            sampling,
            seed: self.sampling.seed(),
            ignore_eos: self.sampling.ignores_end(),
            thinking: Thinking {
                on: self.think.on().or(named),
                effort: self.think.effort().map(str::to_owned),
                budget: self.think.budget(),
                message: self.think.message().to_owned(),
            },
            template_names,
            shift: self.shift.kept(usize::MAX),
            verbose: self.verbose,
            usage_always: limits.enable_force_include_usage,
            tells_times: limits.enable_per_request_metrics,
            tokens_by_id: limits.return_tokens_as_token_ids,
            max_tokens: usize::try_from(self.predict).ok(),
            strict_model: limits.strict_model,
            strict_fields: limits.strict_fields,
            prefill: !limits.no_prefill_assistant,
            reasoning: match self.reasoning_format {
                Reasoning::Auto => ReasoningNames::Both,
                Reasoning::Deepseek => ReasoningNames::ReasoningContent,
                Reasoning::Vllm => ReasoningNames::Reasoning,
                Reasoning::None => ReasoningNames::None,
            },
            slots: listen.slots && !listen.no_slots,
            metrics: !listen.no_metrics,
            tls: listen
                .ssl_cert_file
                .clone()
                .zip(listen.ssl_key_file.clone()),
            props: listen.props,
            page: !listen.no_ui,
            ..ServerOptions::default()
        }
    }
}

/// Comes with the first signal to end; a second one ends the program where it stands.
async fn told_to_end(mut signals: Signals) {
    signals.next().await;
    say("ending when the answers under way are done; again to end at once");
    tokio::spawn(async move {
        signals.next().await;
        std::process::exit(130);
    });
}

/// The signals to end, heard from the moment that this is made.
#[cfg(unix)]
struct Signals(Option<[tokio::signal::unix::Signal; 2]>);

#[cfg(unix)]
impl Signals {
    /// Where no handler can be installed, signals end the program as usual.
    fn new() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        let interrupt = signal(SignalKind::interrupt()).ok();
        let terminate = signal(SignalKind::terminate()).ok();
        Signals(interrupt.zip(terminate).map(|(i, t)| [i, t]))
    }

    async fn next(&mut self) {
        let Some([interrupt, terminate]) = &mut self.0 else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> Self {
        Signals
    }

    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}
