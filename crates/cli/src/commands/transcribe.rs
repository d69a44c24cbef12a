//! `transcribe`: speech as text, with whisper.cpp's flags where people know them.

mod output;
mod vad;

use std::collections::VecDeque;
use std::io::Write;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use clap::Args;
use tokkata::DType;
use tokkata::audio::{Mix, Recording, Source};
use tokkata::speech::{Heard, Room, Sound, Transcriber, Whole, Work};
use tokkata::transcript::format::{About, clock};
use tokkata::transcript::{Options, Segment};

use super::examples;
use crate::args::{DeviceArgs, ModelArgs, ThreadArgs, usage};
use crate::console::{Wait, say};
use crate::interrupt::Interrupt;
use crate::load;
use crate::progress::Bar;

use output::OutputArgs;
use vad::{Cutter, VadArgs};

/// Flags of `transcribe`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::TRANSCRIBE)]
pub(crate) struct TranscribeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A recording; also the arguments without a flag. - is raw 16-bit PCM at 16 kHz from standard input, as it comes
    #[arg(short, long, value_name = "AUDIO")]
    file: Vec<PathBuf>,
    /// The language spoken, as a code or a name, or auto
    #[arg(short, long, value_name = "LANG", default_value = "auto")]
    language: String,
    /// Say which language is spoken, and no more (also -dl)
    #[arg(long)]
    detect_language: bool,
    /// Give English, whatever is spoken (also -tr)
    #[arg(long)]
    translate: bool,
    /// A text that stands before: names and spellings to expect
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Put that text before every window
    #[arg(long, requires = "prompt")]
    carry_initial_prompt: bool,
    /// Beams of the search; 1 takes the likeliest token (also -bs)
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=16))]
    beam_size: u32,
    /// Texts drawn at once where the first was no good (also -bo)
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=16))]
    best_of: u32,
    /// Finished beams that end a search, by their number
    #[arg(long, value_name = "X", default_value_t = 1.0, hide_short_help = true)]
    patience: f32,
    /// The exponent of the length in judging beams; their mean without it
    #[arg(long, value_name = "X", hide_short_help = true)]
    length_penalty: Option<f32>,
    /// The first temperature (also -tp)
    #[arg(long, value_name = "T", default_value_t = 0.0, hide_short_help = true)]
    temperature: f32,
    /// What each further try adds to the temperature (also -tpi)
    #[arg(long, value_name = "T", default_value_t = 0.2, hide_short_help = true)]
    temperature_inc: f32,
    /// Try no window twice (also -nf)
    #[arg(long)]
    no_fallback: bool,
    /// Try again where a text is more repetitive than this
    #[arg(long, value_name = "X", default_value_t = 2.4, hide_short_help = true)]
    compression_ratio: f32,
    /// Try again where a text is less likely than this (also -lpt)
    #[arg(long = "logprob-thold", value_name = "X", default_value_t = -1.0, allow_negative_numbers = true, hide_short_help = true)]
    logprob: f32,
    /// A window is silent where that is likelier than this (also -nth)
    #[arg(
        long = "no-speech-thold",
        value_name = "P",
        default_value_t = 0.6,
        hide_short_help = true
    )]
    no_speech: f32,
    /// Do not tell a window what was said before it
    #[arg(long)]
    no_context: bool,
    /// Stretches to hear, in seconds: from,to,from,to
    #[arg(long, value_name = "SECONDS", value_delimiter = ',')]
    clip_timestamps: Vec<f64>,
    /// Begin this many milliseconds in (also -ot)
    #[arg(
        long = "offset-t",
        value_name = "MS",
        default_value_t = 0,
        hide_short_help = true
    )]
    offset: u64,
    /// Hear this many milliseconds (also -d)
    #[arg(long, value_name = "MS", hide_short_help = true)]
    duration: Option<u64>,
    /// Two channels are two speakers (also -di)
    #[arg(long)]
    diarize: bool,
    /// Windows of so many recordings, or parts of one, are heard side by side
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    parallel: u32,
    /// Skip silence longer than this around what may be no speech, in seconds; times words
    #[arg(
        long = "hallucination-silence-threshold",
        value_name = "SECONDS",
        hide_short_help = true
    )]
    skip_silence: Option<f64>,
    /// Allow brackets, notes and other signs that are no speech
    #[arg(long, hide_short_help = true)]
    no_suppress_nst: bool,
    /// Seeds what is drawn
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 0,
        hide_short_help = true
    )]
    seed: u64,
    #[command(flatten)]
    vad: VadArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// A part of a recording that is heard by itself.
