"""The page in a real browser, over a real controller: what it shows, live, within its limits, for everybody."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, async_playwright, expect

from apparate.contract.stream import FIELD, feedback_key, worker_key, workers_key
from apparate.contract.wire import encode_feedback
from apparate.service.redis_client import connect
from support import programs
from support.control import MODEL, a_batch
from support.controller_api import Api, an_api, fed, served
from support.eventually import eventually_async

pytestmark = [pytest.mark.redis, pytest.mark.browser]
LIMIT_BYTES = 200_000
expect.set_options(timeout=30_000)  # of a browser on a busy machine
DESK, PHONE = {"width": 1200, "height": 900}, {"width": 375, "height": 800}


@dataclass
class Seen:
    """A page, and what its browser complained about or loaded."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    loaded: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    @property
    def asked_elsewhere(self) -> list[str]:
        """What its browser wanted from others, whether it got it or not."""
        return [url for url in self.asked if not url.startswith((f"{self.url}/", "data:"))]


@pytest.fixture
async def api(redis_server, tmp_path) -> AsyncIterator[Api]:
    async with an_api(redis_server, tmp_path) as found:
        yield found


@contextlib.asynccontextmanager
async def looking(api: Api, size=DESK, scheme="light", fragment="") -> AsyncIterator[Seen]:
    async with served(api.app) as url, async_playwright() as driver:
        chromium = await driver.chromium.launch(executable_path=programs.path(programs.BROWSERS), args=["--no-sandbox"])
        page = await chromium.new_page(viewport=size, color_scheme=scheme)
        seen = Seen(page, url)

        async def note(response) -> None:
            with contextlib.suppress(Exception):  # a body that is gone when the page was left
                seen.loaded[response.url] = len(await response.body())

        page.on("console", lambda message: seen.complaints.append(message.text))
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("request", lambda request: seen.asked.append(request.url))
        page.on("response", note)
        await page.goto(f"{url}/{fragment}")
        try:
            yield seen
        finally:
            await chromium.close()


async def served_well(api: Api, batches: int = 120) -> None:
    """Feedback of ramps that are sure and right, with the times of answers; waits for a plan that lets them go."""
    loop = api.models.find("default", "m").loop
    draw = np.random.default_rng(0)
    async with contextlib.aclosing(connect(api.url)) as client:
        for seq in range(batches):
            batch = replace(
                a_batch(seq, n=8, revision=loop.plan.revision),
                errors=draw.random((8, 3), np.float32) / 100,
                labels=np.zeros((8, 3), np.int32),
                final_labels=np.zeros(8, np.int32),
                released_ms=draw.random(8, np.float32) + 2,
            )
            await client.xadd(feedback_key(MODEL), {FIELD: encode_feedback(batch)})
    await eventually_async(lambda: loop.plan.exits_open)


async def test_the_list_leads_to_a_model_and_back_by_keyboard(api):
    await fed(api, 10)
    async with looking(api) as seen:
        await expect(seen.page.get_by_role("row", name="default/m ")).to_contain_text("no live worker")
        await expect(seen.page.get_by_role("row", name="default/unprepared")).to_contain_text("not prepared yet")
        await seen.page.get_by_role("link", name="default/m", exact=True).focus()
        await seen.page.keyboard.press("Enter")
        await expect(seen.page.get_by_role("heading", level=1)).to_have_text("default/m")
        await seen.page.get_by_role("link", name="Models").focus()
        await seen.page.keyboard.press("Enter")
        await expect(seen.page.get_by_role("heading", level=1)).to_have_text("Models")
        assert seen.complaints == []


async def test_a_model_shows_where_answers_leave_how_fast_and_why(api):
    await served_well(api)
    async with looking(api, fragment="#/default/m") as seen:
        await expect(seen.page.get_by_role("img", name="Ramp map: 3 sites")).to_be_visible()
        await expect(seen.page.get_by_role("img", name="Latency distribution. Median 2.")).to_be_visible()
        await expect(seen.page.get_by_role("region", name="Newest first")).to_contain_text("ThresholdsTuned")
        today = re.compile(r"% / .*%")  # what a plan would lose and save on the window as it is
        await expect(seen.page.get_by_role("region", name="Newest first")).to_contain_text(today)
        assert seen.complaints == []


