// Tint's opinion of WGSL: `node tint.mjs FOLDER FILE...`, where FOLDER holds node_modules with the package `webgpu`.
// The last line says `read N` or `skipped: WHY`; the exit status says nothing, since Dawn may fall when it is left.
import fs from 'node:fs';
import path from 'node:path';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [folder, ...files] = process.argv.slice(2);

function skip(why) {
    fs.writeSync(1, `skipped: ${why}\n`);
    process.exit(0);
}

let webgpu;
try {
    const found = createRequire(path.resolve(folder, 'x.js')).resolve('webgpu');
    webgpu = await import(pathToFileURL(found));
} catch {
    skip('the package webgpu is not there');
}
Object.assign(globalThis, webgpu.globals);
const gpu = webgpu.create(['backend=vulkan']);
const adapter = await gpu.requestAdapter();
if (!adapter) skip('Dawn finds no adapter');
const wanted = [...adapter.features].filter((f) => f === 'subgroups');
if (wanted.length === 0) skip('Dawn\'s adapter has no subgroups');
const device = await adapter.requestDevice({ requiredFeatures: wanted });

for (const file of files) {
    device.pushErrorScope('validation');
    const module = device.createShaderModule({ code: fs.readFileSync(file, 'utf8') });
    const info = await module.getCompilationInfo();
    await device.popErrorScope();
    const errors = info.messages.filter((m) => m.type === 'error');
    if (errors.length === 0) continue;
    const first = errors[0];
    fs.writeSync(1, `${path.basename(file)}:${first.lineNum}: ${first.message.split('\n')[0]}\n`);
}
fs.writeSync(1, `read ${files.length}\n`);
process.exit(0);
