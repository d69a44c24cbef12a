//! Flags that several commands share, named as people know them.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde_json::{Map, Value};
use tokkata::drafts::STATES;
use tokkata::placement::{GpuLayers, Placement, Tensors};
use tokkata::{AdapterSource, DType, DraftKind, Drafts, OpenOptions, Preset};

use crate::demo;

/// A command line that makes no sense; exits with 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}; see --help")]
pub(crate) struct Usage(pub(crate) String);

/// An error of usage.
pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}

/// Where a model is downloaded from.
#[cfg_attr(not(feature = "hub"), allow(dead_code))]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// A repository, and perhaps one of its files.
    Repo(&'a str, Option<&'a str>),
    /// The address of a file.
    Url(&'a str),
}

/// How the hub is asked.
#[derive(Debug, Default, Args)]
pub(crate) struct HubArgs {
    /// Proves to the hub who asks (also -hft) [default: HF_TOKEN]
    #[arg(long, value_name = "TOKEN", hide_short_help = true)]
    pub(crate) hf_token: Option<String>,
    /// Ask no hub: models are in the cache or nowhere [default: HF_HUB_OFFLINE]
    #[arg(long, hide_short_help = true)]
    pub(crate) offline: bool,
}

/// Which model, and whatever else stands without a flag.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// The model file or directory; also the first argument without a flag
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// The model of a repository (also -hf), such as user/name or user/name:q4_k_m, downloaded if need be
    #[arg(
        long = "hf-repo",
        value_name = "USER/NAME[:QUANT]",
        conflicts_with = "model"
    )]
    hf_repo: Option<String>,
    /// The file of that repository; a star stands for anything (also -hff)
    #[arg(
        long,
        value_name = "FILE",
        requires = "hf_repo",
        hide_short_help = true
    )]
    hf_file: Option<String>,
    /// The model at an address of the hub (also -mu), downloaded if need be
    #[arg(long, value_name = "URL", conflicts_with_all = ["model", "hf_repo"], hide_short_help = true)]
    model_url: Option<String>,
    #[command(flatten)]
    hub: HubArgs,
    #[arg(skip)]
    pulled: std::sync::OnceLock<PathBuf>,
    /// The model file, unless -m is given, then further values
    #[arg(value_name = "ARGS")]
    rest: Vec<OsString>,
    /// Also know the architectures of this descriptor
    #[arg(long = "arch-file", value_name = "TOML", hide_short_help = true)]
    pub(crate) arch_files: Vec<PathBuf>,
}

impl ModelArgs {
    /// The model file, if one was named, and the remaining arguments.
    pub(crate) fn split_optional(&self) -> Result<(Option<&Path>, &[OsString])> {
        if let Some(path) = self.repository()? {
            return Ok((Some(path), &self.rest));
        }
        Ok(match (&self.model, self.rest.split_first()) {
            (Some(model), _) => (Some(self.known(model)?), &self.rest),
            (None, Some((model, rest))) => (Some(self.known(Path::new(model))?), rest),
            (None, None) => (None, &[]),
        })
    }

    /// The path itself, or the model that people know by this name and that no file has.
    fn known<'a>(&'a self, path: &'a Path) -> Result<&'a Path> {
        let name = path.to_str().filter(|_| !path.exists());
        match name.filter(|name| crate::hub::known(name).is_some()) {
            Some(name) => self.pulled(Source::Repo(name, None)),
            None => Ok(path),
        }
    }

    /// The path of the model of `-hf` or `-mu`, downloaded when it is first asked for.
    fn repository(&self) -> Result<Option<&Path>> {
        let wanted = match (&self.hf_repo, &self.model_url) {
            (Some(repo), _) => Source::Repo(repo, self.hf_file.as_deref()),
            (None, Some(url)) => Source::Url(url),
            (None, None) => return Ok(None),
        };
        self.pulled(wanted).map(Some)
    }

    fn pulled(&self, source: Source<'_>) -> Result<&Path> {
        if let Some(path) = self.pulled.get() {
            return Ok(path);
        }
        let path = crate::hub::pull(source, &self.hub)?;
        Ok(self.pulled.get_or_init(|| path))
    }

    /// How the hub is asked.
    #[cfg(feature = "server")]
    pub(crate) fn hub(&self) -> &HubArgs {
        &self.hub
    }

