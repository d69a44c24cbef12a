//! `/v1/audio/transcriptions`, `/v1/audio/translations`, and whisper.cpp's `/inference`.

mod cuts;

use std::sync::Arc;

use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokkata::audio::vad::{self, Rules};
use tokkata::audio::{Mix, Recording, Silero, Source};
use tokkata::speech::{Heard, Whole};
use tokkata::transcript::format::{About, Format, verbose};
use tokkata::transcript::{Options, Segment, WINDOW};

use crate::app::{App, Json, Shared, aside};
use crate::error::{ApiError, Result};
use crate::multipart::{Part, boundary, parts};
use crate::speech::{Hearing, Listening};
use crate::sse::{self, Gone, Sender};

/// How a transcript is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Json,
    Verbose,
    Text,
    Srt,
    Vtt,
}

/// Who asks, and with which defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manners {
    OpenAi,
    /// English is wanted, whatever is spoken.
    Translation,
    /// whisper.cpp's server.
    Inference,
}

/// What was asked.
struct Asked {
    model: Option<String>,
    file: Part,
    language: Option<String>,
    shape: Shape,
    /// The verbose form has words, and has segments.
    words: bool,
    segments: bool,
    stream: bool,
    /// Windows are cut where nobody speaks, by these rules.
    cuts: Option<Rules>,
    options: Options,
}

/// Writes down what is spoken.
pub(crate) async fn transcriptions(app: Shared, request: Request) -> Result<Response> {
    answer(app, request, Manners::OpenAi).await
}

/// Writes it down in English.
pub(crate) async fn translations(app: Shared, request: Request) -> Result<Response> {
    answer(app, request, Manners::Translation).await
}

/// The same for whisper.cpp's clients.
pub(crate) async fn inference(app: Shared, request: Request) -> Result<Response> {
    answer(app, request, Manners::Inference).await
}

async fn answer(app: Shared, request: Request, manners: Manners) -> Result<Response> {
    let State(app) = app;
    let form = form(&app, request).await?;
    let net = app.options.vad.clone();
    let asked = Asked::read(form, manners, net.is_some())?;
    let model = app.fleet.speech(asked.model.as_deref()).await?;
    let (recording, asked) = {
        let model = Arc::clone(&model);
        aside(move || recorded(&model, net.as_deref(), asked)).await?
    };
    let transcript = Transcript {
        seconds: recording.seconds(),
        shape: asked.shape,
        words: asked.words,
        segments: asked.segments,
        about: About {
            model: model.id.clone(),
            language: asked.options.language.clone(),
            translate: asked.options.translate,
        },
    };
    let (stream, detects) = (asked.stream, asked.language.is_none());
    let listening = model.listen(recording, asked.options, detects)?;
    // The model stays in memory as long as somebody listens.
    if stream {
        return Ok(sse::respond(app.events(), |sender| {
            tell(listening, (transcript, model), sender)
        }));
    }
    let whole = whole(listening).await?;
    drop(model);
    Ok(transcript.respond(&whole))
}

async fn form(app: &App, request: Request) -> Result<Vec<Part>> {
    let (head, body) = request.into_parts();
    let boundary = boundary(&head.headers).ok_or_else(|| {
        let text = "expected a form with a file: multipart/form-data";
        ApiError::invalid(text).with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE)
    })?;
    let most = app.options.body_bytes;
    let bytes = tokio::time::timeout(app.options.stall, to_bytes(body, most)).await;
    let late = |_| {
        ApiError::invalid("the body did not come in time").with_status(StatusCode::REQUEST_TIMEOUT)
    };
    let bytes = bytes.map_err(late)?.map_err(|_| {
        let text = format!("the body could not be read, or has more than {most} bytes");
        ApiError::invalid(text).with_status(StatusCode::PAYLOAD_TOO_LARGE)
    })?;
    parts(&bytes, &boundary)
}

/// The texts of a form, field by field.
struct Texts(Vec<(String, String)>);

impl Texts {
    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(n, _)| n == name)?;
        Some(self.0.remove(at).1).filter(|t| !t.is_empty())
    }

    fn take_all(&mut self, names: &[&str]) -> Vec<String> {
        let (own, rest) = std::mem::take(&mut self.0)
            .into_iter()
            .partition(|(n, _)| names.contains(&n.as_str()));
        self.0 = rest;
        let own: Vec<(String, String)> = own;
        own.into_iter().map(|(_, text)| text).collect()
    }

    fn number<T: std::str::FromStr>(&mut self, name: &str, what: &str) -> Result<Option<T>> {
        let Some(text) = self.take(name) else {
            return Ok(None);
        };
        let wrong = || ApiError::field(name, format!("found '{text}', expected {what}"));
        text.trim().parse().map(Some).map_err(|_| wrong())
    }

    fn boolean(&mut self, name: &str) -> Result<Option<bool>> {
        match self.take(name).as_deref() {
            None => Ok(None),
            Some("true" | "True" | "1" | "on") => Ok(Some(true)),
            Some("false" | "False" | "0" | "off") => Ok(Some(false)),
            Some(other) => Err(ApiError::field(
                name,
                format!("found '{other}', expected true or false"),
            )),
        }
    }
}

