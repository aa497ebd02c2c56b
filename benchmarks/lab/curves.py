"""Curves: figures over a growing number, as a Markdown table and as a picture."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from benchmarks.support import number

WIDTH: Final = 720
PANEL: Final = 150
LEFT, RIGHT, TOP = 70, 20, 26
FONT: Final = 'font-family="sans-serif" font-size="12"'
COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
Figures = Mapping[str, float]


@dataclass
class Curve:
    """Samples of some figures at growing points. A figure's name has its unit: `CPU us/request`."""

    key: str
    title: str
    x_name: str
    drawn: Sequence[str]
    """Figures in the picture, each with an axis of its own that begins at zero."""
    samples: dict[int, list[Figures]] = field(default_factory=dict)

    def add(self, point: int, figures: Figures) -> None:
        """Add a sample."""
        self.samples.setdefault(point, []).append(figures)

    def sweep(
        self, points: Sequence[int], rounds: int, measure: Callable[[int], Figures], said: Callable[[str], None]
    ) -> None:
        """Measure all points in each round, up and down in turn, and say each sample at once."""
        for round_ in range(rounds):
            for point in points if round_ % 2 == 0 else reversed(points):
                self.add(point, measure(point))
                said(self.last(point))

    def last(self, point: int) -> str:
        """Return the last sample of a point as text."""
        values = ", ".join(f"{name} {number(value)}" for name, value in self.samples[point][-1].items())
        return f"{self.key} {point:,}: {values}"

    @property
    def rows(self) -> list[tuple[int, dict[str, float]]]:
        """Medians by point, in order."""
        return [
            (point, {name: median(sample[name] for sample in found) for name in _names(found)})
            for point, found in sorted(self.samples.items())
        ]

    def as_rows(self) -> list[dict[str, object]]:
        """Return all medians, each with its smallest and largest sample, for a JSON file."""
        made: list[dict[str, object]] = []
        for point, row in self.rows:
            for name, value in row.items():
                values = [sample[name] for sample in self.samples[point]]
                figure = f"{self.key}.{point}.{name}"
                made.append({"name": figure, "value": value, "min": min(values), "max": max(values)})
        return made

    def markdown(self) -> str:
        """Return the table of medians."""
        names = _names([figures for _, figures in self.rows])
        lines = [
            f"| {self.x_name} | " + " | ".join(names) + " |",
            "|---" * (len(names) + 1) + "|",
            *(f"| {point:,} | " + " | ".join(number(row[name]) for name in names) + " |" for point, row in self.rows),
        ]
        return "\n".join(lines)

    def svg(self) -> str:
        """Return the picture: a panel for each figure, over a logarithmic axis if the points span it."""
        points = [point for point, _ in self.rows]
        wide = min(points) > 0 and max(points) / min(points) > 20
        place = {
            point: LEFT
            + (WIDTH - LEFT - RIGHT)
            * ((math.log(point / points[0]) / math.log(points[-1] / points[0])) if wide else point / points[-1])
            for point in points
        }
        height = (PANEL + TOP) * len(self.drawn) + 30
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}">',
            '<rect width="100%" height="100%" fill="white"/>',
        ]
        for at, name in enumerate(self.drawn):
            parts += self._panel(name, (PANEL + TOP) * at + TOP, place, COLOURS[at % len(COLOURS)])
        for point, x in place.items():
            parts.append(f'<text x="{x:.0f}" y="{height - 14}" {FONT} text-anchor="middle">{point:,}</text>')
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{height - 1}" {FONT} text-anchor="end">{self.x_name}</text>')
        return "\n".join([*parts, "</svg>", ""])

    def _panel(self, name: str, top: float, place: Mapping[int, float], colour: str) -> list[str]:
        """Return a panel with the median's line, and all samples as points."""
        every = [(point, sample[name]) for point, found in self.samples.items() for sample in found]
        most = max(value for _, value in every) or 1.0
        base = top + PANEL - 10

        def y(value: float) -> float:
            return base - value / most * (PANEL - 20)

        line = " ".join(f"{place[point]:.1f},{y(row[name]):.1f}" for point, row in self.rows)
        return [
            f'<text x="{LEFT}" y="{top - 6:.0f}" {FONT} fill="{colour}">{name}</text>',
            f'<line x1="{LEFT}" y1="{base:.0f}" x2="{WIDTH - RIGHT}" y2="{base:.0f}" stroke="#999"/>',
            f'<text x="{LEFT - 6}" y="{y(most) + 4:.0f}" {FONT} text-anchor="end">{number(most)}</text>',
            f'<text x="{LEFT - 6}" y="{base + 4:.0f}" {FONT} text-anchor="end">0</text>',
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>',
            *(f'<circle cx="{place[point]:.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>' for point, value in every),
        ]


def _names(found: Sequence[Figures]) -> list[str]:
    """Return the names of all figures, in the order of their first appearance."""
    return list(dict.fromkeys(name for sample in found for name in sample))
