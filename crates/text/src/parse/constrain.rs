//! Grammars for tool calls: the markers as the template writes them, the arguments as the tools' schemas say.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json, json};

use super::format::{
    Body, Calls, Channels, Header, JsonKeys, OutputFormat, Pair, Part, Recipients,
};
use crate::grammar::{GrammarError, GrammarSource, Trigger, quoted as escapes, schema};

/// Objects nested deeper are text.
const MAX_NESTING: usize = 8;
/// The keyword of a property whose text follows a grammar of its own, in Lark.
pub const LARK: &str = "x-lark";
/// White space that models put between the parts of a call.
const SPACE: &str = "/[ \\t\\n]{0,48}/";

/// Whether an answer calls a tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As the model likes.
    #[default]
    Auto,
    /// In any case, at once but for reasoning.
    Required,
}

impl OutputFormat {
    /// A grammar for this format's calls of these tools, and what switches it on. `None` if the template shows no
    /// calls that a grammar can follow, or none that it can require.
    ///
    /// Tokens for the markers must count as text in the [`Vocabulary`](crate::grammar::Vocabulary): leave them out of
    /// `special`.
    ///
    /// # Errors
    /// A tool whose parameters use a schema keyword that cannot be enforced.
    pub fn tool_grammar(
        &self,
        tools: &[Json],
        choice: ToolChoice,
    ) -> Result<Option<(GrammarSource, Trigger)>, GrammarError> {
        if let Some(recipients) = &self.recipients {
            return recipient_grammar(recipients, tools, choice);
        }
        if let Some(calls) = self.marked_calls().filter(|calls| !calls.open.is_empty()) {
            return self.marked_grammar(calls, tools, choice);
        }
        match (&self.channels, choice) {
            (Some(channels), ToolChoice::Auto) => channel_grammar(channels, tools),
            _ => Ok(None),
        }
    }

    fn marked_grammar(
        &self,
        calls: &Calls,
        tools: &[Json],
        choice: ToolChoice,
    ) -> Result<Option<(GrammarSource, Trigger)>, GrammarError> {
        let mut lark = Lark::default();
        for (name, parameters) in functions(tools) {
            if !lark.tool(calls, name, parameters)? {
                return Ok(None);
            }
        }
        let marker = if calls.section_open.is_empty() {
            &calls.open
        } else {
            &calls.section_open
        };
        if lark.tools.is_empty() || (choice == ToolChoice::Required && self.channels.is_some()) {
            return Ok(None);
        }
        let trigger = match choice {
            ToolChoice::Auto => Trigger::Each(marker.clone().into_bytes()),
            ToolChoice::Required => Trigger::Now,
        };
        let lead = match choice {
            ToolChoice::Auto => String::new(),
            ToolChoice::Required => lark.lead(self.reasoning_markers(), marker),
        };
        Ok(Some((
            GrammarSource::Lark(lark.finish(calls, &lead)),
            trigger,
        )))
    }
}

/// Names and schemas of tools.
fn functions(tools: &[Json]) -> impl Iterator<Item = (&str, Json)> {
    let functions = tools
        .iter()
        .map(|tool| tool.get("function").unwrap_or(tool));
    functions.filter_map(|function| {
        let parameters = function.get("parameters").cloned();
        let name = function["name"].as_str()?;
        Some((
            name,
            parameters.unwrap_or_else(|| json!({"type": "object"})),
        ))
    })
}

/// The rest of a header, whatever it names, and then the arguments as JSON.
fn channel_grammar(
    channels: &Channels,
    tools: &[Json],
) -> Result<Option<(GrammarSource, Trigger)>, GrammarError> {
    let Header::Channel { marker, .. } = &channels.header else {
        return Ok(None);
    };
    let mut lark = Lark::default();
    let constrain = marker.replace("channel", "constrain");
    let [marker, constrain, message] =
        [marker, &constrain, &channels.message].map(|text| text.replace('|', "\\|"));
    let header = format!("/( ?{marker}[a-z]+)?( ?{constrain})?[a-z ]{{0,16}}{message}/");
    for (name, parameters) in functions(tools) {
        let arguments = lark.json(parameters)?;
        let rule = lark.rule(&format!("{} {header} {SPACE} {arguments}", quoted(name)));
        lark.tools.push(rule);
    }
    let tools = lark.tools.join(" | ");
    let source = format!("start: {tools}\n{}", lark.rules);
    let trigger = Trigger::Each(channels.recipient.clone().into_bytes());
    Ok((!lark.tools.is_empty()).then_some((GrammarSource::Lark(source), trigger)))
}

