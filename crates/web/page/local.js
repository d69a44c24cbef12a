"use strict";
// The page without a server: what it asks is answered by a model in this browser.
(() => {
  const worker = new Worker("worker.js", { type: "module" });
  const waiting = new Map();
  let models = null;
  let tellModels;
  const modelsTold = new Promise((resolve) => { tellModels = resolve; });
  let numbers = 0;

  const json = (text, status = 200) => new Response(text, { status, headers: { "content-type": "application/json" } });
  const refused = (message, status) => json(JSON.stringify({ error: { message } }), status);

  function answered({ body, signal }) {
    if (!models) return Promise.resolve(refused("no model is loaded: choose a file above", 503));
    const number = ++numbers;
    const asked = JSON.parse(body);
    // A page's randomness is better than what its programs have.
    asked.seed ??= crypto.getRandomValues(new Uint32Array(1))[0];
    return new Promise((resolve, reject) => {
      const encoder = new TextEncoder();
      let out = null;
      const begin = () => {
        if (out) return;
        const stream = new ReadableStream({ start: (controller) => { out = controller; } });
        resolve(new Response(stream, { headers: { "content-type": "text/event-stream" } }));
      };
      const line = (text) => out.enqueue(encoder.encode(`data: ${text}\n\n`));
      const end = () => waiting.delete(number);
      waiting.set(number, {
        object: ({ object }) => { begin(); line(object); },
        over: ({ host, pieces }) => {
          begin();
          line("[DONE]");
          out.close();
          end();
          window.lastAnswer = { host, pieces };
        },
        failed: ({ message }) => {
          end();
          if (!out) return resolve(refused(message, 400));
          line(JSON.stringify({ error: { message } }));
          out.close();
        },
      });
      signal?.addEventListener("abort", () => {
        if (!waiting.has(number)) return;
        worker.postMessage({ kind: "stop", number });
        end();
        const gone = new DOMException("stopped", "AbortError");
        out ? out.error(gone) : reject(gone);
      });
      worker.postMessage({ kind: "ask", number, body: JSON.stringify(asked) });
    });
  }

  const elsewhere = window.fetch.bind(window);
  window.fetch = async (resource, options = {}) => {
    const path = String(resource);
    if (path.endsWith("v1/chat/completions")) return answered(options);
    if (path.endsWith("v1/models")) return json(models || await modelsTold);
    return elsewhere(resource, options);
  };

  // Choosing a model.
  const make = (tag, fields, ...children) => {
    const element = Object.assign(document.createElement(tag), fields);
    element.append(...children);
    return element;
  };
  const state = make("span", { id: "loaded", role: "status" }, "Choose a GGUF file; it stays on this computer.");
  const input = make("input", { id: "model", type: "file", accept: ".gguf", hidden: true });
  const small = make("button", { id: "small", type: "button", title: "A small model of ours, 6 MB" }, "Small model");
  const bar = make("div", { id: "pick", className: "bar" }, make("label", { className: "button" }, "Model file", input), small, state);
  document.querySelector("main").prepend(bar);

  function open(name, source) {
    state.textContent = `Loading ${name} …`;
    worker.postMessage({ kind: "open", name, source, context: 4096 });
  }
  input.addEventListener("change", () => { if (input.files[0]) open(input.files[0].name, input.files[0]); });
  small.addEventListener("click", () => open("demo.gguf", new URL("demo.gguf", location).href));

  worker.onmessage = ({ data }) => {
    if (data.kind === "opened") {
      models = data.models;
      tellModels(models);
      const name = JSON.parse(models).data[0].id;
      state.textContent = `${name} in ${data.seconds.toFixed(1)} s, ${(data.bytes / 1048576).toFixed(0)} MiB on ${data.device}`;
    } else if (waiting.has(data.number)) waiting.get(data.number)[data.kind]?.(data);
    else if (data.kind === "failed") state.textContent = data.message;
  };
  worker.onerror = (error) => { state.textContent = `The engine ended: ${error.message}`; };
})();
