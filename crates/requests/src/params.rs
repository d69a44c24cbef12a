//! How an answer is made: the fields that every dialect shares, under all the names that clients use.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokkata::grammar::GrammarSource;
use tokkata::{Dry, EncodeOptions, Sampling, Tokenizer, Urgency};
use web_time::Instant;

use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};
use crate::style::Thinking;

/// The likeliest tokens that can be told with each token, where the server was not told another number.
pub const MOST_LOGPROBS: usize = 20;
/// Answers to one prompt at most.
const MOST_CHOICES: usize = 128;

/// What holds where a request says nothing.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// How tokens are picked.
    pub sampling: Sampling,
    /// The seed; `None` for one that nobody can foresee.
    pub seed: Option<u64>,
    /// Tokens of an answer that does not say how many.
    pub max_tokens: Option<usize>,
    /// How a model that can think does so.
    pub thinking: Thinking,
    /// Further names for the chat template, behind a request's own.
    pub names: Map<String, Value>,
    /// Answers never end by themselves.
    pub ignore_eos: bool,
    /// A full context forgets what is oldest but for so many first tokens; `None` ends the answer.
    pub shift: Option<usize>,
    /// The likeliest tokens that can be told with each token; `None` for [`MOST_LOGPROBS`].
    pub most_logprobs: Option<usize>,
}

/// How an answer is made and where it ends.
#[derive(Clone, Debug)]
pub struct Params {
    /// How tokens are picked.
    pub sampling: Sampling,
    /// Tokens of the answer at most; `None` until the context is full.
    pub max_tokens: Option<usize>,
    /// The answer cannot end before it has so many.
    pub min_tokens: usize,
    /// Texts that end it.
    pub stop: Vec<String>,
    /// Tokens that end it, beside the model's own.
    pub stop_ids: Vec<u32>,
    /// The stop string stays in the answer.
    pub keep_stop: bool,
    /// It cannot end by itself.
    pub ignore_eos: bool,
    /// Special tokens are spelled out.
    pub special: bool,
    /// The only tokens that may come.
    pub allowed: Option<Vec<u32>>,
    /// What the answer must follow.
    pub grammar: Option<GrammarSource>,
    /// Tell each token's probability, and so many of the likeliest ones.
    pub logprobs: Option<usize>,
    /// Tokens to tell instead of the likeliest.
    pub told: Vec<u32>,
    /// Answers to the prompt.
    pub n: usize,
    /// The `n` likeliest answers are searched for rather than drawn, and ordered with this length penalty.
    pub beams: Option<f64>,
    /// Its place among others.
    pub urgency: Urgency,
    /// Prefixes are shared within one salt.
    pub salt: u64,
    /// A full context forgets what is oldest but for so many first tokens; `None` ends the answer.
    pub shift: Option<usize>,
}

impl Params {
    /// Parameters that say nothing but these defaults.
    pub fn new(defaults: &Defaults) -> Self {
        Params {
            sampling: Sampling {
                seed: defaults.seed.unwrap_or_else(random_seed),
                ..defaults.sampling.clone()
            },
            max_tokens: None,
            min_tokens: 0,
            stop: Vec::new(),
            stop_ids: Vec::new(),
            keep_stop: false,
            ignore_eos: defaults.ignore_eos,
            special: false,
            allowed: None,
            grammar: None,
            logprobs: None,
            told: Vec::new(),
            n: 1,
            beams: None,
            urgency: Urgency::default(),
            salt: 0,
            shift: defaults.shift,
        }
    }

