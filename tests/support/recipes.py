"""The test files that pages of the documentation show."""

import re
from typing import Final

from tests.support.wheel import ROOT

RECIPES: Final = ROOT / "docs" / "recipes.md"
_CODE: Final = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def shown_files(text: str) -> dict[str, str]:
    """Return the contents of the files in a page by their names: blocks of Python that begin with a name."""
    return dict(_CODE.findall(text))
