"""The pool page in a real Chromium: a story told to the real scheduler, and what the browser makes of it.

Pictures of the scenes go to build/pool-page, to be looked at.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from octavo import arrays
from octavo.v1 import kv_cache_pb2 as kv
from tests.browser.chromium import chromium, tab
from tests.browser.story import Story, story
from tests.e2e.processes import REPOSITORY, Processes

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

pytestmark = pytest.mark.browser
PICTURES = REPOSITORY / "build" / "pool-page"


@pytest.fixture
async def browser() -> AsyncIterator["Browser"]:
    PICTURES.mkdir(parents=True, exist_ok=True)
    async with chromium() as running:
        yield running


async def until(view: "Page", condition: str) -> None:
    await view.wait_for_function(condition, timeout=10_000)


async def says(view: "Page", element: str, *texts: str) -> None:
    """Waits until an element's text holds all of these."""
    for text in texts:
        await until(view, f"document.querySelector({element!r}).innerText.includes({text!r})")


async def count(view: "Page", elements: str, number: int) -> None:
    await until(view, f"document.querySelectorAll({elements!r}).length === {number}")


async def assert_the_browser_has_the_pool(told: Story, view: "Page") -> None:
    """Block for block what GetPoolMap says, once the stream has caught up with a worker that is held."""
    for _ in range(40):
        await asyncio.sleep(0.25)
        pool: kv.GetPoolMapResponse = await told.rig.service.kv.GetPoolMap(kv.GetPoolMapRequest())
        refs, fill = arrays.decode(pool.ref_count, "refs"), arrays.decode(pool.fill, "fill")
        wanted = list(zip(pool.state, pool.cached, refs.tolist(), fill.tolist(), strict=True))
        seen = await view.evaluate("[...octavo.live.flags].map((flags, i) => [flags, octavo.live.fill[i]])")
        if [(flags & 3, flags >> 2 & 1, flags >> 3, fill) for flags, fill in seen] == wanted:
            return
    raise AssertionError(f"the browser has {seen}, the pool is {wanted}")