impl Asked {
    fn read(form: Vec<Part>, manners: Manners, net: bool) -> Result<Self> {
        let (mut files, texts): (Vec<Part>, Vec<Part>) =
            form.into_iter().partition(|p| p.name == "file");
        let file = match files.len() {
            1 => files.remove(0),
            n => {
                return Err(ApiError::field(
                    "file",
                    format!("found {n} files, expected one"),
                ));
            }
        };
        let texts: Result<Vec<(String, String)>> = texts
            .into_iter()
            .map(|part| Ok((part.name.clone(), part.text()?)))
            .collect();
        let mut texts = Texts(texts?);
        let shape = shape(texts.take("response_format").as_deref())?;
        let grains = texts.take_all(&["timestamp_granularities[]", "timestamp_granularities"]);
        if let Some(other) = grains
            .iter()
            .find(|g| !["word", "segment"].contains(&g.as_str()))
        {
            let text = format!("found '{other}', expected word or segment");
            return Err(ApiError::field("timestamp_granularities", text));
        }
        let words = grains.iter().any(|g| g == "word");
        let options = options(&mut texts, manners, words || manners == Manners::Inference)?;
        let asked = Asked {
            model: texts.take("model"),
            file,
            language: texts.take("language").filter(|l| l != "auto"),
            shape,
            words: words || manners == Manners::Inference,
            segments: grains.is_empty() || grains.iter().any(|g| g == "segment"),
            stream: texts.boolean("stream")?.unwrap_or(false),
            cuts: cuts::cuts(&mut texts, manners, net)?,
            options,
        };
        let wants = texts.take_all(&["include[]", "include"]);
        if let Some(other) = wants.first() {
            let text = format!("found '{other}', and transcripts come without");
            return Err(ApiError::field("include", text));
        }
        // Labels, and what changes no text.
        const KNOWN: [&str; 5] = [
            "user",
            "no_timestamps",
            "token_timestamps",
            "print_progress",
            "encode",
        ];
        match texts
            .0
            .iter()
            .find(|(name, _)| !KNOWN.contains(&name.as_str()))
        {
            Some((name, _)) => Err(ApiError::field(name.as_str(), "is not known here")),
            None => Ok(asked),
        }
    }
}

fn shape(word: Option<&str>) -> Result<Shape> {
    match word {
        None | Some("json") => Ok(Shape::Json),
        Some("verbose_json") => Ok(Shape::Verbose),
        Some("text") => Ok(Shape::Text),
        Some("srt") => Ok(Shape::Srt),
        Some("vtt") => Ok(Shape::Vtt),
        Some(other) => Err(ApiError::field(
            "response_format",
            format!("found '{other}', expected json, verbose_json, text, srt or vtt"),
        )),
    }
}

fn options(texts: &mut Texts, manners: Manners, words: bool) -> Result<Options> {
    let temperature: f32 = texts
        .number("temperature", "a number from 0 to 1")?
        .unwrap_or(0.0);
    if !(0.0..=1.0).contains(&temperature) {
        let text = format!("found {temperature}, expected a number from 0 to 1");
        return Err(ApiError::field("temperature", text));
    }
    let step: f32 = texts.number("temperature_inc", "a number")?.unwrap_or(0.2);
    let mut temperatures = vec![temperature];
    if step > 0.0 {
        let more = (1..).map(|i| temperature + step * i as f32);
        temperatures.extend(more.take_while(|&t| t <= 1.0 + 1e-6).take(16));
    }
    let usual = Options::default();
    let (beams, best) = match manners {
        Manners::Inference => (1, 2),
        _ => (5, usual.best_of),
    };
    let beams: i64 = texts
        .number("beam_size", "a number of beams")?
        .unwrap_or(beams);
    let translates = texts.boolean("translate")?.unwrap_or(false);
    Ok(Options {
        translate: translates || manners == Manners::Translation,
        temperatures,
        beams: usize::try_from(beams).ok().filter(|&n| n > 1),
        best_of: texts
            .number("best_of", "a number of texts")?
            .unwrap_or(best)
            .max(1),
        prompt: texts.take("prompt"),
        logprob: Some(texts.number("logprob_thold", "a number")?.unwrap_or(-1.0)),
        no_speech: Some(texts.number("no_speech_thold", "a number")?.unwrap_or(0.6)),
        seed: texts.number("seed", "a whole number")?.unwrap_or(0),
        words,
        ..usual
    })
}

