"""The page without a server, in a real Chromium whose GPU is SwiftShader: `python browser.py FOLDER MODEL [SHOTS]`, one line per check.

FOLDER is what `cargo xtask web` has built; MODEL a file that is picked in the page. Prints what a token costs the worker's
thread. With SHOTS, what the page looks like is written there.
"""

import asyncio
import sys
from pathlib import Path

from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "clients"))
FOLDER, MODEL = Path(sys.argv[1]), Path(sys.argv[2])
SHOTS = sys.argv[3] if len(sys.argv) > 3 else None
import page as tab  # noqa: E402

GPU = [
    "--enable-unsafe-webgpu",
    "--enable-unsafe-swiftshader",
    "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan",
    "--use-vulkan=swiftshader",
    "--use-angle=swiftshader",
]
QUESTION = "Which is larger, 482 or 1204?"
LOADED = "document.getElementById('loaded').textContent"
asked = []


async def load(page, model):
    await page.call("Page.navigate", url=tab.URL)
    await page.until("document.readyState === 'complete' && !!document.getElementById('pick')")
    await model(page)
    for _ in range(1200):
        text = await page.value(LOADED)
        if " MiB on " in text:
            return text
        assert text.startswith(("Loading", "Choose")), text
        await asyncio.sleep(0.1)
    raise AssertionError(f"not loaded: {text}")


async def click(page):
    await page.value("document.getElementById('small').click()")


async def pick(page, file=MODEL):
    root = await page.call("DOM.getDocument")
    node = await page.call("DOM.querySelector", nodeId=root["root"]["nodeId"], selector="#model")
    await page.call("DOM.setFileInputFiles", files=[str(file)], nodeId=node["nodeId"])


async def answer(page, text):
    await page.value("document.getElementById('input').focus()")
    await page.ask(text)
    await page.until("!document.getElementById('stop').hidden", 5)
    await page.until("document.getElementById('stop').hidden", 240)
    return await page.value(tab.ANSWER)


async def nothing_is_answered_without_a_model(page):
    await page.call("Page.navigate", url=tab.URL)
    await page.until("document.readyState === 'complete' && !!document.getElementById('pick')")
    text = await answer(page, QUESTION)
    assert "choose a file" in text, text


async def the_small_model_answers(page):
    await page.value("localStorage.clear()")
    said = await load(page, click)
    text = await answer(page, QUESTION)
    assert "1204" in text and "tokens" in text, text
    cost = await page.value("JSON.stringify(window.lastAnswer)")
    print(f"    {said}; {text.splitlines()[-1]}; of the last answer {cost}")
    if SHOTS:
        await page.shot("page")


async def the_same_question_has_the_same_answer(page):
    # Greedy, twice: what was stored of the first prompt changes nothing.
    await page.value("const form = document.getElementById('form'); form.temperature.value = '0'; form.temperature.dispatchEvent(new Event('change', { bubbles: true }))")
    texts = []
    for _ in range(2):
        await page.key("O", "KeyO", 79, modifiers=2 | 8)
        texts.append((await answer(page, "Count from 3 to 12.")).splitlines())
    first, second = (next(line for line in text if "3" in line) for text in texts)
    assert first == second and "3, 4, 5" in first, texts


async def an_answer_can_be_stopped(page):
    await page.key("O", "KeyO", 79, modifiers=2 | 8)
    await page.ask("Tell me a story about a fox and a lantern.")
    await page.until("document.querySelector('.turn.assistant')?.innerText.length > 3", 60)
    await page.key("Escape", "Escape", 27)
    await page.until("document.getElementById('stop').hidden")
    text = await answer(page, QUESTION)
    assert "1204" in text, text


async def a_file_that_is_picked_answers(page):
    await load(page, pick)
    await page.key("O", "KeyO", 79, modifiers=2 | 8)
    text = await answer(page, QUESTION)
    assert "1204" in text, text
    assert not any("demo" in path for path in asked[-3:]), asked


async def what_is_no_model_is_named(page):
    await page.call("Page.navigate", url=tab.URL)
    await page.until("document.readyState === 'complete' && !!document.getElementById('pick')")
    await pick(page, FOLDER / "index.html")
    await page.until(f"{LOADED}.includes('index.html')")
    await page.until(f"!{LOADED}.startsWith('Loading')", 60)
    text = await page.value(LOADED)
    assert "GGUF" in text, text


async def serve():
    """The folder, with ranges."""

    async def note(app, handler):
        async def handle(request):
            asked.append(f"{request.method} {request.path} {request.headers.get('range', '')}")
            return await handler(request)

        return handle

    app = web.Application(middlewares=[note])
    app.router.add_get("/", lambda _: web.FileResponse(FOLDER / "index.html"))
    app.router.add_static("/", FOLDER)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return site._server.sockets[0].getsockname()[1]


async def main():
    tab.URL, tab.SHOTS = f"http://127.0.0.1:{await serve()}/", SHOTS
    checks = [
        nothing_is_answered_without_a_model,
        the_small_model_answers,
        the_same_question_has_the_same_answer,
        an_answer_can_be_stopped,
        a_file_that_is_picked_answers,
        what_is_no_model_is_named,
    ]
    return await tab.main(checks, GPU)


sys.exit(1 if asyncio.run(main()) else 0)
