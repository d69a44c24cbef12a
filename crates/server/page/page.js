"use strict";
(() => {
  const find = (id) => document.getElementById(id);
  const make = (tag, name, ...children) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    element.append(...children);
    return element;
  };
  const base = location.pathname.replace(/[^/]*$/, "");

  // What is kept in this browser.
  const read = (name, other) => {
    try { return JSON.parse(localStorage.getItem(name)) ?? other; } catch { return other; }
  };
  const keep = (name, value) => {
    try { localStorage.setItem(name, JSON.stringify(value)); } catch { /* There is no room: it lasts as long as the page. */ }
  };
  let talks = read("talks", []);
  let settings = read("settings", {});
  let current = talks[0] || null;
  let running = null;
  let files = [];

  const save = () => keep("talks", talks.slice(0, 200));
  const form = find("form");

  function fresh() {
    current = null;
    show();
    find("input").focus();
  }

  function ensure(text) {
    if (current) return;
    current = { id: crypto.randomUUID ? crypto.randomUUID() : String(Math.random()), title: text.slice(0, 60), turns: [] };
    talks.unshift(current);
  }

  // The list of conversations.
  function list() {
    find("list").replaceChildren(...talks.map((talk) => {
      const open = make("button", "open", talk.title || "Untitled");
      open.type = "button";
      open.setAttribute("aria-current", String(talk === current));
      open.addEventListener("click", () => { current = talk; show(); menu(false); });
      const drop = make("button", "drop", "×");
      drop.type = "button";
      drop.setAttribute("aria-label", `Delete ${talk.title}`);
      drop.addEventListener("click", () => {
        talks = talks.filter((t) => t !== talk);
        if (current === talk) current = talks[0] || null;
        save();
        show();
      });
      return make("div", "", open, drop);
    }));
  }

  function menu(on) {
    find("side").classList.toggle("shown", on);
    find("menu").setAttribute("aria-expanded", String(on));
  }

  // A turn as elements.
  function draw(turn) {
    const element = make("article", `turn ${turn.role}`);
    fill(element, turn);
    return element;
  }

  function fill(element, turn) {
    const parts = [];
    if (turn.role === "user") parts.push(make("div", "body", turn.shown ?? turn.content));
    else if (turn.role === "tool") parts.push(folded(`Result of ${turn.name || "a tool"}`, turn.content));
    else {
      if (turn.reasoning) parts.push(folded(turn.content || turn.done ? "Thought" : "Thinking …", turn.reasoning));
      if (turn.tokens && settings.tokens) parts.push(make("div", "body", ...turn.tokens.map(token)));
      else parts.push(make("div", "body", markdown(turn.content || "")));
      for (const call of turn.calls || []) parts.push(tool(call, turn));
      if (turn.error) parts.push(make("div", "bad", turn.error));
      if (turn.foot) parts.push(make("div", "foot", turn.foot));
    }
    const open = [...element.querySelectorAll("details")].map((d) => d.open);
    element.replaceChildren(...parts);
    element.querySelectorAll("details").forEach((d, i) => { d.open = open[i] ?? d.open; });
  }

  function folded(title, text) {
    return make("details", "", make("summary", "", title), make("div", "body", text));
  }

  function tool(call, turn) {
    const box = make("details", "", make("summary", "", `Calls ${call.name}`), make("pre", "", make("code", "", call.arguments)));
    box.open = true;
    const answered = current && current.turns.some((t) => t.role === "tool" && t.id === call.id);
    if (turn.done && !answered) {
      const give = make("button", "", "Give its result");
      give.type = "button";
      give.addEventListener("click", () => {
        const result = prompt(`What does ${call.name} give?`);
        if (result === null) return;
        current.turns.push({ role: "tool", id: call.id, name: call.name, content: result });
        answer();
      });
      box.append(give);
    }
    return box;
  }

  function token(one) {
    const p = Math.exp(one.logprob);
    const element = make("span", `token ${p < 0.2 ? "low" : p < 0.6 ? "mid" : ""}`, one.token);
    element.tabIndex = 0;
    const lines = (one.top_logprobs || []).map((t) => `${(100 * Math.exp(t.logprob)).toFixed(1).padStart(5)} %  ${JSON.stringify(t.token)}`);
    const text = lines.join("\n") || `${(100 * p).toFixed(1)} %`;
    const tip = find("tip");
    const on = () => {
      const place = element.getBoundingClientRect();
      tip.textContent = text;
      tip.hidden = false;
      tip.style.left = `${Math.min(place.left, innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${place.bottom + 4 + tip.offsetHeight > innerHeight ? place.top - tip.offsetHeight - 4 : place.bottom + 4}px`;
    };
    const off = () => { tip.hidden = true; };
    element.addEventListener("mouseenter", on);
    element.addEventListener("focus", on);
    element.addEventListener("mouseleave", off);
    element.addEventListener("blur", off);
    return element;
  }

  function show() {
    list();
    find("title").textContent = current ? current.title : "New conversation";
    find("log").replaceChildren(...(current ? current.turns.map(draw) : []));
    find("log").scrollTop = find("log").scrollHeight;
    buttons();
  }

  function buttons() {
    find("stop").hidden = !running;
    find("send").hidden = Boolean(running);
    find("again").hidden = Boolean(running) || !current || !current.turns.some((t) => t.role === "assistant");
  }

  // What is sent.
  function messages() {
    const out = settings.system ? [{ role: "system", content: settings.system }] : [];
    for (const turn of current.turns) {
      if (turn.role === "assistant" && (turn.content || (turn.calls || []).length)) {
        const message = { role: "assistant", content: turn.content || "" };
        if ((turn.calls || []).length) {
          message.tool_calls = turn.calls.map((c) => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.arguments } }));
        }
        out.push(message);
      } else if (turn.role === "tool") out.push({ role: "tool", tool_call_id: turn.id, content: turn.content });
      else if (turn.role === "user") out.push({ role: "user", content: turn.content });
    }
    return out;
  }

  function body() {
    const out = { messages: messages(), stream: true, stream_options: { include_usage: true } };
    for (const name of ["temperature", "top_k", "top_p", "min_p", "seed", "max_tokens"]) {
      if (settings[name] !== undefined && settings[name] !== "") out[name] = Number(settings[name]);
    }
    if (settings.model) out.model = settings.model;
    if (settings.think) out.enable_thinking = settings.think === "on";
    if (settings.tools) out.tools = JSON.parse(settings.tools);
    if (settings.tokens) Object.assign(out, { logprobs: true, top_logprobs: 5 });
    return out;
  }

  const headers = () => ({ "content-type": "application/json", ...(settings.key ? { authorization: `Bearer ${settings.key}` } : {}) });

  async function answer() {
    const turn = { role: "assistant", content: "", reasoning: "", calls: [] };
    current.turns.push(turn);
    show();
    const element = find("log").lastElementChild;
    const stop = new AbortController();
    running = stop;
    buttons();
    const log = find("log");
    let due = false;
    const paint = () => {
      if (due) return;
      due = true;
      requestAnimationFrame(() => {
        due = false;
        const stays = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
        fill(element, turn);
        if (stays) log.scrollTop = log.scrollHeight;
      });
    };
    const state = { first: 0, count: 0 };
    try {
      const reply = await fetch(`${base}v1/chat/completions`, { method: "POST", headers: headers(), body: JSON.stringify(body()), signal: stop.signal });
      if (!reply.ok) throw new Error(await wrong(reply));
      for await (const chunk of events(reply.body)) {
        if (chunk.error) throw new Error(chunk.error.message);
        take(turn, chunk, state);
        paint();
      }
    } catch (error) {
      if (error.name === "AbortError") turn.foot = "stopped";
      else turn.error = error.message;
    }
    turn.done = true;
    running = null;
    fill(element, turn);
    buttons();
    save();
  }

  async function wrong(reply) {
    const text = await reply.text();
    try { return JSON.parse(text).error.message; } catch { return `${reply.status}: ${text.slice(0, 500)}`; }
  }

  async function* events(stream) {
    const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
      }
    }
  }

  function take(turn, chunk, state) {
    if (chunk.timings) turn.foot = cost(chunk);
    const choice = (chunk.choices || [])[0];
    if (!choice) return;
    const delta = choice.delta || {};
    if (delta.content) turn.content += delta.content;
    const thought = delta.reasoning_content || delta.reasoning;
    if (thought) turn.reasoning += thought;
    for (const call of delta.tool_calls || []) {
      const known = turn.calls[call.index] || (turn.calls[call.index] = { id: call.id, name: "", arguments: "" });
      if (call.function && call.function.name) known.name = call.function.name;
      if (call.function && call.function.arguments) known.arguments += call.function.arguments;
    }
    if (choice.logprobs && choice.logprobs.content) (turn.tokens = turn.tokens || []).push(...choice.logprobs.content);
    if (delta.content || thought) {
      const now = performance.now();
      state.first = state.first || now;
      state.count += 1;
      if (now > state.first) find("speed").textContent = `${(1000 * (state.count - 1) / (now - state.first)).toFixed(1)} tokens/s`;
    }
  }

  function cost({ timings, usage }) {
    const parts = [`${timings.predicted_n} tokens at ${timings.predicted_per_second.toFixed(1)}/s`];
    if (usage) parts.push(`prompt ${usage.prompt_tokens}, of which ${timings.cache_n} were cached`);
    return parts.join(" · ");
  }

  function send() {
    const input = find("input");
    const text = input.value.trim();
    if (running || (!text && !files.length)) return;
    ensure(text || files[0].name);
    const attached = files.map((f) => `${f.name}:\n\`\`\`\n${f.text}\n\`\`\``);
    const shown = [...files.map((f) => `📄 ${f.name}`), text].join("\n");
    current.turns.push({ role: "user", content: [...attached, text].join("\n\n"), shown });
    input.value = "";
    files = [];
    find("files").textContent = "";
    grow();
    answer();
  }

  function again() {
    if (running || !current) return;
    while (current.turns.length && current.turns.at(-1).role === "assistant") current.turns.pop();
    if (current.turns.length) answer();
  }

  function grow() {
    const input = find("input");
    input.style.height = "auto";
    input.style.height = `${input.scrollHeight}px`;
  }

  async function models() {
    try {
      const reply = await fetch(`${base}v1/models`, { headers: headers() });
      if (!reply.ok) return;
      const names = (await reply.json()).data.map((m) => m.id);
      form.model.replaceChildren(...names.map((n) => new Option(n, n)));
      form.model.value = names.includes(settings.model) ? settings.model : names[0];
    } catch { /* The first question will tell. */ }
  }

  // Settings.
  for (const field of form.elements) {
    if (!field.name) continue;
    const saved = settings[field.name];
    if (saved !== undefined) field.type === "checkbox" ? (field.checked = saved) : (field.value = saved);
    field.addEventListener("change", () => {
      settings[field.name] = field.type === "checkbox" ? field.checked : field.value;
      keep("settings", settings);
      if (field.name === "tokens") show();
      if (field.name === "key") models();
    });
  }
  form.addEventListener("submit", (event) => event.preventDefault());

  // What people do.
  find("ask").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  find("input").addEventListener("input", grow);
  find("input").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  });
  find("new").addEventListener("click", () => { fresh(); menu(false); });
  find("again").addEventListener("click", again);
  find("stop").addEventListener("click", () => running && running.abort());
  find("menu").addEventListener("click", () => menu(!find("side").classList.contains("shown")));
  find("log").addEventListener("click", () => menu(false));
  find("file").addEventListener("change", async (event) => {
    for (const file of event.target.files) files.push({ name: file.name, text: await file.text() });
    event.target.value = "";
    find("files").textContent = files.map((f) => `📄 ${f.name}`).join("  ");
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && running) running.abort();
    else if (event.ctrlKey && event.shiftKey && event.key.toLowerCase() === "o") { event.preventDefault(); fresh(); }
    else if (event.ctrlKey && event.shiftKey && event.key.toLowerCase() === "r") { event.preventDefault(); again(); }
  });

  models();
  show();
  find("input").focus();
})();