/// Whole answers: their first mark stands in the prompt.
fn recipient_grammar(
    recipients: &Recipients,
    tools: &[Json],
    choice: ToolChoice,
) -> Result<Option<(GrammarSource, Trigger)>, GrammarError> {
    let Some(first) = recipients.mark.chars().next() else {
        return Ok(None);
    };
    if !recipients.mark.chars().all(|c| c == first) {
        return Ok(None);
    }
    let mut lark = Lark::default();
    for (name, parameters) in functions(tools) {
        let arguments = lark.json(parameters)?;
        let rule = lark.rule(&format!("{} {arguments}", quoted(&format!("{name}\n"))));
        lark.tools.push(rule);
    }
    if lark.tools.is_empty() {
        return Ok(None);
    }
    // Text without the whole mark in it.
    let (mark, most) = (
        quoted(&recipients.mark),
        recipients.mark.chars().count() - 1,
    );
    let special = if "]^\\-[&~/".contains(first) {
        "\\"
    } else {
        ""
    };
    let (mine, other) = (
        format!("[{special}{first}]"),
        format!("[^{special}{first}]"),
    );
    let content = quoted(&format!("{}\n", recipients.content));
    let text = format!("/({mine}{{0,{most}}}{other})*{mine}{{0,{most}}}/");
    let calls = lark.tools.join(" | ");
    let start = match choice {
        ToolChoice::Auto => format!("message ({mark} message)*"),
        ToolChoice::Required => format!("(content {mark})? call ({mark} call)*"),
    };
    let source = format!(
        "start: {start}\nmessage: content | call\ncontent: {content} {text}\ncall: {calls}\n{}",
        lark.rules
    );
    Ok(Some((GrammarSource::Lark(source), Trigger::Now)))
}

/// The names of JSON's types, other than strings.
const JSON_TYPES: &str = "number|integer|boolean|object|array|null";

/// A Lark grammar in the making: one rule per tool, and what they need.
#[derive(Default)]
struct Lark {
    rules: String,
    tools: Vec<String>,
    count: usize,
}

fn quoted(text: &str) -> String {
    Json::String(text.to_owned()).to_string()
}

impl Lark {
    fn rule(&mut self, body: &str) -> String {
        self.count += 1;
        let name = format!("r{}", self.count);
        let _ = writeln!(self.rules, "{name}: {body}");
        name
    }

    /// An object's only property, whose text follows a grammar, if that is what a tool takes.
    fn text_of(parameters: &Json) -> Option<(&str, &str)> {
        let properties = parameters["properties"].as_object()?;
        let (name, schema) = properties.iter().next()?;
        Some((name.as_str(), schema[LARK].as_str()?)).filter(|_| properties.len() == 1)
    }

    fn json(&mut self, schema: Json) -> Result<String, GrammarError> {
        if let Some((name, lark)) = Self::text_of(&schema) {
            let inner = self.inner(&escapes::json_quoted(lark)?);
            let key = quoted(&quoted(name));
            return Ok(self.rule(&format!(
                "\"{{\" {SPACE} {key} {SPACE} \":\" {SPACE} \"\\\"\" {inner} \"\\\"\" {SPACE} \"}}\""
            )));
        }
        let schema = schema::prepare(schema)?;
        Ok(self.rule(&format!("%json {schema}")))
    }

    /// A grammar within this one.
    fn inner(&mut self, lark: &str) -> String {
        self.rule(&format!("%lark {{\n{lark}\n}}"))
    }