async def tile(view: "Page", name: str, value: str) -> None:
    """Waits until a tile shows this."""
    tiles = "[...document.querySelectorAll('.tile')]"
    await until(
        view,
        f"{tiles}.some(t => t.children[0].innerText === {name!r} && t.children[1].innerText === {value!r})",
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_the_story_is_drawn_as_it_happens(
    browser: "Browser", processes: Processes, tiny_llama: Path, theme: str
) -> None:
    async with story(processes, tiny_llama) as told, tab(browser, told.address, theme) as view:
        await until(view, "octavo.live.pool.blocks === 60")

        await told.sharing()
        await assert_the_browser_has_the_pool(told, view)
        await count(view, ".card", 3)
        await tile(view, "shared", "4")
        await says(view, "#events", "4 blocks shared (0, 1, 2, 3)")
        await says(view, "#cards", "95 (64 cached) + ")
        await view.screenshot(path=PICTURES / f"sharing-{theme}.png")
        await view.locator(".card .head", has_text="blaise").click()
        await says(view, "#inspector", "Runs: ", "64 of its 73 prompt tokens came from the prefix cache")
        await view.keyboard.press("Escape")

        await told.ended()
        await told.eviction()
        await assert_the_browser_has_the_pool(told, view)
        await says(view, "#events", "evicted", "dorothy got its row; 64 tokens from the cache")
        await view.screenshot(path=PICTURES / f"eviction-{theme}.png")

        await told.preemption()
        await assert_the_browser_has_the_pool(told, view)
        await says(view, "#events", "hedy preempted")
        await view.locator(".card .head", has_text="ivan").click()
        await says(view, "#inspector", "in the queue: hedy")
        await view.screenshot(path=PICTURES / f"preemption-{theme}.png")

        await view.keyboard.press("Escape")
        await view.mouse.move(720, 890)
        await told.forking()
        await assert_the_browser_has_the_pool(told, view)
        await asyncio.sleep(0.7)  # arrows of copies have arrived
        await says(view, "#events", "katherine#0 forked into 3 branches", "copy-on-write: ")
        await says(view, "#cards", "katherine#0", "katherine#1", "katherine#2")
        await tile(view, "shared", "5")
        await view.screenshot(path=PICTURES / f"fork-{theme}.png")

        await told.swapping_out()
        await assert_the_browser_has_the_pool(told, view)
        await says(view, "#events", "margaret preempted", "copied out to host memory")
        fenced = (await told.rig.service.stats()).fenced_blocks
        assert fenced > 20
        await until(view, "octavo.live.gauges.swapped === 1")
        await tile(view, "fenced", str(fenced))
        await count(view, ".chip.swapped", 1)
        await view.locator(".card .head", has_text="margaret").click()
        await says(view, "#inspector", "Waits for a transfer to host memory to end", "blocks in host memory")
        await view.screenshot(path=PICTURES / f"swap-out-{theme}.png")
        await view.keyboard.press("Escape")
        await told.swapping_in()
        await assert_the_browser_has_the_pool(told, view)
        await says(view, "#events", "copied back from host memory")
        await until(view, "octavo.live.gauges.swapped === 0")
        await tile(view, "fenced", "0")
        await count(view, ".chip.swapped", 0)
        await view.screenshot(path=PICTURES / f"swap-in-{theme}.png")

        await told.end()
        await until(view, "octavo.live.gauges.active === 0")
        await count(view, ".card", 0)


async def test_it_works_under_its_own_security_policy(
    browser: "Browser", processes: Processes, tiny_llama: Path
) -> None:
    async with story(processes, tiny_llama) as told, tab(browser, told.address, strict=True) as view:
        await view.get_by_text("60 blocks of 16 tokens").wait_for(timeout=10_000)
        await told.sharing()
        await view.locator(".card .head", has_text="blaise").click()
        await view.get_by_text("of its 73 prompt tokens came from the prefix cache").wait_for(timeout=10_000)
        assert await view.locator("#connection").inner_text() == "live"


async def test_time_can_be_turned_back(browser: "Browser", processes: Processes, tiny_llama: Path) -> None:
    """What the slider shows is what was there, block for block, and the present goes on behind it."""
    async with story(processes, tiny_llama) as told, tab(browser, told.address) as view:
        await until(view, "octavo.live.pool.blocks === 60")
        await told.sharing()
        await asyncio.sleep(0.35)
        then = await view.evaluate("({t: octavo.live.t, flags: [...octavo.live.flags]})")
        await told.ended()
        await told.eviction()
        await asyncio.sleep(0.35)
        slider = view.locator("#slider")
        await slider.focus()
        for _ in range(1000):  # keys move it as they move any slider
            await view.keyboard.press("ArrowLeft")
            if await view.evaluate(f"octavo.view.t <= {then['t']} + 0.05"):
                break
        shown: dict[str, Any] = await view.evaluate("({t: octavo.view.t, flags: [...octavo.view.flags]})")
        assert abs(shown["t"] - then["t"]) < 0.5
        assert await view.evaluate(f"[...octavo.history.at({then['t']}).flags]") == then["flags"]
        assert await view.locator("#live").get_attribute("aria-pressed") == "false"
        await until(view, "document.getElementById('when').textContent.endsWith('s ago')")
        await view.locator(".card", has_text="ada").wait_for()
        await view.screenshot(path=PICTURES / "past.png")
        await view.locator("h1").click()
        await view.keyboard.press("Space")
        await until(view, "document.getElementById('when').textContent === 'now'")
        await view.locator(".card", has_text="ada").wait_for(state="detached")
        await assert_the_browser_has_the_pool(told, view)


async def test_everything_can_be_reached_by_keys(
    browser: "Browser", processes: Processes, tiny_llama: Path
) -> None:
    async with story(processes, tiny_llama) as told, tab(browser, told.address) as view:
        await until(view, "octavo.live.pool.blocks === 60")
        await told.sharing()
        keys = view.keyboard
        await keys.press("b")
        for key in ("ArrowRight", "ArrowDown", "Enter"):
            await keys.press(key)
        columns = await view.evaluate("octavo.map.columns")
        await until(view, f"document.querySelector('#inspector h2').textContent === ' Block {columns + 1}'")
        await keys.press("Home")
        await keys.press("Enter")
        await until(view, "document.querySelector('#inspector').textContent.includes('hash chain')")
        await says(view, "#inspector", "ada [0]", "blaise [0]", "charles [0]", "2 saved by sharing", "root")
        await view.screenshot(path=PICTURES / "block.png")
        await keys.press("j")
        await until(view, "document.querySelector('#inspector h2').textContent.endsWith('ada')")
        await keys.press("j")
        await until(view, "document.querySelector('#inspector h2').textContent.endsWith('blaise')")
        before = await view.evaluate("document.documentElement.dataset.theme")
        await keys.press("t")
        assert await view.evaluate("document.documentElement.dataset.theme") != before
        await keys.press("c")
        assert await view.locator("#colour").inner_text() == "Colour: state"
        await view.screenshot(path=PICTURES / "by-state.png")
        await keys.press("?")
        assert await view.locator("#keys").is_visible()
        await keys.press("Escape")
        assert not await view.locator("#keys").is_visible()


async def test_it_asks_for_the_token_and_takes_it_from_the_address(
    browser: "Browser", processes: Processes, tiny_llama: Path, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-of-the-tests-0123456789")
    flags = ("--pool-page-token-file", str(file))
    async with story(processes, tiny_llama, *flags) as told:
        context = await browser.new_context(bypass_csp=True)
        view = await context.new_page()
        await view.goto(told.address)
        await view.locator("#token").fill("wrong")
        await view.keyboard.press("Enter")
        await until(view, "document.getElementById('ask').open")
        await view.locator("#token").fill("a-token-of-the-tests-0123456789")
        await view.keyboard.press("Enter")
        await until(view, "octavo.live.pool.blocks === 60")
        await context.close()
        async with tab(browser, told.address + "#token=a-token-of-the-tests-0123456789") as other:
            await until(other, "octavo.live.pool.blocks === 60")
            assert "token" not in other.url


async def test_a_worker_that_goes_and_comes_back_is_seen(
    browser: "Browser", processes: Processes, tiny_llama: Path
) -> None:
    async with story(processes, tiny_llama) as told, tab(browser, told.address) as view:
        await until(view, "octavo.live.pool.blocks === 60")
        await told.sharing()
        await told.rig.fake.die()
        await until(view, "octavo.live.pool.blocks === 0 && !document.getElementById('empty').hidden")
        assert "No worker is connected" in await view.locator("#empty").inner_text()
        await until(view, "document.querySelectorAll('.chip.preempted').length === 3")
        await told.rig.fake.restart()
        await told.rig.fake.release()
        await until(view, "octavo.live.pool.blocks === 60")
        await until(view, "document.querySelectorAll('.card').length === 0")


async def test_a_narrow_window_still_shows_all_of_it(
    browser: "Browser", processes: Processes, tiny_llama: Path
) -> None:
    async with (
        story(processes, tiny_llama) as told,
        tab(browser, told.address, width=480, height=900) as view,
    ):
        await until(view, "octavo.live.pool.blocks === 60")
        await told.sharing()
        wide = await view.evaluate("document.documentElement.scrollWidth")
        assert wide <= 480
        for part in ("#tiles", "#cards", "#map", "#inspector", "#timeline"):
            assert await view.locator(part).is_visible()
        await view.screenshot(path=PICTURES / "narrow.png", full_page=True)