#[derive(Clone, Debug)]
struct Part {
    /// Which of the files.
    file: usize,
    speaker: Option<usize>,
    clips: Vec<f64>,
}

/// What is known of a file.
#[derive(Default)]
struct Found {
    parts: usize,
    done: Vec<(Option<usize>, Whole)>,
    frames: usize,
    heard: usize,
    failed: bool,
}

pub(crate) fn run(args: &TranscribeArgs) -> Result<()> {
    let (model, rest) = args.model.named_apart()?;
    let files: Vec<PathBuf> = rest
        .iter()
        .map(PathBuf::from)
        .chain(args.file.clone())
        .collect();
    if files.is_empty() {
        return Err(usage(
            "no recording was named; give files, or - for standard input",
        ));
    }
    let cutter = args.vad.cutter()?;
    if cutter.is_some() && files.iter().any(|file| file == Path::new("-")) {
        return Err(usage(
            "--vad cuts recordings, and standard input is heard as it comes; name a file, or leave --vad out",
        ));
    }
    let checkpoint = load::checkpoint(&model, args.model.arch_files())?;
    let mut options = args.device.options(&args.model, DType::F16)?;
    options.threads = args.threads.count();
    let widest = args
        .beam_size
        .max(if args.no_fallback { 1 } else { args.best_of });
    let words = args.output.needs_words() || args.skip_silence.is_some();
    let room = Room {
        windows: args.parallel,
        hypotheses: widest,
        words,
    };
    let name = load::name_of(checkpoint.path());
    let mut transcriber = {
        let wait = Wait::new(format!("loading {name}"));
        let progress = |done, total| {
            wait.set(done, total);
            std::ops::ControlFlow::Continue(())
        };
        Transcriber::load(checkpoint, &options, room, Some(&progress))?
    };
    let language = match args.language.as_str() {
        "auto" => None,
        word => Some(transcriber.abilities().language(word)?),
    };
    if args.translate && !transcriber.abilities().tokens().is_multilingual() {
        let file = model.display().to_string();
        return Err(tokkata::Error::EnglishOnly { file }.into());
    }
    let asked = args.options(language.unwrap_or("en"), words);
    let mut run = Run {
        args,
        cutter,
        files: &files,
        found: files.iter().map(|_| Found::default()).collect(),
        parts: Vec::new(),
        about: About {
            model: name,
            language: String::new(),
            translate: args.translate,
        },
        failures: 0,
    };
    run.all(&mut transcriber, &asked, language.is_none())?;
    match run.failures {
        0 => Ok(()),
        n => Err(anyhow!(
            "{n} of {} recordings could not be transcribed",
            files.len()
        )),
    }
}

impl TranscribeArgs {
    fn options(&self, language: &str, words: bool) -> Options {
        let more = (1..).map(|i| self.temperature + self.temperature_inc * i as f32);
        let more = more.take_while(|&t| t <= 1.0 + 1e-6);
        let mut temperatures = vec![self.temperature];
        if !self.no_fallback && self.temperature_inc > 0.0 {
            temperatures.extend(more);
        }
        let mut clips = self.clip_timestamps.clone();
        if clips.is_empty() && (self.offset > 0 || self.duration.is_some()) {
            let from = self.offset as f64 / 1000.0;
            clips.push(from);
            clips.extend(self.duration.map(|d| from + d as f64 / 1000.0));
        }
        Options {
            language: language.to_owned(),
            translate: self.translate,
            temperatures,
            best_of: self.best_of as usize,
            beams: (self.beam_size > 1).then_some(self.beam_size as usize),
            patience: self.patience,
            length_penalty: self.length_penalty,
            ratio: Some(self.compression_ratio),
            logprob: Some(self.logprob),
            no_speech: Some(self.no_speech),
            carry: !self.no_context,
            prompt: self.prompt.clone(),
            carry_prompt: self.carry_initial_prompt,
            no_timestamps: false,
            suppress_non_speech: !self.no_suppress_nst,
            clips,
            words,
            skip_silence: self.skip_silence,
            seed: self.seed,
            ..Options::default()
        }
    }
}