    /// Adds a tool; says whether its calls can be put into a grammar.
    fn tool(&mut self, calls: &Calls, name: &str, parameters: Json) -> Result<bool, GrammarError> {
        let body = match &calls.body {
            Body::Json(keys) => self.json_call(keys, name, parameters)?,
            Body::Named {
                header,
                before_arguments,
            } => {
                let arguments = self.json(parameters)?;
                format!(
                    "{} {SPACE} {} {SPACE} {arguments}",
                    header_items(header, name),
                    quoted(before_arguments)
                )
            }
            Body::Pairs { header, pair } => {
                let items = header_items(header, name);
                let arguments = self.pair_items(pair, &parameters)?;
                format!("{items} {SPACE} {arguments}")
            }
            Body::Elements { header, mark } => {
                let items = header_items(header, name);
                let arguments = self.elements(mark, &parameters, 0)?;
                format!("{items} {SPACE} {arguments}")
            }
            Body::Python | Body::Bare { .. } => return Ok(false),
        };
        let rule = self.rule(&body);
        self.tools.push(rule);
        Ok(true)
    }

    fn json_call(
        &mut self,
        keys: &JsonKeys,
        name: &str,
        parameters: Json,
    ) -> Result<String, GrammarError> {
        let arguments = self.json(parameters)?;
        let key = |key: &str| format!("{} {SPACE} \":\" {SPACE}", quoted(&quoted(key)));
        let Some(name_key) = &keys.name else {
            return Ok(format!(
                "\"{{\" {SPACE} {} {arguments} {SPACE} \"}}\"",
                key(name)
            ));
        };
        // The id, where there is one, is the model's to choose; it may come first or last.
        let id =
            format!("/\"[a-z_]{{0,16}}id\"/ {SPACE} \":\" {SPACE} /\"[A-Za-z0-9_.:-]{{1,64}}\"/");
        Ok(format!(
            "\"{{\" {SPACE} ({id} {SPACE} \",\" {SPACE})? {} {} {SPACE} \",\" {SPACE} {} {arguments} {SPACE} (\",\" {SPACE} {id} {SPACE})? \"}}\"",
            key(name_key),
            quoted(&quoted(name)),
            key(&keys.arguments),
        ))
    }

    /// The arguments in the schema's order; those not required may be left out.
    fn pair_items(&mut self, pair: &Pair, parameters: &Json) -> Result<String, GrammarError> {
        let none = Map::new();
        let properties = parameters["properties"].as_object().unwrap_or(&none);
        let mut items = Vec::new();
        for (name, schema) in properties {
            let mut with_definitions = schema.clone();
            for key in ["$defs", "definitions"] {
                if let (Some(schema), Some(definitions)) =
                    (with_definitions.as_object_mut(), parameters.get(key))
                {
                    schema.insert(key.to_owned(), definitions.clone());
                }
            }
            let item = self.pair_item(pair, name, with_definitions)?;
            items.push(if is_required(parameters, name) {
                format!("{item} {SPACE}")
            } else {
                format!("({item} {SPACE})?")
            });
        }
        Ok(items.join(" "))
    }

    fn pair_item(&mut self, pair: &Pair, name: &str, schema: Json) -> Result<String, GrammarError> {
        let string = schema["type"] == "string";
        let middle = match &pair.types {
            None => quoted(&pair.middle.0),
            Some((text, _)) if string => {
                quoted(&format!("{}{text}{}", pair.middle.0, pair.middle.1))
            }
            // The type of the sample stands for all that are not strings.
            Some((_, other)) if JSON_TYPES.split('|').any(|name| name == other) => {
                format!(
                    "{} /({JSON_TYPES})/ {}",
                    quoted(&pair.middle.0),
                    quoted(&pair.middle.1)
                )
            }
            Some((_, other)) => quoted(&format!("{}{other}{}", pair.middle.0, pair.middle.1)),
        };
        let start = format!(
            "{} {middle} {}",
            quoted(&format!("{}{name}", pair.open)),
            space_item(&pair.padding.0)
        );
        if let Some(lark) = schema[LARK].as_str() {
            let value = self.inner(lark);
            let padding = space_item(&pair.padding.0);
            return Ok(format!("{start} {value} {padding} {}", quoted(&pair.close)));
        }
        if string {
            let value = self.until(&pair.close);
            return Ok(format!("{start} {value}"));
        }
        let value = self.json(schema)?;
        Ok(format!("{start} {value} {SPACE} {}", quoted(&pair.close)))
    }

