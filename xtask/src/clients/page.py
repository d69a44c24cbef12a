"""The page in a real Chromium, over its debugging protocol: `python page.py URL [FOLDER]`, one line per check.

With a folder, what the page looks like is written there.
"""

import asyncio
import base64
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import aiohttp

URL, SHOTS = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
QUESTION = "Which is larger, 482 or 1204?"
checks = []


def check(function):
    checks.append(function)
    return function


class Page:
    """A tab: calls, and the events that came."""

    def __init__(self, socket):
        self.socket, self.calls, self.events, self.number = socket, {}, [], 0

    async def listen(self):
        async for message in self.socket:
            told = json.loads(message.data)
            if "id" in told:
                self.calls.pop(told["id"]).set_result(told.get("result"))
            else:
                self.events.append(told)

    async def call(self, method, **params):
        self.number += 1
        answer = self.calls[self.number] = asyncio.get_running_loop().create_future()
        await self.socket.send_json({"id": self.number, "method": method, "params": params})
        return await asyncio.wait_for(answer, 30)

    async def value(self, code):
        told = await self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, code, seconds=20):
        for _ in range(int(seconds * 20)):
            if await self.value(code):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"never came true: {code}")

    async def key(self, key, code, number, modifiers=0, text=None):
        common = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def enter(self):
        await self.key("Enter", "Enter", 13, text="\r")

    async def load(self):
        await self.call("Page.navigate", url=URL)
        await self.until("document.readyState === 'complete' && document.activeElement?.id === 'input'")

    async def ask(self, text):
        await self.call("Input.insertText", text=text)
        await self.enter()

    async def over(self):
        await self.until("!document.getElementById('send').hidden && !!document.querySelector('.turn.assistant')")

    async def shot(self, name):
        if SHOTS:
            image = await self.call("Page.captureScreenshot", format="png")
            Path(SHOTS, f"{name}.png").write_bytes(base64.b64decode(image["data"]))


ANSWER = "[...document.querySelectorAll('.turn.assistant')].at(-1).innerText"


@check
async def a_question_is_answered_from_the_keyboard_alone(page):
    await page.load()
    await page.ask(QUESTION)
    await page.over()
    text = await page.value(ANSWER)
    assert "1204" in text and "tokens" in text, text
    await page.shot("answer")


@check
async def it_answers_again(page):
    await page.key("R", "KeyR", 82, modifiers=2 | 8)
    await page.over()
    assert await page.value("document.querySelectorAll('.turn.assistant').length") == 1


@check
async def conversations_are_kept_and_begun_anew(page):
    await page.load()
    assert "1204" in await page.value(ANSWER)
    await page.key("O", "KeyO", 79, modifiers=2 | 8)
    assert await page.value("document.querySelectorAll('.turn').length") == 0
    assert await page.value("document.activeElement.id") == "input"
    assert await page.value("document.querySelectorAll('#list .open').length") == 1


@check
async def an_answer_can_be_stopped(page):
    await page.ask("Tell me a story about a fox and a lantern.")
    await page.until("document.querySelector('.turn.assistant')?.innerText.length > 3")
    await page.key("Escape", "Escape", 27)
    await page.over()
    text = await page.value(ANSWER)
    assert text, "what there was has gone"


@check
async def tokens_show_their_alternatives(page):
    await page.value("document.querySelector('[name=tokens]').click()")
    await page.key("O", "KeyO", 79, modifiers=2 | 8)
    await page.ask(QUESTION)
    await page.over()
    await page.value("document.querySelector('.token').focus()")
    await page.until("!document.getElementById('tip').hidden && document.getElementById('tip').textContent.includes('%')", 5)
    await page.shot("tokens")
    await page.value("document.querySelector('[name=tokens]').click()")


@check
async def calls_of_tools_are_shown_and_answered(page):
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
    code = f"const f = document.querySelector('[name=tools]'); f.value = JSON.stringify([{json.dumps(tool)}]); f.dispatchEvent(new Event('change'))"
    await page.value("{" + code + "}")
    await page.key("O", "KeyO", 79, modifiers=2 | 8)
    await page.ask("What is the weather in Paris?")
    await page.over()
    assert "Calls get_weather" in await page.value(ANSWER), await page.value(ANSWER)
    give = "[...document.querySelectorAll('button')].find(b => b.textContent === 'Give its result')"
    assert await page.value(f"{give}.checkVisibility()"), "the call is folded"
    await page.shot("tool")
    await page.value(f"window.prompt = () => 'sunny'; {give}.click()")
    await page.until("document.querySelectorAll('.turn.assistant').length === 2")
    await page.over()
    await page.value("{const f = document.querySelector('[name=tools]'); f.value = ''; f.dispatchEvent(new Event('change'))}")


