//! Chat templates by the names that people know them by.

use tokkata::ChatTemplate;

/// The text of the conversation as it stands.
pub(super) const PLAIN: &str = "{% for m in messages %}{{ m.content }}{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}";

/// A name, and the role as a marker around each text: what comes before the role, after it, and after the text.
type Marked = (&'static str, &'static str, &'static str, &'static str);

const MARKED: &[Marked] = &[
    ("chatml", "<|im_start|>", "\\n", "<|im_end|>\\n"),
    ("phi4", "<|im_start|>", "<|im_sep|>", "<|im_end|>"),
    ("phi3", "<|", "|>\\n", "<|end|>\\n"),
    ("falcon3", "<|", "|>\\n", "\\n"),
    ("zephyr", "<|", "|>\\n", "<|endoftext|>\\n"),
    (
        "llama3",
        "<|start_header_id|>",
        "<|end_header_id|>\\n\\n",
        "<|eot_id|>",
    ),
    (
        "llama4",
        "<|header_start|>",
        "<|header_end|>\\n\\n",
        "<|eot|>",
    ),
];

/// Templates of another kind.
const OTHERS: &[(&str, &str)] = &[
    (
        "llama2",
        "{% for m in messages %}{% if loop.first or m.role == 'user' and messages[loop.index0 - 1].role == 'assistant' %}[INST] \
         {% endif %}{% if m.role == 'system' %}<<SYS>>\n{{ m.content }}\n<</SYS>>\n\n\
         {% elif m.role == 'user' %}{{ m.content }} [/INST]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}",
    ),
    (
        "mistral-v1",
        "{% for m in messages %}{% if loop.first or messages[loop.index0 - 1].role == 'assistant' %} [INST] {% endif %}\
         {% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'user' %}{{ m.content }} [/INST]\
         {% else %} {{ m.content }}</s>{% endif %}{% endfor %}",
    ),
    (
        "mistral-v3",
        "{% for m in messages %}{% if loop.first or messages[loop.index0 - 1].role == 'assistant' %}[INST] {% endif %}\
         {% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'user' %}{{ m.content }}[/INST]\
         {% else %} {{ m.content | trim }}</s>{% endif %}{% endfor %}",
    ),
    (
        "mistral-v7",
        "{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT] {{ m.content }}[/SYSTEM_PROMPT]\
         {% elif m.role == 'user' %}[INST] {{ m.content }}[/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}",
    ),
    (
        "gemma",
        "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}\
         {% set ns.system = m.content | trim %}{% else %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n\
         {% if ns.system and m.role != 'assistant' %}{{ ns.system }}\n\n{% set ns.system = '' %}{% endif %}\
         {{ m.content | trim }}<end_of_turn>\n{% endif %}{% endfor %}\
         {% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    ),
    (
        "vicuna",
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'user' %}USER: {{ m.content }}\n\
         {% else %}ASSISTANT: {{ m.content }}</s>\n{% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}",
    ),
    (
        "openchat",
        "{% for m in messages %}{% if m.role != 'system' %}GPT4 Correct {{ m.role | capitalize }}: {% endif %}\
         {{ m.content }}<|end_of_turn|>{% endfor %}{% if add_generation_prompt %}GPT4 Correct Assistant:{% endif %}",
    ),
    (
        "command-r",
        "{% set roles = {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'} %}{% for m in messages %}\
         <|START_OF_TURN_TOKEN|><|{{ roles[m.role] }}_TOKEN|>{{ m.content | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}\
         {% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
    ),
    (
        "deepseek3",
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'user' %}<｜User｜>{{ m.content }}\
         {% else %}<｜Assistant｜>{{ m.content }}<｜end▁of▁sentence｜>{% endif %}{% endfor %}\
         {% if add_generation_prompt %}<｜Assistant｜>{% endif %}",
    ),
];

/// A template by its name, or written out.
pub(in crate::commands) fn template(text: &str) -> Result<ChatTemplate, String> {
    let source = match source(text) {
        Some(source) => source,
        None if text.contains('{') => text.to_owned(),
        None => {
            let marked = MARKED.iter().map(|t| t.0);
            let names: Vec<&str> = marked.chain(OTHERS.iter().map(|t| t.0)).collect();
            return Err(format!(
                "found '{text}', expected a template, or one of {}; --chat-template-file reads one from a file",
                names.join(", ")
            ));
        }
    };
    ChatTemplate::parse(&source).map_err(|e| e.to_string())
}

