"""A browser that shows the gateway's pages."""

import asyncio
import json
import shutil

import pytest
from fastapi import Request, Response

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
START = """
const $ = id => document.getElementById(id);
const until = async done => { while (!done()) await new Promise(next => setTimeout(next, 20)); };
"""
END = """
await fetch("page/seen", {method: "POST", body: JSON.stringify(seen)});
"""


@pytest.fixture
async def browse(gateway, tmp_path):
    """Shows a page in Chromium and runs a script in it, under the page's policy; gives its `seen`.

    `path`: the page's. `window`: width and height in pixels. `tmp_path` is the browser's profile.
    """
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")

    async def browse(path, script, window="1300,900"):
        seen = asyncio.get_running_loop().create_future()

        async def page():
            real = await gateway.http.get(path)
            text = real.text.replace("</head>", '<script type="module" src="page/reader.js"></script></head>')
            policy = real.headers["content-security-policy"]
            return Response(text, media_type="text/html", headers={"Content-Security-Policy": policy})

        async def reader():
            return Response(START + script + END, media_type="text/javascript")

        async def tell(request: Request):
            seen.set_result(await request.json())

        gateway.app.add_api_route("/read", page)
        gateway.app.add_api_route("/page/reader.js", reader)
        gateway.app.add_api_route("/page/seen", tell, methods=["POST"])
        browser = await asyncio.create_subprocess_exec(
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"),
            *("--remote-debugging-port=0", f"--window-size={window}", f"{gateway.url}/read"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        ended = asyncio.ensure_future(browser.wait())
        try:
            await asyncio.wait((seen, ended), return_when=asyncio.FIRST_COMPLETED)
            if not seen.done():
                pytest.skip("Chromium does not run here")
            return seen.result()
        finally:
            if browser.returncode is None:
                browser.terminate()
                await ended

    return browse


@pytest.fixture
def blocked(tmp_path):
    """The browser's profile blocks what pages keep."""
    blocks = {"profile": {"default_content_setting_values": {"cookies": 2}}}
    (tmp_path / "Default").mkdir()
    (tmp_path / "Default" / "Preferences").write_text(json.dumps(blocks))