@check
async def it_is_dark_where_the_rest_is(page):
    await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    back = await page.value("getComputedStyle(document.body).backgroundColor")
    assert back == "rgb(22, 24, 26)", back
    await page.shot("dark")
    await page.call("Emulation.setEmulatedMedia", features=[])


@check
async def it_fits_a_phone(page):
    await page.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
    await page.load()
    wide = await page.value("document.documentElement.scrollWidth")
    assert wide <= 360, wide
    assert await page.value("getComputedStyle(document.getElementById('side')).visibility") == "hidden"
    await page.shot("phone")
    await page.value("document.getElementById('menu').click()")
    await page.until("getComputedStyle(document.getElementById('side')).visibility === 'visible'")
    await asyncio.sleep(0.3)
    await page.shot("menu")
    small = await page.value("[...document.querySelectorAll('button, .button')].filter(b => b.offsetHeight && b.offsetHeight < 28).map(b => b.textContent)")
    assert not small, small


@check
async def an_error_is_told(page):
    await page.load()
    await page.value("{const f = document.querySelector('[name=temperature]'); f.value = '-1'; f.dispatchEvent(new Event('change'))}")
    await page.key("O", "KeyO", 79, modifiers=2 | 8)
    await page.ask(QUESTION)
    await page.over()
    assert "temperature" in await page.value(ANSWER)
    await page.value("{const f = document.querySelector('[name=temperature]'); f.value = ''; f.dispatchEvent(new Event('change'))}")


@check
async def nothing_comes_from_elsewhere_and_nothing_breaks(page):
    asked = [e["params"]["request"]["url"] for e in page.events if e["method"] == "Network.requestWillBeSent"]
    assert asked and all(url.startswith(URL) for url in asked), asked
    wrong = [e["params"] for e in page.events if e["method"] == "Runtime.exceptionThrown"]
    told = [e["params"]["entry"] for e in page.events if e["method"] == "Log.entryAdded"]
    told = [t for t in told if t["level"] == "error" and "400" not in t["text"]]
    assert not wrong and not told, (wrong, told)


@check
async def scripts_of_others_do_not_run(page):
    code = "new Promise(done => { const s = document.createElement('script'); s.textContent = 'window.bad = 1'; document.body.append(s); setTimeout(() => done(window.bad), 50) })"
    assert await page.value(code) is None


async def main(checks=checks, gpu=("--disable-gpu",)):
    program = next((p for p in map(shutil.which, ["chromium", "chromium-browser", "google-chrome"]) if p), None)
    if program is None:
        print("skipped  chromium is not installed")
        return 0
    failed = 0
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless=new", "--no-sandbox", *gpu, "--remote-debugging-port=0", "--window-size=1200,800"]
        browser = subprocess.Popen([program, *flags, f"--user-data-dir={profile}", "about:blank"], stderr=subprocess.DEVNULL)
        try:
            port = Path(profile, "DevToolsActivePort")
            for _ in range(200):
                if port.exists() and port.read_text().strip():
                    break
                await asyncio.sleep(0.05)
            address = f"http://127.0.0.1:{port.read_text().split()[0]}"
            async with aiohttp.ClientSession() as session:
                tabs = await (await session.get(f"{address}/json")).json()
                tab = next(t for t in tabs if t["type"] == "page")
                async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    listening = asyncio.create_task(page.listen())
                    for domain in ["Page", "Runtime", "Network", "Log"]:
                        await page.call(f"{domain}.enable")
                    await page.call("Emulation.setFocusEmulationEnabled", enabled=True)
                    for function in checks:
                        try:
                            await function(page)
                            print(f"ok  {function.__name__}")
                        except Exception as error:
                            failed += 1
                            print(f"failed  {function.__name__}: {type(error).__name__}: {str(error)[:300]}".replace("\n", " "))
                    listening.cancel()
        finally:
            browser.kill()
            browser.wait()
    return failed


if __name__ == "__main__":
    sys.exit(1 if asyncio.run(main()) else 0)