    /// The path of another model, downloaded from where this one is.
    fn pulled_beside(&self, source: Source<'_>) -> Result<PathBuf> {
        crate::hub::pull(source, &self.hub)
    }

    /// What stands behind `-m`, as a text.
    pub(crate) fn name(&self) -> Option<String> {
        self.model
            .as_ref()
            .map(|m| m.to_string_lossy().into_owned())
    }

    /// The model of `-m`, or of a repository, and all arguments without a flag: those are no models.
    pub(crate) fn named_apart(&self) -> Result<(PathBuf, &[OsString])> {
        if let Some(path) = self.repository()? {
            return Ok((path.to_owned(), &self.rest));
        }
        let missing = "no model was named; give -m FILE, or -m base.en, which is downloaded";
        let model = self.model.as_ref().ok_or_else(|| usage(missing))?;
        let heard = model.to_str().filter(|_| !model.exists());
        let path = match heard.and_then(crate::hub::known_speech) {
            Some((repo, file)) => self.pulled(Source::Repo(repo, Some(&file)))?,
            None => self.known(model)?,
        };
        Ok((path.to_owned(), &self.rest))
    }

    /// Descriptors to know beside the built-in ones.
    pub(crate) fn arch_files(&self) -> &[PathBuf] {
        &self.arch_files
    }

    /// The model file of `-m` alone, and all arguments without a flag.
    pub(crate) fn unsplit(&self) -> (Option<&Path>, &[OsString]) {
        (self.model.as_deref(), &self.rest)
    }

    /// The model file and the remaining arguments.
    pub(crate) fn split(&self) -> Result<(&Path, &[OsString])> {
        let (model, rest) = self.split_optional()?;
        let model =
            model.ok_or_else(|| usage("no model was named; give -m FILE or -hf USER/NAME"))?;
        Ok((model, rest))
    }

    /// The model file, which must be the only argument without a flag.
    pub(crate) fn only_model(&self) -> Result<&Path> {
        let (model, rest) = self.split()?;
        refuse(rest)?;
        Ok(model)
    }
}

/// Refuses arguments that nothing uses.
pub(crate) fn refuse(rest: &[OsString]) -> Result<()> {
    match rest.first() {
        Some(arg) => Err(usage(format!(
            "found the argument '{}', expected flags only",
            arg.display()
        ))),
        None => Ok(()),
    }
}

/// How a model is run.
#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// Where to compute: cpu, cuda:N (NVIDIA), wgpu:N (a GPU of any maker), auto or ref (slow) [default: cpu; auto with -ngl]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Layers of the model that the device takes, the last ones: a number, all, or auto for as many as it has memory for [default: auto]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    gpu_layers: Option<GpuLayers>,
    /// Keep the experts of the first N layers with the processor
    #[arg(long, value_name = "N", hide_short_help = true)]
    n_cpu_moe: Option<u32>,
    /// Keep all experts with the processor
    #[arg(long, hide_short_help = true)]
    cpu_moe: bool,
    /// Keep the dense feed-forward weights of the first N layers with the processor
    #[arg(long, value_name = "N", hide_short_help = true)]
    n_cpu_ffn: Option<u32>,
    /// Keep tensors whose GGUF names match a regular expression with the processor; several are told apart by commas
    #[arg(long, value_name = "REGEX=CPU", value_delimiter = ',', value_parser = kept, hide_short_help = true)]
    override_tensor: Vec<Tensors>,
    /// Use no more than these instruction sets: amx, avx512, avx512bw, avxvnni, avx2, i8mm, dotprod, neon or portable
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    cpu_features: Option<String>,
    /// Keep each thread on a core of its own
    #[arg(long, hide_short_help = true)]
    pin_threads: bool,
    /// Type of cached keys: f32, f16, bf16 or q8_0
    #[arg(long = "cache-type-k", visible_alias = "ctk", value_name = "TYPE", value_parser = cache_type, hide_short_help = true)]
    cache_k: Option<DType>,
    /// Type of cached values; the same as that of the keys
    #[arg(long = "cache-type-v", visible_alias = "ctv", value_name = "TYPE", value_parser = cache_type, hide_short_help = true)]
    cache_v: Option<DType>,
    /// Memory for all caches, such as 512M or 2G [default: whole contexts, as far as the memory allows]
    #[arg(long, value_name = "SIZE", value_parser = size, hide_short_help = true)]
    kv_memory: Option<u64>,
    /// Quantise the weights while they are loaded, such as to q8_0 or q4_k_m
    #[arg(short, long, value_name = "TYPE", value_parser = mix)]
    quantize: Option<&'static Preset>,
    /// A LoRA adapter, GGUF or PEFT's directory; several add up
    #[arg(long = "lora", value_name = "FILE", value_delimiter = ',')]
    lora: Vec<PathBuf>,
    /// A LoRA adapter times a number; several add up
    #[arg(long = "lora-scaled", value_name = "FILE:SCALE", value_delimiter = ',', value_parser = scaled, hide_short_help = true)]
    lora_scaled: Vec<AdapterSource>,
    /// Positions per cache block
    #[arg(long, value_name = "N", hide = true)]
    block_size: Option<NonZeroU32>,
    /// Compute op by op, without fused kernels
    #[arg(long, hide_short_help = true)]
    no_fuse: bool,
    /// Compute from the mapped file, packing weights whenever they are used: little memory, slow
    #[arg(long, hide_short_help = true)]
    no_repack: bool,
}

