"""Types that the admin port's request handlers share, and their responses."""

import json
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeAlias

Response: TypeAlias = tuple[int, str, str]
"""Status, content type, body."""
Query: TypeAlias = Mapping[str, str]
"""Parameters of the URL."""
Route: TypeAlias = tuple[str, Callable[[Query], Awaitable[Response]]]
"""Method of a path, and its handler."""


def json_response(value: Any) -> Response:
    """Respond with a value as JSON."""
    return HTTPStatus.OK, "application/json", json.dumps(value, indent=2) + "\n"


def text_response(status: HTTPStatus, text: str) -> Response:
    """Respond with one line of text."""
    return status, "text/plain", f"{text}\n"
