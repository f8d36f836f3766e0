"""A real Chromium, driven over its debugging protocol.

Owns where the browser is looked for and how it is started; knows nothing of what it looks at. Invariant:
where there is none, a test fails and says how to get one: it is never skipped.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # collected by `make test` too, which needs no browser
    from playwright.async_api import Browser, Page, ViewportSize

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
MISSING = (
    "no Chromium: install your system's package (Debian: apt-get install chromium), or run "
    "`python -m playwright install chromium`, or name one in CHROMIUM"
)


def executable() -> str | None:
    """The browser named in CHROMIUM, or the first on the path; None leaves it to playwright's own."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@asynccontextmanager
async def chromium() -> AsyncIterator["Browser"]:
    """A headless browser without a sandbox, for tests also run as root in containers."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        own = playwright.chromium.executable_path
        path = executable()
        assert path or await asyncio.to_thread(os.path.exists, own), MISSING
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def tab(
    browser: "Browser",
    address: str,
    theme: Literal["light", "dark"] = "light",
    width: int = 1440,
    height: int = 900,
    strict: bool = False,
) -> AsyncIterator["Page"]:
    """A fresh tab at an address; fails when the tab logged an error.

    strict: under the page's own security policy, which keeps a test from evaluating anything too.
    """
    size: ViewportSize = {"width": width, "height": height}
    context = await browser.new_context(viewport=size, color_scheme=theme, bypass_csp=not strict)
    view = await context.new_page()
    problems: list[str] = []
    view.on("pageerror", lambda error: problems.append(str(error)))
    view.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    await view.goto(address)
    try:
        yield view
        assert not problems, problems
    finally:
        await context.close()