/// Tensors for the processor.
fn kept(text: &str) -> Result<Tensors, String> {
    let parts = text.rsplit_once('=');
    let pattern = parts.filter(|(_, device)| device.eq_ignore_ascii_case("cpu"));
    let (pattern, _) = pattern.ok_or_else(|| format!("found '{text}', expected REGEX=CPU"))?;
    Tensors::new(pattern).map_err(|e| e.to_string())
}

fn mix(text: &str) -> Result<&'static Preset, String> {
    Preset::from_name(text)
        .ok_or_else(|| format!("found '{text}', expected a mix such as q8_0 or q4_k_m"))
}

/// Bytes: a number, with K, M or G for powers of 1024.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("found '{text}', expected a size such as 512M or 2G");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number
        .checked_shl(shift)
        .filter(|n| n >> shift == number && number > 0)
        .ok_or_else(wrong)
}

/// A file and a number behind its last colon.
fn scaled(text: &str) -> Result<AdapterSource, String> {
    let parts = text.rsplit_once(':');
    let found = parts.and_then(|(path, scale)| Some((path, scale.parse().ok()?)));
    let found = found.filter(|(_, scale): &(_, f32)| scale.is_finite());
    let (path, scale) = found.ok_or_else(|| format!("found '{text}', expected FILE:SCALE"))?;
    Ok(AdapterSource {
        path: path.into(),
        scale,
    })
}

fn cache_type(text: &str) -> Result<DType, String> {
    let known = [DType::F32, DType::F16, DType::BF16, DType::Q8_0];
    let found = DType::from_name(text).filter(|t| known.contains(t));
    found.ok_or_else(|| format!("found '{text}', expected f32, f16, bf16 or q8_0"))
}

impl DeviceArgs {
    /// Options with these choices; `kv` is the cache's type unless one was named.
    pub(crate) fn options(&self, model: &ModelArgs, kv: DType) -> Result<OpenOptions> {
        let (k, v) = (self.cache_k.or(self.cache_v), self.cache_v.or(self.cache_k));
        if k != v {
            return Err(usage(
                "keys and values have different types, expected the same type for both",
            ));
        }
        let path = model.split_optional()?.0.unwrap_or(Path::new(demo::NAME));
        let plain = self.lora.iter().map(AdapterSource::new);
        Ok(OpenOptions {
            device: self.device.clone(),
            placement: self.placement(),
            cpu_features: self.cpu_features.clone(),
            pin_threads: self.pin_threads,
            kv: k.unwrap_or(kv),
            kv_memory: self.kv_memory,
            quantize: self.quantize,
            block_size: self.block_size,
            arch_files: model.arch_files.clone(),
            adapters: plain.chain(self.lora_scaled.iter().cloned()).collect(),
            no_fuse: self.no_fuse,
            no_repack: self.no_repack,
            tuning: crate::tuned::load(path, self.is_for_gpu()),
            ..OpenOptions::default()
        })
    }