/// All recordings of one call.
struct Run<'a> {
    args: &'a TranscribeArgs,
    cutter: Option<Cutter>,
    files: &'a [PathBuf],
    found: Vec<Found>,
    /// By the number that the transcriber gives.
    parts: Vec<Part>,
    about: About,
    failures: usize,
}

/// What one side of a file holds: who speaks there, and which pieces of it are heard.
struct Side {
    speaker: Option<usize>,
    recording: Recording,
    clips: Vec<Vec<f64>>,
}

/// The sides of a file that are heard.
fn open(
    args: &TranscribeArgs,
    cutter: Option<&Cutter>,
    path: &Path,
    bands: usize,
) -> Result<Vec<Side>> {
    let source = Source::file(path);
    let channels = match args.diarize {
        true => source.channels()?,
        false => 1,
    };
    if args.diarize && channels < 2 {
        return Err(anyhow!(
            "{}: found one channel, expected two for two speakers; leave --diarize out",
            path.display()
        ));
    }
    let mixes: Vec<(Option<usize>, Mix)> = match args.diarize {
        true => (0..channels).map(|c| (Some(c), Mix::Channel(c))).collect(),
        false => vec![(None, Mix::Mean)],
    };
    let side = |(speaker, mix)| {
        let bands = tokkata::audio::Bands::slaney(bands);
        let recording = Recording::measure(source.clone(), mix, bands)?;
        let clips = match cutter {
            Some(cutter) => cutter.clips(&recording)?,
            None => vec![Vec::new()],
        };
        Ok(Side {
            speaker,
            recording,
            clips,
        })
    };
    mixes.into_iter().map(side).collect()
}