    /// Reads the fields that all dialects share.
    pub fn take(fields: &mut Fields, defaults: &Defaults, tokenizer: &Tokenizer) -> Result<Self> {
        let mut params = Params::new(defaults);
        params.take_sampling(fields)?;
        params.take_samplers(fields)?;
        params.take_dry(fields, tokenizer)?;
        params.take_bias(fields, tokenizer)?;
        params.take_ends(fields)?;
        params.grammar = grammar(fields)?;
        params.take_place(fields)?;
        if let Some(n) = fields
            .integer(&["n_keep"])?
            .filter(|_| defaults.shift.is_some())
        {
            // A negative number keeps the whole prompt.
            params.shift = Some(usize::try_from(n).unwrap_or(usize::MAX));
        }
        if let Some(n) = fields.count(&["n", "n_cmpl"])? {
            if !(1..=MOST_CHOICES).contains(&n) {
                let message = format!("found {n}, expected 1 to {MOST_CHOICES}");
                return Err(ApiError::field("n", message));
            }
            params.n = n;
        }
        fields.refuse(
            &["lora", "adapters", "lora_path", "lora_request"],
            "a request cannot choose adapters; give them to the server (--lora), or use a model that they are merged into",
        )?;
        let penalty = fields
            .number(&["length_penalty"])?
            .map(|(_, penalty)| penalty);
        match fields.boolean("use_beam_search")? {
            Some(true) => params.beams = Some(penalty.unwrap_or(1.0)),
            _ if penalty.is_some_and(|p| p != 1.0) => {
                let text = "orders the answers of a beam search (use_beam_search)";
                return Err(ApiError::field("length_penalty", text));
            }
            _ => {}
        }
        params.take_watermark(fields)?;
        fields.refuse(
            &["logits_processors", "custom_logit_processor"],
            "code from a request is not run",
        )?;
        Ok(params)
    }

    fn take_sampling(&mut self, fields: &mut Fields) -> Result<()> {
        let inf = f64::INFINITY;
        let s = &mut self.sampling;
        let mut set = |names: &[&str], low, high, to: &mut f32| -> Result<()> {
            if let Some(value) = fields.within(names, low, high)? {
                *to = value;
            }
            Ok(())
        };
        set(&["temperature"], 0.0, inf, &mut s.temperature)?;
        set(&["top_p"], 0.0, 1.0, &mut s.top_p)?;
        set(&["min_p"], 0.0, 1.0, &mut s.min_p)?;
        set(&["typical_p", "typ_p"], 0.0, 1.0, &mut s.typical_p)?;
        set(&["top_n_sigma"], -inf, inf, &mut s.top_n_sigma)?;
        set(&["xtc_probability"], 0.0, 1.0, &mut s.xtc_probability)?;
        set(&["xtc_threshold"], 0.0, 1.0, &mut s.xtc_threshold)?;
        let repeat = ["repeat_penalty", "repetition_penalty"];
        set(&repeat, f64::MIN_POSITIVE, inf, &mut s.repeat_penalty)?;
        set(&["frequency_penalty"], -inf, inf, &mut s.frequency_penalty)?;
        set(&["presence_penalty"], -inf, inf, &mut s.presence_penalty)?;
        s.top_n_sigma = s.top_n_sigma.max(0.0);
        if let Some(k) = fields.integer(&["top_k"])? {
            s.top_k = u32::try_from(k).unwrap_or(0);
        }
        if let Some(n) = fields.integer(&["repeat_last_n"])? {
            s.repeat_last_n = usize::try_from(n).ok();
        }
        if let Some(seed) = fields.integer(&["seed"])? {
            s.seed = u64::try_from(seed).unwrap_or(s.seed);
        }
        let flat = "the temperature is the same for every token";
        fields.refuse(&["dynatemp_range"], flat)?;
        fields.labels(&["dynatemp_exponent", "mirostat_tau", "mirostat_eta"]);
        fields.labels(&["adaptive_decay", "top_n", "min_keep"]);
        let why = "it is not known here; use top_p, min_p or top_n_sigma";
        fields.refuse(&["mirostat"], why)?;
        match fields.number(&["adaptive_target"])? {
            Some((name, x)) if x >= 0.0 => Err(ApiError::field(
                name,
                "sampling aims at no probability here",
            )),
            _ => Ok(()),
        }
    }