    /// Whether all of the model is asked for on a GPU.
    fn is_for_gpu(&self) -> bool {
        let device = self.device.as_deref().unwrap_or_default();
        let gpu = ["cuda", "wgpu"].iter().any(|kind| device.starts_with(kind));
        let all = matches!(self.gpu_layers, None | Some(GpuLayers::All));
        gpu && all
    }

    fn placement(&self) -> Placement {
        let experts = self.cpu_moe.then_some(u32::MAX).or(self.n_cpu_moe);
        Placement {
            layers: self.gpu_layers.unwrap_or_default(),
            cpu_experts: experts.unwrap_or(0),
            cpu_ffn: self.n_cpu_ffn.unwrap_or(0),
            cpu_tensors: self.override_tensor.clone(),
        }
    }
}

/// How many threads compute.
#[derive(Debug, Args)]
pub(crate) struct ThreadArgs {
    /// Threads; -1 for the default [default: one per physical core]
    #[arg(short, long, value_name = "N", value_parser = threads, allow_negative_numbers = true)]
    threads: Option<i64>,
}

impl ThreadArgs {
    /// How many, if it was said.
    pub(crate) fn count(&self) -> Option<usize> {
        self.threads.and_then(|n| usize::try_from(n).ok())
    }
}

/// The most threads that are started: more would only wait for each other.
pub(crate) fn most_threads() -> usize {
    const ALWAYS: usize = 64;
    const PER_PROCESSOR: usize = 4;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    ALWAYS.max(PER_PROCESSOR * processors)
}

/// A number of threads, or -1.
pub(crate) fn threads(text: &str) -> Result<i64, String> {
    let most = most_threads();
    let number = text.parse().ok().filter(|&n: &i64| n == -1 || n >= 1);
    let number = number.filter(|&n| n <= most as i64);
    number.ok_or_else(|| format!("found {text}, expected 1 to {most}, or -1 for the default"))
}

/// A server that is asked rather than a model that is loaded.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerArgs {
    /// Ask this server; -m names one of its models
    #[arg(long, value_name = "URL", hide_short_help = true, conflicts_with_all = ["constraint", "tools", "quantize", "lora", "device", "hf_repo", "model_url", "output"])]
    pub(crate) server: Option<String>,
    /// The server's key
    #[arg(long, value_name = "KEY", requires = "server", hide_short_help = true)]
    pub(crate) api_key: Option<String>,
}

/// Sizes of a run.
#[derive(Debug, Args)]
pub(crate) struct SizeArgs {
    #[command(flatten)]
    threads: ThreadArgs,
    /// Tokens of context; 0 for as many as the model was trained for [default: the model's, at most 4096]
    #[arg(short, long = "ctx-size", value_name = "N")]
    ctx: Option<u32>,
    /// Accepted for llama.cpp's sake; steps are at most --ubatch-size rows
    #[arg(short, long, value_name = "N", hide = true)]
    batch_size: Option<u32>,
    /// Rows of a step
    #[arg(long, value_name = "N", default_value_t = 512, hide_short_help = true)]
    ubatch_size: u32,
}

impl SizeArgs {
    /// Sets what these flags say; `trained` is the model's own context.
    pub(crate) fn apply(&self, options: &mut OpenOptions, trained: Option<u32>) -> Result<()> {
        options.threads = self.threads.count();
        options.rows = self.batch_size.unwrap_or(u32::MAX).min(self.ubatch_size);
        options.ctx = match self.ctx {
            Some(0) => trained.and_then(NonZeroU32::new),
            other => other.and_then(NonZeroU32::new),
        };
        if options.rows == 0 {
            return Err(usage("found 0, expected at least 1 for --ubatch-size"));
        }
        Ok(())
    }
}