async def test_a_paused_model_says_since_when_and_by_whom_and_has_it_in_its_history(api):
    await served_well(api)
    await api.client.put("/v1/models/default/m/paused", json={"paused": True, "by": "alice"})
    async with contextlib.aclosing(connect(api.url)) as client:
        await client.set(worker_key(MODEL, "w"), json.dumps({"revision": 1, "in_flight": 0}), ex=600)
        await client.sadd(workers_key(MODEL), "w")
    async with looking(api, fragment="#/default/m") as seen:
        await expect(seen.page.get_by_role("region", name="Newest first")).to_contain_text("PausedByHand")
        await expect(seen.page.get_by_text("paused since 20")).to_contain_text("by alice")
        assert seen.complaints == []


async def test_it_follows_what_happens_while_it_is_looked_at(api):
    async with looking(api, fragment="#/default/m") as seen:
        await expect(seen.page.get_by_text("No answer yet.")).to_be_visible()
        await served_well(api)
        await expect(seen.page.get_by_role("img", name="Latency distribution.")).to_be_visible()


async def test_sliders_ask_what_another_budget_would_do(api):
    await served_well(api)
    async with looking(api, fragment="#/default/m") as seen:
        frontier = seen.page.get_by_role("img", name="Saving by accuracy budget.")
        await expect(frontier).to_be_visible()
        before = await frontier.get_attribute("aria-label")
        slider = seen.page.get_by_role("slider", name="Accuracy loss")
        await slider.focus()
        await seen.page.keyboard.press("Home")  # the smallest budget, for which there are too few records
        await expect(seen.page.get_by_text("Too few records to certify anything")).to_be_visible()
        assert "Too few" not in (before or "")


async def test_a_controller_that_is_gone_is_told(api):
    async with looking(api) as seen:
        await expect(seen.page.locator("#state")).to_have_text("live")
        await seen.page.context.set_offline(True)
        await expect(seen.page.locator("#state")).to_have_text("the controller does not answer")
        await seen.page.context.set_offline(False)
        await expect(seen.page.locator("#state")).to_have_text("live")


async def test_it_is_small_and_loads_nothing_from_elsewhere(api):
    async with looking(api, fragment="#/default/m") as seen:
        await expect(seen.page.locator("#state")).to_have_text("live")
        assert seen.asked_elsewhere == []
        assert 10_000 < sum(seen.loaded.values()) <= LIMIT_BYTES
        answer = await seen.page.request.get(f"{seen.url}/web/app.js")
        assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("fragment", ["", "#/default/m"])
async def test_everybody_can_use_it(api, fragment, scheme):
    await served_well(api)
    async with looking(api, scheme=scheme, fragment=fragment) as seen:
        await expect(seen.page.locator("#state")).to_have_text("live")
        found = await Axe().run(seen.page)
        assert found.response["violations"] == [], found.generate_report()


async def test_it_fits_a_phone(api):
    await served_well(api)
    async with looking(api, size=PHONE, fragment="#/default/m") as seen:
        await expect(seen.page.get_by_role("img", name="Ramp map")).to_be_visible()
        wide = await seen.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= PHONE["width"]


async def test_the_api_is_shown_and_tried_without_asking_anybody_else(api):
    async with looking(api) as seen:
        await seen.page.get_by_role("link", name="API").click()
        listed = seen.page.locator("#operations-default-list_models_v1_models_get")
        await listed.get_by_role("button").first.click()
        await listed.get_by_role("button", name="Try it out").click()
        await listed.get_by_role("button", name="Execute").click()
        await expect(listed.locator(".live-responses-table")).to_contain_text('"m"')
        assert seen.asked_elsewhere == []
        assert seen.complaints == []


async def test_the_viewer_of_the_api_may_ask_nobody_else(api):
    async with looking(api, fragment="docs") as seen:
        await expect(seen.page.get_by_role("heading", level=1)).to_contain_text("Apparate controller")
        await seen.page.evaluate("fetch('http://127.0.0.2/').catch(() => 0)")
        await eventually_async(lambda: any("Content Security Policy" in one for one in seen.complaints))
        assert (await api.get("/redoc")).status_code == 404