    /// Samplers that are not named are off; those that are must be in the order in which they act.
    fn take_samplers(&mut self, fields: &mut Fields) -> Result<()> {
        let Some(value) = fields.take("samplers") else {
            return Ok(());
        };
        let named = sampler_places(&value)?;
        if !named.is_sorted() {
            let order: Vec<&str> = SAMPLERS.iter().map(|s| s[0]).collect();
            let message = format!("samplers act in this order here: {}", order.join(";"));
            return Err(ApiError::field("samplers", message));
        }
        let s = &mut self.sampling;
        for off in (0..SAMPLERS.len()).filter(|place| !named.contains(place)) {
            match off {
                0 => (s.repeat_penalty, s.frequency_penalty, s.presence_penalty) = (1.0, 0.0, 0.0),
                1 => s.dry = None,
                2 => s.top_n_sigma = 0.0,
                3 => s.top_k = 0,
                4 => s.typical_p = 1.0,
                5 => s.top_p = 1.0,
                6 => s.min_p = 0.0,
                7 => s.xtc_probability = 0.0,
                _ => s.temperature = 1.0,
            }
        }
        Ok(())
    }

    /// A request may do without the server's watermark; it cannot bring one.
    fn take_watermark(&mut self, fields: &mut Fields) -> Result<()> {
        let asked = fields.boolean("watermarking")?;
        if asked == Some(false) {
            self.sampling.watermark = None;
        }
        let unmarked = match asked {
            Some(true) if self.sampling.watermark.is_none() => {
                "the server has no key (--watermark-config)"
            }
            Some(true) if self.sampling.temperature <= 0.0 => "greedy answers have none",
            Some(true) if self.beams.is_some() => "answers of a beam search have none",
            _ => return Ok(()),
        };
        let text = format!("watermarking has no effect here: {unmarked}");
        fields.warnings.push(text);
        Ok(())
    }

    fn take_dry(&mut self, fields: &mut Fields, tokenizer: &Tokenizer) -> Result<()> {
        let inf = f64::INFINITY;
        let multiplier = fields.within(&["dry_multiplier"], 0.0, inf)?;
        let base = fields.within(&["dry_base"], -inf, inf)?;
        let allowed_length = fields.count(&["dry_allowed_length"])?;
        let last_n = fields.integer(&["dry_penalty_last_n"])?;
        let breakers = fields.texts("dry_sequence_breakers")?;
        if breakers.as_ref().is_some_and(Vec::is_empty) {
            let message = "found an empty list, expected at least one text";
            return Err(ApiError::field("dry_sequence_breakers", message));
        }
        let Some(multiplier) = multiplier.filter(|&m| m > 0.0) else {
            return Ok(());
        };
        let usual = || ["\n", ":", "\"", "*"].map(str::to_owned).to_vec();
        let breakers = breakers.unwrap_or_else(usual);
        let contains = |id: &u32| {
            let text = String::from_utf8_lossy(tokenizer.token_bytes(*id));
            breakers.iter().any(|b| text.contains(b.as_str()))
        };
        self.sampling.dry = Some(Dry {
            multiplier,
            base: base.unwrap_or(1.75),
            allowed_length: allowed_length.unwrap_or(2),
            last_n: last_n.and_then(|n| usize::try_from(n).ok()),
            breakers: (0..tokenizer.vocab_size() as u32)
                .filter(contains)
                .collect(),
        });
        Ok(())
    }

    fn take_bias(&mut self, fields: &mut Fields, tokenizer: &Tokenizer) -> Result<()> {
        if let Some(value) = fields.take("logit_bias") {
            self.sampling.bias.extend(biases(&value, tokenizer)?);
        }
        for word in fields.texts("bad_words")?.unwrap_or_default() {
            for text in [word.clone(), format!(" {word}")] {
                match tokenizer.encode(&text, EncodeOptions::default())[..] {
                    [id] => self.sampling.bias.push((id, f32::NEG_INFINITY)),
                    _ if text != word => {}
                    _ => {
                        let message = format!(
                            "'{word}' is several tokens; only words of one token can be kept out"
                        );
                        return Err(ApiError::field("bad_words", message));
                    }
                }
            }
        }
        self.allowed = match fields.list("allowed_token_ids")? {
            Some(ids) => Some(token_list("allowed_token_ids", &ids)?),
            None => None,
        };
        Ok(())
    }