/// How several tokens are guessed at once, which changes no text.
#[derive(Debug, Args)]
pub(crate) struct DraftArgs {
    /// Who guesses the next tokens, so that a step gives several: ngram, mtp, draft, eagle3, dflash, auto or none
    #[arg(long, value_name = "TYPE", value_delimiter = ',', default_value = "auto", value_parser = draft_kind, hide_short_help = true)]
    spec_type: Vec<Guesses>,
    /// A smaller model that guesses, or a drafter of EAGLE-3 or DFlash (also -md)
    #[arg(
        long,
        visible_alias = "spec-draft-model",
        value_name = "FILE",
        hide_short_help = true
    )]
    model_draft: Option<PathBuf>,
    /// The same, of a repository (also -hfd)
    #[arg(
        long,
        visible_alias = "spec-draft-hf",
        value_name = "USER/NAME[:QUANT]",
        conflicts_with = "model_draft",
        hide_short_help = true
    )]
    hf_repo_draft: Option<String>,
    /// Tokens of a guess at most; as many of them are tried as pay [default: 8; 4 for models with states]
    #[arg(long, value_name = "N", hide_short_help = true)]
    spec_draft_n_max: Option<u32>,
    /// For measurements of speed: the share of guesses at each place that is taken for right; the text is none then
    #[arg(
        long,
        value_name = "P,P,…",
        value_delimiter = ',',
        hide_short_help = true
    )]
    spec_synth_rates: Option<Vec<f64>>,
}

/// Who guesses, as people say it.
#[derive(Clone, Copy, Debug)]
enum Guesses {
    Nobody,
    Ngram,
    Head,
    Model,
    States,
    /// Whoever there is.
    Auto,
}

/// Kinds of drafters that others have, with or without "draft-" before them.
const OTHERS: &str = "dspark dflash2";

fn draft_kind(text: &str) -> Result<Guesses, String> {
    let other = text.strip_prefix("draft-").unwrap_or(text);
    match text {
        "none" => Ok(Guesses::Nobody),
        "auto" => Ok(Guesses::Auto),
        "draft" | "draft-simple" => Ok(Guesses::Model),
        "ngram" | "ngram-simple" | "ngram-map-k" | "ngram-map-k4v" | "ngram-mod"
        | "ngram-cache" => Ok(Guesses::Ngram),
        "mtp" | "draft-mtp" => Ok(Guesses::Head),
        _ if STATES.contains(&other) => Ok(Guesses::States),
        _ if OTHERS.split(' ').any(|name| name == other) => Err(format!(
            "found '{text}', which cannot guess yet, expected ngram, mtp, draft, eagle3, dflash, auto or none"
        )),
        _ => Err(format!(
            "found '{text}', expected ngram, mtp, draft, eagle3, dflash, auto or none"
        )),
    }
}

impl DraftArgs {
    /// Sets what these flags say.
    pub(crate) fn apply(&self, model: &ModelArgs, options: &mut OpenOptions) -> Result<()> {
        let draft = match &self.hf_repo_draft {
            Some(repo) => Some(model.pulled_beside(Source::Repo(repo, None))?),
            None => self.model_draft.clone(),
        };
        let mut kinds = Vec::new();
        for &kind in &self.spec_type {
            kinds.extend(match kind {
                Guesses::Nobody => &[][..],
                Guesses::Ngram => &[DraftKind::Ngram],
                Guesses::Head => &[DraftKind::Head],
                Guesses::Model => &[DraftKind::Model],
                Guesses::States => &[DraftKind::States],
                Guesses::Auto if draft.is_some() => &[DraftKind::Ngram, DraftKind::Model],
                Guesses::Auto => &[DraftKind::Ngram, DraftKind::Head],
            });
        }
        kinds.dedup();
        let needs = [DraftKind::Model, DraftKind::States];
        if kinds.iter().any(|kind| needs.contains(kind)) && draft.is_none() {
            return Err(usage(
                "found a --spec-type that guesses by another model, and none, expected --model-draft",
            ));
        }
        if self.spec_draft_n_max == Some(0) {
            kinds.clear();
        }
        options.drafts = Drafts {
            kinds,
            most: self.spec_draft_n_max.and_then(NonZeroU32::new),
            model: draft,
            pretended: self.spec_synth_rates.clone(),
        };
        Ok(())
    }
}

/// Where a prompt comes from.
#[derive(Debug, Args)]
pub(crate) struct PromptArgs {
    /// The prompt; given again, each is another turn of a chat
    #[arg(short, long, value_name = "TEXT")]
    prompt: Vec<OsString>,
    /// Read the prompt from a file (less one newline at its end); - for standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Read \n, \t, \\, \' and \" in the prompt as what they stand for (also -e)
    #[arg(long, hide_short_help = true)]
    escape: bool,
}

