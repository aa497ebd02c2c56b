"""Build of the documentation as a site, with a check of all links and anchors inside of it, and its calculator."""

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.site_links import on_page_markdown
from tests.console.browser import running_browser
from tests.support import tools

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://forge.example/us/anabranch"


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("a.md", "b.md#c", "b.md#c"),
        ("a.md", "#c", "#c"),
        ("a.md", "https://d.example/e", "https://d.example/e"),
        ("a.md", "../wal/FORMAT.md#c", f"{REPOSITORY}/blob/main/wal/FORMAT.md#c"),
        ("adr/0001.md", "../b.md", "../b.md"),
        ("adr/0001.md", "../../CHANGELOG.md", f"{REPOSITORY}/blob/main/CHANGELOG.md"),
        ("a.md", "adr", f"{REPOSITORY}/blob/main/docs/adr"),
        ("a.md", "missing.md", "missing.md"),
        ("a.md", "../missing.md", "../missing.md"),
    ],
)
def test_links_out_of_the_site_lead_to_the_repository(page: str, link: str, expected: str) -> None:
    known = {"a.md", "b.md", "adr/0001.md"}
    files = SimpleNamespace(get_file_from_path=lambda path: path if path in known else None)
    source = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    made = on_page_markdown(f"[x]({link})", page=source, config={"repo_url": REPOSITORY}, files=files)
    assert made == f"[x]({expected})"


@pytest.mark.slow
def test_the_site_is_whole_and_asks_nobody_else(tmp_path: Path) -> None:
    command: list[str | Path] = [tools.site("mkdocs"), "build", "--strict", "--site-dir", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    start = (tmp_path / "index.html").read_text()
    assert "keeps its data in object storage" in start
    assert not [each for each in ("fonts.googleapis", "cdn.", "unpkg") if each in start]
    check_calculator(tmp_path / "costs" / "index.html")
    reference = (tmp_path / "reference" / "index.html").read_text()
    for name in ("testing.Broker.fail_next", "client.cluster.Cluster.list_offsets", "client.groups.committed_offsets"):
        assert f'id="anabranch.{name}"' in reference
    assert "Return what a client needs to connect, by the names that librdkafka has for it." in reference


def check_calculator(page_of_costs: Path) -> None:
    """It begins with the example of the page, and follows its fields."""
    with running_browser(tools.chromium()) as browser:
        page = browser.new_page()
        page.goto(page_of_costs.as_uri())
        example = page.locator("strong", has_text=re.compile("^[0-9,]+$")).all_inner_texts()
        sums = page.locator("#costs-of-yours td:last-child")
        assert sums.all_inner_texts() == example == ["3,475", "192", "2,380"]
        page.locator("#costs-of-yours input[name=interval]").fill("250")
        assert sums.all_inner_texts() == ["3,475", "192", "1,749"]
        page.locator("#costs-of-yours input[name=interval]").fill("0")
        assert sums.all_inner_texts()[2] == "-"