    fn take_ends(&mut self, fields: &mut Fields) -> Result<()> {
        self.stop = fields.texts("stop")?.unwrap_or_default();
        self.stop.retain(|s| !s.is_empty());
        if let Some(ids) = fields.list("stop_token_ids")? {
            self.stop_ids = token_list("stop_token_ids", &ids)?;
        }
        self.ignore_eos = fields.boolean("ignore_eos")?.unwrap_or(self.ignore_eos);
        self.min_tokens = fields.count(&["min_tokens"])?.unwrap_or(0);
        self.keep_stop = fields
            .boolean("include_stop_str_in_output")?
            .unwrap_or(false);
        self.special = fields.boolean("skip_special_tokens")? == Some(false);
        fields.labels(&["spaces_between_special_tokens", "detokenize"]);
        fields.refuse(
            &["stop_regex", "repetition_detection"],
            "answers end at texts (stop) and tokens (stop_token_ids)",
        )
    }

    fn take_place(&mut self, fields: &mut Fields) -> Result<()> {
        if let Some(priority) = fields.integer(&["priority"])? {
            // The field is vLLM's, where the lowest goes first.
            let priority = i32::try_from(priority.clamp(-1_000_000, 1_000_000));
            self.urgency.priority = -priority.unwrap_or(0);
        }
        if let Some(ms) = fields
            .count(&["deadline_ms", "t_max_predict_ms"])?
            .filter(|&ms| ms > 0)
        {
            self.urgency.deadline = Instant::now().checked_add(Duration::from_millis(ms as u64));
        }
        if let Some(salt) = fields.text("cache_salt")? {
            self.salt = hash(&salt);
        }
        Ok(())
    }

    /// The parameters of one of several answers: the first draws with the seed itself.
    pub fn seed_of(&self, choice: usize) -> u64 {
        match choice {
            0 => self.sampling.seed,
            i => mixed(
                self.sampling
                    .seed
                    .wrapping_add((i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            ),
        }
    }
}

/// Samplers by all their names, in the order in which they act.
const SAMPLERS: [&[&str]; 9] = [
    &["penalties"],
    &["dry"],
    &["top_n_sigma", "top-n-sigma"],
    &["top_k", "top-k"],
    &["typ_p", "typ-p", "typical_p", "typical"],
    &["top_p", "top-p", "nucleus"],
    &["min_p", "min-p"],
    &["xtc"],
    &["temperature", "temp"],
];

/// The places of named samplers; a text holds names, or one letter each.
fn sampler_places(value: &Value) -> Result<Vec<usize>> {
    const LETTERS: &str = "edskypmxt";
    let place = |name: &str| {
        let found = SAMPLERS.iter().position(|names| names.contains(&name));
        found.ok_or_else(|| ApiError::field("samplers", format!("'{name}' is no sampler here")))
    };
    match value {
        Value::Array(names) => {
            let text = |v: &Value| v.as_str().map(str::to_owned);
            let names = names
                .iter()
                .map(|v| text(v).ok_or_else(|| wrong("samplers", v, "names")));
            names.map(|name| place(&name?)).collect()
        }
        Value::String(text) if text.contains([';', ',', '_']) || text.len() > 9 => text
            .split([';', ','])
            .map(|name| place(name.trim()))
            .collect(),
        Value::String(letters) => {
            let one = |c: char| {
                LETTERS.find(c).ok_or_else(|| {
                    ApiError::field("samplers", format!("'{c}' is no sampler's letter here"))
                })
            };
            letters.chars().map(one).collect()
        }
        other => Err(wrong("samplers", other, "a list of names")),
    }
}

/// Biases by token: an object of ids, or a list of pairs whose first may be a text and whose second may be `false`.
fn biases(value: &Value, tokenizer: &Tokenizer) -> Result<Vec<(u32, f32)>> {
    const NAME: &str = "logit_bias";
    let n_vocab = tokenizer.vocab_size() as u32;
    let bias = |value: &Value| match value {
        Value::Bool(false) => Ok(f32::NEG_INFINITY),
        Value::Number(n) => Ok(n.as_f64().unwrap_or(0.0) as f32),
        other => Err(wrong(NAME, other, "a number, or false")),
    };
    let by_id = |id: u64, to: f32| match u32::try_from(id).ok().filter(|&id| id < n_vocab) {
        Some(id) => Ok(vec![(id, to)]),
        None => Err(ApiError::field(
            NAME,
            format!("token {id} is not in the vocabulary of {n_vocab} tokens"),
        )),
    };
    let by_text = |text: &str, to: f32| {
        let ids = tokenizer.encode(
            text,
            EncodeOptions {
                add_special: false,
                parse_special: true,
            },
        );
        ids.into_iter().map(|id| (id, to)).collect::<Vec<_>>()
    };
    let mut all = Vec::new();
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                let to = bias(value)?;
                all.extend(match key.parse() {
                    Ok(id) => by_id(id, to)?,
                    Err(_) => by_text(key, to),
                });
            }
        }
        Value::Array(pairs) => {
            for pair in pairs {
                let [key, value] = pair.as_array().map_or(&[] as &[Value], Vec::as_slice) else {
                    return Err(wrong(NAME, pair, "a pair of a token and a number"));
                };
                let to = bias(value)?;
                all.extend(match key {
                    Value::String(text) => by_text(text, to),
                    key => by_id(key.as_u64().unwrap_or(u64::MAX), to)?,
                });
            }
        }
        other => return Err(wrong(NAME, other, "an object of biases by token")),
    }
    Ok(all)
}

