"""A hook of MkDocs for links that leave `docs/`: on the site they lead to the file in the repository."""

import posixpath
import re
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Return the page with absolute links to files that are not on the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def lead(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[0]))
        there = DOCS / target
        if files.get_file_from_path(target) is not None or not there.exists():
            return match[0]  # MkDocs says what is missing
        return f"{config['repo_url']}/blob/main/{there.resolve().relative_to(DOCS.parent)}"

    return LINK.sub(lead, markdown)
