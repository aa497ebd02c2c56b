"""The colours of the places on a partition's page differ for everybody, and from what is behind them."""

import math
import re
from itertools import combinations
from pathlib import Path
from typing import Final

import pytest

CSS: Final = Path(__file__).parents[2] / "broker" / "operator" / "console" / "static" / "css" / "base.css"
PLACES: Final = ("place-wal", "place-log-cache", "place-sso", "place-so")
VISIONS: Final = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}
"""Matrices that show colours in linear RGB as they look: Machado, Oliveira and Fernandes 2009, severity 1."""
DISTANCE_MIN: Final = 30.0
"""Distance in CIELAB (CIE76). About 2 can just be told apart side by side."""
CONTRAST_MIN: Final = 3.0
"""Contrast of graphics with what is behind them: WCAG 2.2, 1.4.11."""
Colour = tuple[float, float, float]


def colours(*, dark: bool) -> dict[str, Colour]:
    """The colours of the style sheet in linear RGB, by name."""
    pattern = r"--([\w-]+): light-dark\(#(\w{6}), #(\w{6})\);"
    found = {name: (light, night)[dark] for name, light, night in re.findall(pattern, CSS.read_text(encoding="utf-8"))}
    return {name: _linear(code) for name, code in found.items()}


def _linear(code: str) -> Colour:
    red, green, blue = (int(code[at : at + 2], 16) / 255 for at in (0, 2, 4))
    return _of_channel(red), _of_channel(green), _of_channel(blue)


def _of_channel(value: float) -> float:
    return float(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)


def luminance(colour: Colour) -> float:
    return _dot((0.2126, 0.7152, 0.0722), colour)


def seen(colour: Colour, vision: str) -> Colour:
    """A colour in CIELAB, as it looks."""
    rows = VISIONS[vision]
    red, green, blue = (min(1.0, max(0.0, _dot(row, colour))) for row in rows)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    a, b, c = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * b - 16, 500 * (a - b), 200 * (b - c)


def _dot(left: Colour, right: Colour) -> float:
    return sum(one * other for one, other in zip(left, right, strict=True))


@pytest.mark.parametrize("dark", [False, True])
def test_places_differ_for_everybody(dark: bool) -> None:
    found = colours(dark=dark)
    for vision in VISIONS:
        for one, other in combinations(PLACES, 2):
            assert math.dist(seen(found[one], vision), seen(found[other], vision)) > DISTANCE_MIN, (vision, one, other)


@pytest.mark.parametrize("dark", [False, True])
def test_places_can_be_seen_on_what_is_behind_them(dark: bool) -> None:
    found = colours(dark=dark)
    for place in PLACES:
        darker, lighter = sorted((luminance(found[place]), luminance(found["sunken"])))
        assert (lighter + 0.05) / (darker + 0.05) > CONTRAST_MIN, place