/// Token ids.
pub fn token_list(name: &str, ids: &[Value]) -> Result<Vec<u32>> {
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    ids.iter()
        .map(|v| id(v).ok_or_else(|| wrong(name, v, "token ids")))
        .collect()
}

/// What the answer must follow, under the names of llama.cpp, vLLM, SGLang and OpenAI.
fn grammar(fields: &mut Fields) -> Result<Option<GrammarSource>> {
    let mut found: Vec<GrammarSource> = Vec::new();
    if let Some(format) = fields.nested("response_format")? {
        found.extend(response_format(format, fields)?);
    }
    if let Some(outputs) = fields.nested("structured_outputs")? {
        found.extend(structured(outputs, fields)?);
    }
    found.extend(named_grammars(
        fields,
        ["json_schema", "regex", "choice", "grammar"],
    )?);
    found.extend(named_grammars(
        fields,
        [
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
        ],
    )?);
    let lazy = "a grammar applies from the start of the answer";
    fields.refuse(&["grammar_lazy", "grammar_triggers"], lazy)?;
    fields.labels(&["preserved_tokens", "guided_decoding_backend"]);
    fields.refuse(
        &["ebnf", "structural_tag"],
        "use json_schema, regex or grammar (GBNF)",
    )?;
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => Err(ApiError::invalid(
            "several grammars are given (response_format, json_schema, grammar, regex, choice), expected one",
        )),
    }
}

fn response_format(mut format: Fields, outer: &mut Fields) -> Result<Option<GrammarSource>> {
    const NAME: &str = "response_format.type";
    let kind = format.text("type")?.unwrap_or_default();
    let source = match kind.as_str() {
        "text" => None,
        "json_object" => {
            let schema = format.take("schema");
            Some(schema.unwrap_or_else(|| json!({"type": "object"})))
        }
        "json_schema" => {
            let schema = match format.nested("json_schema")? {
                Some(mut named) => {
                    named.labels(&["name", "description", "strict"]);
                    let schema = named.take("schema");
                    named.close(false, outer)?;
                    schema
                }
                // The Responses API writes it without the inner object.
                None => {
                    format.labels(&["name", "description", "strict"]);
                    format.take("schema")
                }
            };
            let missing = || ApiError::field("response_format.json_schema.schema", "is missing");
            Some(schema.ok_or_else(missing)?)
        }
        other => {
            let message = format!("found '{other}', expected text, json_object or json_schema");
            return Err(ApiError::field(NAME, message));
        }
    };
    format.close(false, outer)?;
    Ok(source.map(GrammarSource::JsonSchema))
}

/// The Responses API's `text.format`, or Anthropic's `output_config.format`.
pub fn text_format(format: Fields, outer: &mut Fields) -> Result<Option<GrammarSource>> {
    response_format(format, outer)
}