impl PromptArgs {
    /// The name of the prompt's file.
    pub(crate) fn name(&self) -> Option<String> {
        self.file.as_ref().map(|path| path.display().to_string())
    }

    /// The prompts as bytes: of the flags, or else of the arguments without one.
    pub(crate) fn read(&self, rest: &[OsString]) -> Result<Vec<Vec<u8>>> {
        self.read_with(rest, read_file)
    }

    /// The same, with files just as they are.
    pub(crate) fn read_exact(&self, rest: &[OsString]) -> Result<Vec<Vec<u8>>> {
        self.read_with(rest, read_bytes)
    }

    fn read_with(
        &self,
        rest: &[OsString],
        read: fn(&Path) -> Result<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>> {
        let mut prompts: Vec<Vec<u8>> = self.prompt.iter().map(bytes_of).collect();
        prompts.extend(rest.iter().map(bytes_of));
        if let Some(path) = &self.file {
            prompts.insert(0, read(path)?);
        }
        if self.escape {
            prompts = prompts.iter().map(|p| unescaped(p)).collect();
        }
        Ok(prompts)
    }
}

/// Text in which a backslash and the letter after it stand for one byte; other backslashes stay.
fn unescaped(text: &[u8]) -> Vec<u8> {
    const LETTERS: [(u8, u8); 6] = [
        (b'n', b'\n'),
        (b't', b'\t'),
        (b'r', b'\r'),
        (b'\\', b'\\'),
        (b'\'', b'\''),
        (b'"', b'"'),
    ];
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let meant = after.first().filter(|_| first == b'\\');
        let meant = meant.and_then(|c| LETTERS.iter().find(|l| l.0 == *c));
        out.push(meant.map_or(first, |l| l.1));
        rest = &rest[1 + usize::from(meant.is_some())..];
    }
    out
}

#[cfg(unix)]
pub(crate) fn bytes_of(text: &OsString) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    text.as_bytes().to_vec()
}

#[cfg(not(unix))]
pub(crate) fn bytes_of(text: &OsString) -> Vec<u8> {
    text.to_string_lossy().into_owned().into_bytes()
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = read_bytes(path)?;
    if path != Path::new("-") && bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    Ok(bytes)
}

/// The bytes of a file; `-` for standard input.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    if path == Path::new("-") {
        return read_stdin();
    }
    std::fs::read(path).map_err(|e| anyhow::anyhow!("{}: cannot be read: {e}", path.display()))
}

/// Everything that comes in on standard input.
pub(crate) fn read_stdin() -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::stdin(), &mut bytes)?;
    Ok(bytes)
}

/// A JSON object.
pub(crate) fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|e| format!("found no JSON object: {e}"))
}

/// Token ids written `1,2,3` or `[1, 2, 3]`.
pub(crate) fn token_ids(text: &str) -> Result<Vec<u32>, String> {
    let inner = text.trim().trim_start_matches('[').trim_end_matches(']');
    let ids = inner
        .split([',', ' '])
        .map(str::trim)
        .filter(|t| !t.is_empty());
    ids.map(|t| {
        t.parse()
            .map_err(|_| format!("found '{t}', expected token ids such as 1,2,3"))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!((size("3g"), size("7")), (Ok(3 << 30), Ok(7)));
        for wrong in ["", "G", "0", "2T", "1.5G", "99999999999999G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn escapes_stand_for_bytes() {
        let read = |text: &str| String::from_utf8(unescaped(text.as_bytes())).expect("UTF-8");
        assert_eq!(read(r"a\nb\t\\n"), "a\nb\t\\n");
        assert_eq!(read(r"\x \"), r"\x \");
    }

    #[test]
    fn threads_are_counted_within_reason() {
        assert_eq!((threads("-1"), threads("2")), (Ok(-1), Ok(2)));
        for wrong in ["0", "-2", "10000", "4294967295", "x"] {
            assert!(
                threads(wrong).unwrap_err().contains("expected 1 to"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn ids_are_read_with_and_without_brackets() {
        assert_eq!(token_ids("1,2, 3"), Ok(vec![1, 2, 3]));
        assert_eq!(token_ids("[1, 2]"), Ok(vec![1, 2]));
        assert!(token_ids("1,x").unwrap_err().contains("'x'"));
    }
}