fn source(name: &str) -> Option<String> {
    let other = OTHERS.iter().find(|t| t.0 == name);
    let marked = || MARKED.iter().find(|t| t.0 == name);
    other
        .map(|t| t.1.to_owned())
        .or_else(|| marked().map(from_markers))
}

/// Families whose templates drop white space around texts.
const TRIMMED: [&str; 2] = ["llama3", "llama4"];

fn from_markers(&(name, before, after, end): &Marked) -> String {
    let text = match TRIMMED.contains(&name) {
        true => "m.content | trim",
        false => "m.content",
    };
    format!(
        "{{% for m in messages %}}{{{{ '{before}' + m.role + '{after}' + {text} + '{end}' }}}}{{% endfor %}}\
         {{% if add_generation_prompt %}}{{{{ '{before}assistant{after}' }}}}{{% endif %}}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokkata::ChatRequest;

    use super::*;

    fn written(name: &str, system: bool) -> String {
        let mut messages = vec![
            json!({"role": "user", "content": "A"}),
            json!({"role": "assistant", "content": "B"}),
            json!({"role": "user", "content": "C"}),
        ];
        if system {
            messages.insert(0, json!({"role": "system", "content": "S"}));
        }
        let request = ChatRequest {
            messages,
            add_generation_prompt: true,
            ..ChatRequest::default()
        };
        let template = template(name).expect("a template");
        template.render(&request).expect("it renders").into_text()
    }

    #[test]
    fn conversations_are_written_as_the_names_promise() {
        let all = [
            (
                "chatml",
                "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n",
            ),
            (
                "phi4",
                "<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>A<|im_end|><|im_start|>assistant<|im_sep|>B<|im_end|><|im_start|>user<|im_sep|>C<|im_end|><|im_start|>assistant<|im_sep|>",
            ),
            (
                "phi3",
                "<|system|>\nS<|end|>\n<|user|>\nA<|end|>\n<|assistant|>\nB<|end|>\n<|user|>\nC<|end|>\n<|assistant|>\n",
            ),
            (
                "falcon3",
                "<|system|>\nS\n<|user|>\nA\n<|assistant|>\nB\n<|user|>\nC\n<|assistant|>\n",
            ),
            (
                "zephyr",
                "<|system|>\nS<|endoftext|>\n<|user|>\nA<|endoftext|>\n<|assistant|>\nB<|endoftext|>\n<|user|>\nC<|endoftext|>\n<|assistant|>\n",
            ),
            (
                "llama3",
                "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            (
                "llama2",
                "[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST]B</s>[INST] C [/INST]",
            ),
            (
                "mistral-v1",
                " [INST] S\n\nA [/INST] B</s> [INST] C [/INST]",
            ),
            ("mistral-v3", "[INST] S\n\nA[/INST] B</s>[INST] C[/INST]"),
            (
                "mistral-v7",
                "[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] A[/INST] B</s>[INST] C[/INST]",
            ),
            (
                "gemma",
                "<start_of_turn>user\nS\n\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n<start_of_turn>user\nC<end_of_turn>\n<start_of_turn>model\n",
            ),
            (
                "vicuna",
                "S\n\nUSER: A\nASSISTANT: B</s>\nUSER: C\nASSISTANT:",
            ),
            (
                "openchat",
                "S<|end_of_turn|>GPT4 Correct User: A<|end_of_turn|>GPT4 Correct Assistant: B<|end_of_turn|>GPT4 Correct User: C<|end_of_turn|>GPT4 Correct Assistant:",
            ),
            (
                "command-r",
                "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>A<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>B<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>C<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
            ),
            (
                "deepseek3",
                "S\n\n<｜User｜>A<｜Assistant｜>B<｜end▁of▁sentence｜><｜User｜>C<｜Assistant｜>",
            ),
        ];
        for (name, want) in all {
            assert_eq!(written(name, true), want, "{name}");
        }
        assert_eq!(
            written("llama2", false),
            "[INST] A [/INST]B</s>[INST] C [/INST]"
        );
        assert_eq!(written(PLAIN, false), "A\nB\nC");
    }

    #[test]
    fn names_and_templates_are_told_apart() {
        assert!(template("{{ messages[0].content }}").is_ok());
        assert!(
            template("llama9")
                .unwrap_err()
                .contains("expected a template, or one of chatml")
        );
        assert!(template("{% if %}").is_err());
    }
}
