//! Grammars for tool calls: the markers as the template writes them, the arguments as the tools' schemas say.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json, json};

use super::format::{Body, Calls, JsonKeys, OutputFormat, Pair, Part};
use crate::grammar::{GrammarError, GrammarSource, Trigger, schema};

/// White space that models put between the parts of a call.
const SPACE: &str = "/[ \\t\\n]{0,48}/";

impl OutputFormat {
    /// A grammar for this format's calls of these tools, and the marker that switches it on. `None` if the template
    /// shows no marked calls that a grammar can follow.
    ///
    /// Tokens for the markers must count as text in the [`Vocabulary`](crate::grammar::Vocabulary): leave them out of
    /// `special`.
    ///
    /// # Errors
    /// A tool whose parameters use a schema keyword that cannot be enforced.
    pub fn tool_grammar(
        &self,
        tools: &[Json],
    ) -> Result<Option<(GrammarSource, Trigger)>, GrammarError> {
        let Some(calls) = self.calls.as_ref().filter(|calls| !calls.open.is_empty()) else {
            return Ok(None);
        };
        let mut lark = Lark::default();
        for tool in tools {
            let function = tool.get("function").unwrap_or(tool);
            let Some(name) = function["name"].as_str() else {
                continue;
            };
            let parameters = function
                .get("parameters")
                .cloned()
                .unwrap_or_else(|| json!({"type": "object"}));
            if !lark.tool(calls, name, parameters)? {
                return Ok(None);
            }
        }
        if lark.tools.is_empty() {
            return Ok(None);
        }
        let marker = if calls.section_open.is_empty() {
            &calls.open
        } else {
            &calls.section_open
        };
        Ok(Some((
            GrammarSource::Lark(lark.finish(calls)),
            Trigger::Each(marker.clone().into_bytes()),
        )))
    }
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

    fn json(&mut self, schema: Json) -> Result<String, GrammarError> {
        let schema = schema::prepare(schema)?;
        Ok(self.rule(&format!("%json {schema}")))
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
        let id = format!("/\"\\w*id\"/ {SPACE} \":\" {SPACE} /\"[\\w.:-]{{1,64}}\"/");
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
        let required = |name: &str| {
            parameters["required"]
                .as_array()
                .is_some_and(|all| all.iter().any(|key| key == name))
        };
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
            items.push(if required(name) {
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
        if string {
            // Raw text, up to the closing marker.
            self.count += 1;
            let value = format!("r{}", self.count);
            let _ = writeln!(
                self.rules,
                "{value}[suffix={}]: /(.|\\n)*/",
                quoted(&pair.close)
            );
            return Ok(format!("{start} {value}"));
        }
        let value = self.json(schema)?;
        Ok(format!("{start} {value} {SPACE} {}", quoted(&pair.close)))
    }

    fn finish(self, calls: &Calls) -> String {
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
        format!("start: {start}\ncall: {tools}\n{}", self.rules)
    }
}

fn space_item(padding: &str) -> &'static str {
    if padding.is_empty() { "" } else { "/\\n?/" }
}

fn header_items(header: &[Part], name: &str) -> String {
    let item = |part: &Part| match part {
        Part::Literal(literal) => quoted(literal),
        Part::Name => quoted(name),
        Part::Id => "/[\\w.:-]{1,64}/".to_owned(),
        Part::Skip => "/[0-9]{1,4}/".to_owned(),
    };
    header.iter().map(item).collect::<Vec<_>>().join(" ")
}