impl Run<'_> {
    fn all(&mut self, transcriber: &mut Transcriber, asked: &Options, detect: bool) -> Result<()> {
        let interrupt = Interrupt::catch();
        let mut bar = Bar::new("transcribing");
        let mut waiting: VecDeque<(Part, Recording)> = VecDeque::new();
        let bands = transcriber.abilities().bands();
        let (args, files) = (self.args, self.files);
        let cutter = self.cutter.take();
        let cutter = cutter.as_ref();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let most = cores.min(args.parallel as usize).max(1);
        let cell = std::cell::RefCell::new(self);
        std::thread::scope(|scope| {
            // Files are measured before they are asked for, while others are heard.
            let mut ahead = VecDeque::new();
            let mut unopened = files.iter().enumerate();
            let mut next = || loop {
                let mut run = cell.borrow_mut();
                if let Some((part, recording)) = waiting.pop_front() {
                    let mut options = asked.clone();
                    if !part.clips.is_empty() {
                        options.clips.clone_from(&part.clips);
                        options.carry &= cutter.is_none();
                    }
                    run.parts.push(part);
                    return Some(Work {
                        sound: Sound::Recording(recording),
                        options,
                        detect,
                        dropped: Arc::default(),
                    });
                }
                let room = (most + 1).saturating_sub(ahead.len());
                for (file, path) in unopened.by_ref().take(room) {
                    let is_file = path != Path::new("-");
                    let measure = move || open(args, cutter, path, bands);
                    ahead.push_back((file, is_file.then(|| scope.spawn(measure))));
                }
                let (file, measured) = ahead.pop_front()?;
                let Some(measured) = measured else {
                    run.found[file].parts = 1;
                    run.parts.push(Part {
                        file,
                        speaker: None,
                        clips: Vec::new(),
                    });
                    return Some(Work {
                        sound: Sound::Live(Box::new(std::io::stdin())),
                        options: asked.clone(),
                        detect,
                        dropped: Arc::default(),
                    });
                };
                let sides = measured.join().unwrap_or_else(|panic| resume_unwind(panic));
                match sides.and_then(|sides| run.take(file, sides)) {
                    Ok(parts) => waiting.extend(parts),
                    Err(error) => run.fail(file, &error),
                }
            };
            let mut failure = None;
            let mut on = |number: usize, heard: Heard| {
                let mut run = cell.borrow_mut();
                if let Err(error) = run.hear(number, heard, &mut bar) {
                    failure = Some(error);
                    return false;
                }
                interrupt.check().is_continue()
            };
            transcriber.transcribe(&mut |_| next().into(), &mut on)?;
            failure.map_or(Ok(()), Err)
        })
    }

    /// The parts of a file that are heard.
    fn take(&mut self, file: usize, sides: Vec<Side>) -> Result<Vec<(Part, Recording)>> {
        let mut parts = Vec::new();
        for side in sides {
            self.found[file].frames += side.recording.frames();
            for clips in side.clips {
                let part = Part {
                    file,
                    speaker: side.speaker,
                    clips,
                };
                parts.push((part, side.recording.clone()));
            }
        }
        self.found[file].parts = parts.len();
        if parts.is_empty() {
            self.write(file)?;
        }
        Ok(parts)
    }

    fn fail(&mut self, file: usize, error: &anyhow::Error) {
        if !std::mem::replace(&mut self.found[file].failed, true) {
            self.failures += 1;
            say(&format!("tokkata: {error}"));
        }
    }

    fn hear(&mut self, number: usize, heard: Heard, bar: &mut Bar) -> Result<()> {
        let part = self.parts[number].clone();
        match heard {
            Heard::Language(code, probability) => {
                if self.args.detect_language {
                    let path = self.files[part.file].display();
                    let name = tokkata::transcript::language::name(code).unwrap_or(code);
                    writeln!(
                        std::io::stdout(),
                        "{path}: {code} ({name}), {:.1} %",
                        probability * 100.0
                    )?;
                } else if !self.args.output.quiet() {
                    say(&format!(
                        "{}: language {code}",
                        self.files[part.file].display()
                    ));
                }
            }
            Heard::Segments(segments, done) => {
                let alone = self.files.len() == 1 && self.found[part.file].parts == 1;
                if alone && self.args.output.streams() {
                    self.print(&segments, None)?;
                }
                let total: usize = self.found.iter().map(|f| f.frames).sum();
                self.found[part.file].heard = self.found[part.file].heard.max(done);
                let heard: usize = self.found.iter().map(|f| f.heard).sum();
                bar.set(heard as u64, total.max(1) as u64);
            }
            Heard::Done(whole) => {
                self.found[part.file].done.push((part.speaker, whole));
                if self.found[part.file].done.len() == self.found[part.file].parts {
                    self.write(part.file)?;
                }
            }
            Heard::Failed(error) => self.fail(part.file, &error.into()),
        }
        Ok(())
    }

    fn print(&self, segments: &[Segment], speaker: Option<usize>) -> Result<()> {
        let segments = self.args.output.cut(segments);
        let mut out = std::io::stdout().lock();
        for s in segments.iter().filter(|s| !s.text.trim().is_empty()) {
            let who = speaker.map_or(String::new(), |n| format!("(speaker {n})"));
            if self.args.output.plain() {
                writeln!(out, "{who}{}", s.text.trim())?;
            } else {
                let (from, to) = (clock(s.start, '.'), clock(s.end, '.'));
                writeln!(out, "[{from} --> {to}]  {who}{}", s.text)?;
            }
        }
        out.flush()?;
        Ok(())
    }

    /// Writes what was asked for of a file that is done.
    fn write(&mut self, file: usize) -> Result<()> {
        let done = std::mem::take(&mut self.found[file].done);
        if self.args.detect_language || self.found[file].failed {
            return Ok(());
        }
        let mut all: Vec<(Option<usize>, Segment)> = Vec::new();
        for (speaker, whole) in &done {
            self.about.language.clone_from(&whole.language);
            all.extend(whole.segments.iter().map(|s| (*speaker, s.clone())));
        }
        all.sort_by(|a, b| a.1.start.total_cmp(&b.1.start));
        let streamed =
            self.files.len() == 1 && self.found[file].parts == 1 && self.args.output.streams();
        if !streamed && self.args.output.prints() {
            if self.files.len() > 1 {
                writeln!(std::io::stdout(), "{}:", self.files[file].display())?;
            }
            for (speaker, segment) in &all {
                self.print(std::slice::from_ref(segment), *speaker)?;
            }
        }
        let named = |(speaker, mut s): (Option<usize>, Segment)| {
            if let Some(n) = speaker.filter(|_| !s.text.trim().is_empty()) {
                s.text = format!("(speaker {n}){}", s.text);
            }
            s
        };
        let segments: Vec<Segment> = all.into_iter().map(named).collect();
        let segments = self.args.output.cut(&segments);
        for format in self.args.output.formats() {
            let path = self.args.output.path(&self.files[file], format);
            let text = format.write(&segments, &self.about);
            std::fs::write(&path, text)
                .map_err(|e| anyhow!("{}: cannot be written: {e}", path.display()))?;
        }
        Ok(())
    }
}