fn structured(mut outputs: Fields, outer: &mut Fields) -> Result<Vec<GrammarSource>> {
    if outputs.peek("grammar").is_some_and(|g| g == "") {
        return Err(ApiError::field("structured_outputs.grammar", "is empty"));
    }
    let mut found = named_grammars(&mut outputs, ["json", "regex", "choice", "grammar"])?;
    if outputs.boolean("json_object")? == Some(true) {
        found.push(GrammarSource::JsonSchema(json!({"type": "object"})));
    }
    outputs.refuse(&["structural_tag"], "use json, regex, choice or grammar")?;
    outputs.labels(&[
        "whitespace_pattern",
        "disable_any_whitespace",
        "disable_fallback",
    ]);
    outputs.close(false, outer)?;
    Ok(found)
}

/// Grammars by the names for a schema, a regular expression, a choice of texts and a grammar.
fn named_grammars(
    fields: &mut Fields,
    [json, regex, choice, grammar]: [&str; 4],
) -> Result<Vec<GrammarSource>> {
    let mut found = Vec::new();
    if let Some(schema) = fields.take(json) {
        let schema = match schema {
            Value::String(text) => serde_json::from_str(&text)
                .map_err(|e| ApiError::field(json, format!("is no JSON: {e}")))?,
            schema => schema,
        };
        found.push(GrammarSource::JsonSchema(schema));
    }
    if let Some(regex) = fields.text(regex)? {
        found.push(GrammarSource::Regex(regex));
    }
    if let Some(texts) = fields.texts(choice)? {
        if texts.is_empty() {
            return Err(ApiError::field(
                choice,
                "found an empty list, expected texts",
            ));
        }
        let quoted: Vec<String> = texts.iter().map(|t| json!(t).to_string()).collect();
        let lark = format!("start: {}\n", quoted.join(" | "));
        found.push(GrammarSource::Lark(lark));
    }
    if let Some(text) = fields.text(grammar)?.filter(|t| !t.is_empty()) {
        found.push(match text.contains("::=") {
            true => GrammarSource::Gbnf(text),
            false => GrammarSource::Lark(text),
        });
    }
    Ok(found)
}

/// A seed that nobody can foresee; below 2³², so that it can be typed again.
pub fn random_seed() -> u64 {
    random() & u64::from(u32::MAX)
}

/// A number that nobody can foresee.
pub fn random() -> u64 {
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

/// A number that differs wherever texts do, with all but certainty, and is the same in every process.
pub fn hash(text: &str) -> u64 {
    let step = |h: u64, byte: u8| (h ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    mixed(text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

/// Every bit depends on every other one (the finaliser of splitmix64).
fn mixed(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_choice_draws_with_the_seed_and_others_with_their_own() {
        let mut params = Params::new(&Defaults::default());
        params.sampling.seed = 42;
        let seeds: Vec<u64> = (0..4).map(|i| params.seed_of(i)).collect();
        assert_eq!(seeds[0], 42);
        let mut distinct = seeds.clone();
        distinct.dedup();
        assert_eq!(distinct.len(), 4);
        assert_eq!(seeds, (0..4).map(|i| params.seed_of(i)).collect::<Vec<_>>());
    }

    #[test]
    fn samplers_are_read_as_a_list_as_names_and_as_letters() {
        let places = |v: Value| sampler_places(&v);
        assert_eq!(places(json!(["top_k", "temperature"])), Ok(vec![3, 8]));
        assert_eq!(places(json!("top_k;temperature")), Ok(vec![3, 8]));
        assert_eq!(places(json!("kt")), Ok(vec![3, 8]));
        assert!(places(json!(["mirostat"])).is_err());
    }

    #[test]
    fn one_grammar_is_followed_and_two_are_refused() {
        let read = |body: Value| grammar(&mut Fields::body(body).expect("an object"));
        let schema = read(json!({"response_format": {"type": "json_object"}}));
        assert!(matches!(schema, Ok(Some(GrammarSource::JsonSchema(_)))));
        let choice = read(json!({"structured_outputs": {"choice": ["a", "b\""]}}));
        match choice {
            Ok(Some(GrammarSource::Lark(text))) => assert_eq!(text, "start: \"a\" | \"b\\\"\"\n"),
            other => panic!("{other:?}"),
        }
        assert!(read(json!({"regex": "a", "json_schema": {}})).is_err());
        assert!(read(json!({"response_format": {"type": "xml"}})).is_err());
        assert!(
            read(json!({"response_format": {"type": "text"}}))
                .expect("fine")
                .is_none()
        );
    }
}