    /// The fields of an object as elements, in the schema's order.
    fn elements(
        &mut self,
        mark: &str,
        schema: &Json,
        depth: usize,
    ) -> Result<String, GrammarError> {
        let none = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&none);
        let mut items = Vec::new();
        for (name, inner) in properties {
            let item = self.element(mark, name, inner, depth)?;
            items.push(if is_required(schema, name) {
                format!("{item} {SPACE}")
            } else {
                format!("({item} {SPACE})?")
            });
        }
        Ok(items.join(" "))
    }

    fn element(
        &mut self,
        mark: &str,
        name: &str,
        schema: &Json,
        depth: usize,
    ) -> Result<String, GrammarError> {
        let (open, close) = (format!("{mark}<{name}>"), format!("{mark}</{name}>"));
        let inner = match schema["type"].as_str() {
            Some("object") if depth < MAX_NESTING && schema["properties"].is_object() => {
                self.elements(mark, schema, depth + 1)?
            }
            Some("array") if depth < MAX_NESTING && schema["items"].is_object() => {
                let item = self.element(mark, "item", &schema["items"], depth + 1)?;
                format!("({item} {SPACE})*")
            }
            Some("number" | "integer" | "boolean") => self.json(schema.clone())?,
            Some("string") if schema[LARK].is_string() => {
                self.inner(schema[LARK].as_str().unwrap_or_default())
            }
            // What else there may be is text up to the closing marker.
            _ => {
                let value = self.until(&close);
                return Ok(format!("{} {value}", quoted(&open)));
            }
        };
        Ok(format!("{} {inner} {}", quoted(&open), quoted(&close)))
    }

    /// Raw text, up to a closing marker and with it.
    fn until(&mut self, close: &str) -> String {
        self.count += 1;
        let value = format!("r{}", self.count);
        let _ = writeln!(self.rules, "{value}[suffix={}]: /(.|\\n)*/", quoted(close));
        value
    }

    /// What comes before a call that is required: reasoning perhaps, and the marker.
    fn lead(&mut self, reasoning: Option<(&str, &str)>, marker: &str) -> String {
        let thought = reasoning.map_or(String::new(), |(open, close)| {
            let text = self.until(close);
            format!("({} {text} {SPACE})?", quoted(open))
        });
        format!("{SPACE} {thought} {} ", quoted(marker))
    }

    fn finish(self, calls: &Calls, lead: &str) -> String {
        let tools = self.tools.join(" | ");
        let (open, close) = (quoted(&calls.open), quoted(&calls.close));
        let one = format!("call {SPACE} {close}");
        let start = match &calls.body {
            Body::Json(_) => format!(
                "{SPACE} (call ({SPACE} call)* | \"[\" {SPACE} call ({SPACE} \",\" {SPACE} call)* {SPACE} \"]\") {SPACE} {close}"
            ),
            // Without a closing marker only the next call or the end can follow.
            _ if calls.section_open.is_empty() && calls.close.is_empty() => {
                format!("call ({SPACE} {open} call)*")
            }
            _ if calls.section_open.is_empty() => one,
            _ => {
                let end = quoted(&calls.section_close);
                format!("{SPACE} {open} {one} ({SPACE} {open} {one})* {SPACE} {end}")
            }
        };
        format!("start: {lead}{start}\ncall: {tools}\n{}", self.rules)
    }
}

fn is_required(schema: &Json, name: &str) -> bool {
    let required = schema["required"].as_array();
    required.is_some_and(|all| all.iter().any(|key| key == name))
}

fn space_item(padding: &str) -> &'static str {
    if padding.is_empty() { "" } else { "/\\n?/" }
}

fn header_items(header: &[Part], name: &str) -> String {
    let item = |part: &Part| match part {
        Part::Literal(literal) => quoted(literal),
        Part::Name => quoted(name),
        Part::Id => "/[A-Za-z0-9_.:-]{1,64}/".to_owned(),
        Part::Skip => "/[0-9]{1,4}/".to_owned(),
    };
    header.iter().map(item).collect::<Vec<_>>().join(" ")
}
