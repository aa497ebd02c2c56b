"""One node with data and one browser for all tests of the console.

Their scope is the package: Playwright keeps an event loop in this thread, which tests of other packages need free.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.console.browser import ConsolePage, console_page, running_browser
from tests.console.shop import Shop, running_shop
from tests.support import tools


@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A node with data that the tests share."""
    with running_shop(tmp_path_factory.mktemp("shop")) as running:
        yield running


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The browser that the tests share."""
    with running_browser(tools.chromium()) as running:
        yield running


@pytest.fixture
def console(browser: Browser, shop: Shop) -> Iterator[ConsolePage]:
    """A new tab; at the end, nothing may have gone wrong in it."""
    with console_page(browser, shop.admin) as page:
        yield page
        assert page.problems == []