/// The recording of a file, and what is asked of it in the model's terms.
fn recorded(model: &Hearing, net: Option<&Silero>, mut asked: Asked) -> Result<(Recording, Asked)> {
    let name = asked.file.file.clone().unwrap_or_else(|| "file".to_owned());
    let bytes: Arc<[u8]> = asked.file.bytes.to_vec().into();
    let invalid = |e: tokkata::Error| ApiError::field("file", e.to_string());
    let source = Source::bytes(&name, bytes);
    let recording = model
        .abilities()
        .record(source, Mix::Mean)
        .map_err(invalid)?;
    let options = &mut asked.options;
    if let Some(word) = &asked.language {
        let code = model.abilities().language(word);
        let code = code.map_err(|e| ApiError::field("language", e.to_string()))?;
        code.clone_into(&mut options.language);
    }
    if options.translate && !model.abilities().tokens().is_multilingual() {
        return Err(ApiError::invalid(
            "the model knows English only, and translates nothing",
        ));
    }
    if options.beams.unwrap_or(1).max(options.best_of) > model.widest() {
        let text = format!("expected at most {}", model.widest());
        return Err(ApiError::field("beam_size", text));
    }
    if let Some(rules) = &asked.cuts {
        let pieces = vad::pieces(&recording, net, rules, WINDOW);
        let pieces = pieces.map_err(|e| ApiError::field("file", e.to_string()))?;
        options.clips = pieces.iter().flat_map(|piece| piece.seconds()).collect();
        options.carry = false;
        if pieces.is_empty() {
            // Nobody speaks: nothing of it is heard.
            options.clips = vec![recording.seconds()];
        }
    }
    Ok((recording, asked))
}

async fn whole(mut listening: Listening) -> Result<Whole> {
    loop {
        match listening.next().await? {
            Heard::Done(whole) => return Ok(whole),
            Heard::Failed(error) => return Err(ApiError::field("file", error.to_string())),
            Heard::Language(..) | Heard::Segments(..) => {}
        }
    }
}

/// Tells segments as they are heard.
async fn tell(
    mut listening: Listening,
    (transcript, model): (Transcript, Arc<Hearing>),
    sender: Sender,
) -> std::result::Result<(), Gone> {
    let told = async {
        loop {
            let segments = match listening.next().await {
                Ok(Heard::Segments(segments, _)) => segments,
                Ok(Heard::Done(whole)) => {
                    let done = json!({"type": "transcript.text.done", "text": whole.text.trim(),
                        "usage": transcript.usage()});
                    sender.data(&done).await?;
                    return sender.done().await;
                }
                Ok(Heard::Language(..)) => continue,
                Ok(Heard::Failed(error)) => {
                    let error = ApiError::field("file", error.to_string());
                    return sender.data(&json!({"error": error.object()})).await;
                }
                Err(error) => return sender.data(&json!({"error": error.object()})).await,
            };
            for segment in segments.iter().filter(|s| !s.text.is_empty()) {
                let delta = json!({"type": "transcript.text.delta", "delta": segment.text});
                sender.data(&delta).await?;
            }
        }
    };
    let told = told.await;
    drop(model);
    told
}

/// How a transcript is written.
struct Transcript {
    seconds: f64,
    shape: Shape,
    words: bool,
    segments: bool,
    about: About,
}

impl Transcript {
    fn usage(&self) -> Value {
        json!({"type": "duration", "seconds": self.seconds.ceil() as u64})
    }

    fn respond(&self, whole: &Whole) -> Response {
        let about = About {
            language: whole.language.clone(),
            ..self.about.clone()
        };
        let written = |format: Format, kind: &'static str| {
            let text = format.write(&whole.segments, &about);
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        };
        match self.shape {
            Shape::Json => {
                let body = json!({"text": whole.text.trim(), "usage": self.usage()});
                Json(body).into_response()
            }
            Shape::Verbose => Json(self.verbose(&whole.segments, &about)).into_response(),
            Shape::Text => {
                let text = format!("{}\n", whole.text.trim());
                let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
                (kind, text).into_response()
            }
            Shape::Srt => written(Format::Srt, "application/x-subrip; charset=utf-8"),
            Shape::Vtt => written(Format::Vtt, "text/vtt; charset=utf-8"),
        }
    }

    fn verbose(&self, segments: &[Segment], about: &About) -> Value {
        let mut body = verbose(segments, about, self.seconds, self.words);
        if let Some(members) = body.as_object_mut().filter(|_| !self.segments) {
            members.remove("segments");
        }
        body["usage"] = self.usage();
        body
    }
}
