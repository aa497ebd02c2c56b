"""A browser for the tests of the console, and what a page must never do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, ViewportSize, expect, sync_playwright

from scripts.tools import CHROMIUM_FLAGS

AXE: Final = (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")
DESKTOP: Final[ViewportSize] = {"width": 1280, "height": 900}
PHONE: Final[ViewportSize] = {"width": 375, "height": 812}
PHONE_WIDTH_MAX: Final = 500
FOCUS_NOTE: Final = "Autofocus processing was blocked because a document already has a focused element."
"""Note of Chromium, once a page, where a click opens a dialog, which gives the focus to its first field itself."""
EXPECT_TIMEOUT_MS: Final = 30_000
"""Limit of waiting for something on a page. The machine may be busy."""


@contextmanager
def running_browser(program: Path) -> Iterator[Browser]:
    """Run headless Chromium."""
    expect.set_options(timeout=EXPECT_TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(CHROMIUM_FLAGS))
        yield browser
        browser.close()


class ConsolePage:
    """A tab with the console of a node. `problems` collects what a page must not do."""

    def __init__(self, page: Page, admin: str) -> None:
        assert page.viewport_size is not None
        self.page = page
        self.viewport = page.viewport_size
        self.base = f"http://{admin}"
        self.problems: list[str] = []
        """Messages in the browser's console, which include violations of the policy, errors, and foreign requests."""
        page.set_default_timeout(EXPECT_TIMEOUT_MS)
        page.on("console", self._on_message)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("request", self._on_request)

    def open(self, route: str = "") -> Page:
        """Go to a page by its route, and wait for its title."""
        self.page.goto(f"{self.base}/console/#/{route}")
        expect(self.page.locator("main h1")).to_be_visible()
        return self.page

    def violations(self) -> list[str]:
        """Check the page as it is now with axe. Returns a line for each violation."""
        self.page.evaluate(AXE)
        found: list[dict[str, Any]] = self.page.evaluate("axe.run().then((results) => results.violations)")
        return [
            f"{each['id']}: {each['help']}: {node['html'][:200]} {node.get('failureSummary', '')}"
            for each in found
            for node in each["nodes"]
        ]

    def width(self) -> int:
        """Width of what is on the page; more than the window's if it has to be scrolled sideways."""
        found: int = self.page.evaluate("document.documentElement.scrollWidth")
        return found

    def _on_message(self, message: ConsoleMessage) -> None:
        if message.text != FOCUS_NOTE:
            self.problems.append(f"{message.type}: {message.text}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((self.base, "data:")):
            self.problems.append(f"foreign request: {request.url}")


@contextmanager
def console_page(
    browser: Browser, admin: str, *, viewport: ViewportSize = DESKTOP, dark: bool = False, timezone: str = "UTC"
) -> Iterator[ConsolePage]:
    """Open a tab with a storage of its own. A phone has a touch screen, and no mouse."""
    is_phone = viewport["width"] < PHONE_WIDTH_MAX
    context = browser.new_context(
        viewport=viewport,
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        has_touch=is_phone,
        is_mobile=is_phone,
        timezone_id=timezone,
    )
    yield ConsolePage(context.new_page(), admin)
    context.close()
