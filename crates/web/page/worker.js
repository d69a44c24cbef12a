// The engine, on a thread of its own: it is given turns, and between them the browser tells what the GPU has done.
import init, { gpu, Engine } from "./engine/tokkata_web.js";

let engine = null;
let going = false;
// What each answer has cost this thread, by the page's number of it: milliseconds of turns, and pieces of text.
const answers = new Map();
const channel = new MessageChannel();
channel.port1.onmessage = () => go();

function readerOf(source) {
  if (source instanceof Blob) {
    const files = new FileReaderSync();
    return [source.size, (offset, length) => new Uint8Array(files.readAsArrayBuffer(source.slice(offset, offset + length)))];
  }
  const ask = (method, range) => {
    const request = new XMLHttpRequest();
    request.open(method, source, false);
    if (range) {
      request.setRequestHeader("range", range);
      request.responseType = "arraybuffer";
    }
    request.send();
    if (request.status !== 200 && request.status !== 206) throw new Error(`the server answers ${request.status} for ${source}`);
    return request;
  };
  const size = Number(ask("HEAD").getResponseHeader("content-length"));
  let whole = null;
  return [size, (offset, length) => {
    if (!whole) {
      const reply = ask("GET", `bytes=${offset}-${offset + length - 1}`);
      if (reply.status === 206) return new Uint8Array(reply.response);
      // A server without ranges gives all of it.
      whole = new Uint8Array(reply.response);
    }
    return whole.slice(offset, offset + length);
  }];
}

async function open({ name, source, context }) {
  await init();
  const device = await gpu();
  const [size, read] = readerOf(source);
  if (engine) engine.free();
  engine = null;
  const began = performance.now();
  engine = Engine.open(name, size, read, context);
  postMessage({ kind: "opened", device, models: engine.models(), seconds: (performance.now() - began) / 1000, bytes: engine.memory_bytes() });
}

function go() {
  const until = performance.now() + 8;
  let state = 1;
  while (state === 1 && performance.now() < until) {
    const began = performance.now();
    state = engine.turn();
    const spent = performance.now() - began;
    for (const answer of [...answers.values()]) {
      answer.host += spent;
      tell(answer);
    }
  }
  going = state !== 0 && answers.size > 0;
  if (going) channel.port2.postMessage(0);
}

function tell(answer) {
  try {
    for (;;) {
      const object = engine.next(answer.id);
      if (object === undefined) return;
      if (object === null) break;
      answer.pieces += 1;
      postMessage({ kind: "object", number: answer.number, object });
    }
    postMessage({ kind: "over", number: answer.number, host: answer.host, pieces: answer.pieces });
  } catch (error) {
    postMessage({ kind: "failed", number: answer.number, message: error.message });
  }
  answers.delete(answer.number);
}

function ask({ number, body }) {
  answers.set(number, { number, id: engine.ask(body), host: 0, pieces: 0 });
  if (!going) channel.port2.postMessage(0);
  going = true;
}

onmessage = async ({ data }) => {
  try {
    if (data.kind === "open") await open(data);
    if (data.kind === "ask") ask(data);
    if (data.kind === "stop" && answers.has(data.number)) {
      engine.stop(answers.get(data.number).id);
      answers.delete(data.number);
    }
  } catch (error) {
    postMessage({ kind: "failed", number: data.number, message: error.message || String(error) });
  }
};
