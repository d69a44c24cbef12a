//! One call of a server's, as it streams.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use ureq::{Agent, RequestBuilder};

use crate::console::say;

/// What a server is asked.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    /// Its address, with or without `/v1`.
    pub(crate) server: &'a str,
    pub(crate) key: Option<&'a str>,
    /// What goes with every call.
    pub(crate) body: Value,
}

/// Calls of one server.
pub(super) struct Caller {
    agent: Agent,
    base: String,
    key: Option<String>,
}

impl Caller {
    pub(super) fn new(server: &str, key: Option<&str>, patience: Option<Duration>) -> Self {
        let base = server.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let base = match base.contains("://") {
            true => base.to_owned(),
            false => format!("http://{base}"),
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(patience)
            .build();
        Caller {
            agent: config.into(),
            base,
            key: key.map(str::to_owned),
        }
    }

    /// Where it asks.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    fn keyed<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    /// What is at a path.
    pub(super) fn get(&self, path: &str) -> Result<Value> {
        let request = self.keyed(self.agent.get(format!("{}{path}", self.base)));
        let mut response = request.call().with_context(|| self.base.clone())?;
        let text = response.body_mut().read_to_string()?;
        serde_json::from_str(&text).with_context(|| format!("{}{path} gave no JSON", self.base))
    }

    /// Asks, and hands every event to `take`.
    pub(super) fn stream(
        &self,
        path: &str,
        body: &Value,
        mut take: impl FnMut(Value) -> Result<()>,
    ) -> Result<()> {
        let request = self.keyed(self.agent.post(format!("{}{path}", self.base)));
        let request = request.header("content-type", "application/json");
        let sent = request.send(body.to_string());
        let mut response = sent.with_context(|| self.base.clone())?;
        if !response.status().is_success() {
            let text = response.body_mut().read_to_string().unwrap_or_default();
            let read: Value = serde_json::from_str(&text).unwrap_or_default();
            let message = read["error"]["message"].as_str().unwrap_or(&text);
            bail!("{}: {}: {message}", self.base, response.status());
        }
        let reader = BufReader::new(response.body_mut().as_reader());
        for line in reader.lines() {
            let line = line.context("the answer broke off")?;
            let Some(data) = line.strip_prefix("data: ") else {
                continue;
            };
            if data == "[DONE]" {
                return Ok(());
            }
            let event: Value = serde_json::from_str(data)?;
            if let Some(message) = event["error"]["message"].as_str() {
                bail!("{}: {message}", self.base);
            }
            take(event)?;
        }
        Ok(())
    }
}

fn with(body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    if let (Some(all), Value::Object(more)) = (body.as_object_mut(), more) {
        all.extend(more);
    }
    body["stream"] = true.into();
    body
}

fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Prints the continuation of each text.
pub(crate) fn continued(asked: &Asked<'_>, prompts: &[String]) -> Result<()> {
    let caller = Caller::new(asked.server, asked.key, None);
    for prompt in prompts {
        let body = with(&asked.body, json!({"prompt": prompt}));
        caller.stream("/v1/completions", &body, |event| {
            print(event["choices"][0]["text"].as_str().unwrap_or_default())
        })?;
    }
    Ok(())
}

/// Chats: answers the questions, or else whatever is typed until the end of the input.
pub(crate) fn conversed(
    asked: &Asked<'_>,
    system: Option<String>,
    questions: &[String],
) -> Result<()> {
    let caller = Caller::new(asked.server, asked.key, None);
    let system = system.map(|text| json!({"role": "system", "content": text}));
    let mut messages: Vec<Value> = system.into_iter().collect();
    if !questions.is_empty() {
        return questions
            .iter()
            .try_for_each(|q| answer(&caller, asked, &mut messages, q));
    }
    if !std::io::stdin().is_terminal() {
        // One prompt, whatever its lines; nothing at all is no question.
        let piped = std::io::read_to_string(std::io::stdin())?;
        return match piped.trim() {
            "" => Ok(()),
            question => answer(&caller, asked, &mut messages, question),
        };
    }
    loop {
        print("> ")?;
        let mut line = String::new();
        if std::io::stdin().read_line(&mut line)? == 0 {
            return Ok(());
        }
        match line.trim() {
            "" => {}
            "/exit" | "/quit" | "/bye" => return Ok(()),
            "/clear" => {
                messages.retain(|m| m["role"] == "system");
                say("the conversation is forgotten");
            }
            command if command.starts_with('/') => say(&format!(
                "found the command {command}, expected /clear or /exit: a server is asked"
            )),
            question => answer(&caller, asked, &mut messages, question)?,
        }
    }
}

fn answer(
    caller: &Caller,
    asked: &Asked<'_>,
    messages: &mut Vec<Value>,
    question: &str,
) -> Result<()> {
    messages.push(json!({"role": "user", "content": question}));
    let body = with(&asked.body, json!({"messages": messages}));
    let mut whole = String::new();
    caller.stream("/v1/chat/completions", &body, |event| {
        let text = event["choices"][0]["delta"]["content"].as_str();
        whole.push_str(text.unwrap_or_default());
        print(text.unwrap_or_default())
    })?;
    print("\n")?;
    if whole.is_empty() {
        return Err(anyhow!("the answer has no text"));
    }
    messages.push(json!({"role": "assistant", "content": whole}));
    Ok(())
}
