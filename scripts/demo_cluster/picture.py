"""Timeline of the demo as SVG: lives of the nodes, partitions led by each, and records by second at each client."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeAlias

from scripts.demo_cluster.clients import Sample

WIDTH, LEFT, RIGHT, TOP = 900, 150, 20, 58
LANE, PANEL, GAP = 22, 92, 34
FONT = 'font-family="sans-serif" font-size="12"'
COLOURS: Final = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd")
"""Colours of nodes 1, 2, ..."""
EVENT = "#d62728"
SMOOTHED = 4
"""Samples of a second."""
LABEL = 14
"""Height of a line of labels."""
Scale: TypeAlias = Callable[[float], float]
"""Horizontal place of a time."""


@dataclass(slots=True)
class Timeline:
    """Contents of the picture. Times are seconds since the start of the clients."""

    lives: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    """Times at which each node served."""
    events: list[tuple[float, str]] = field(default_factory=list)
    samples: Sequence[Sample] = ()
    batches: Sequence[tuple[float, int]] = ()
    """Time and records of Spark's micro-batches."""

    def svg(self) -> str:
        """Return the picture."""
        end = max([sample.at_s for sample in self.samples] + [at for at, _ in self.batches] + [1.0])
        lanes = len(self.lives)
        panels = self._panels()
        height = TOP + lanes * LANE + (len(panels) + 2) * (PANEL + GAP) + 40

        def x(at_s: float) -> float:
            return LEFT + (WIDTH - LEFT - RIGHT) * min(max(at_s, 0.0), end) / end

        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}">',
            '<rect width="100%" height="100%" fill="white"/>',
        ]
        for number, (node_id, lives) in enumerate(sorted(self.lives.items())):
            top = TOP + number * LANE
            parts.append(f'<text x="{LEFT - 10}" y="{top + 15}" {FONT} text-anchor="end">node {node_id}</text>')
            for began, ended in lives:
                width = max(x(ended) - x(began), 1)
                parts.append(
                    f'<rect x="{x(began):.1f}" y="{top + 4}" width="{width:.1f}" height="14" fill="{colour(node_id)}"/>'
                )
        top = TOP + lanes * LANE + GAP
        parts += _title("partitions led", top)
        parts += self._led(x, top)
        for name, points in panels:
            top += PANEL + GAP
            parts += [*_title(name, top), *_curve(points, x, top)]
        top += PANEL + GAP
        parts += [*_title("Spark: rows a batch", top), *_bars(self.batches, x, top)]
        for number, (at_s, text) in enumerate(self.events):
            y = 16 + number % 3 * LABEL
            anchor = "end" if x(at_s) > WIDTH * 0.8 else "start"
            parts.append(
                f'<line x1="{x(at_s):.1f}" y1="{y - 8}" x2="{x(at_s):.1f}" y2="{height - 34}" stroke="{EVENT}" '
                'stroke-dasharray="3,3"/>'
            )
            shift = -4 if anchor == "end" else 4
            parts.append(
                f'<text x="{x(at_s) + shift:.1f}" y="{y}" {FONT} fill="{EVENT}" text-anchor="{anchor}">{text}</text>'
            )
        step = 10 if end > 30 else 5
        for second in range(0, int(end) + 1, step):
            parts.append(f'<text x="{x(second):.0f}" y="{height - 16}" {FONT} text-anchor="middle">{second}</text>')
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{height - 3}" {FONT} text-anchor="end">seconds</text>')
        return "\n".join([*parts, "</svg>", ""])

    def _panels(self) -> list[tuple[str, list[tuple[float, float]]]]:
        topics = list(self.samples[0].read) if self.samples else []
        found = [("librdkafka: acked/s", rates([(each.at_s, each.acked) for each in self.samples]))]
        return found + [
            (f"{topic}: read/s", rates([(each.at_s, each.read[topic]) for each in self.samples])) for topic in topics
        ]

    def _led(self, x: Scale, top: float) -> list[str]:
        """Return a stack of the partitions that each node leads."""
        most = max([sum(sample.led.values()) for sample in self.samples] + [1])
        parts = _frame(most, top)
        for now, following in pairwise(self.samples):
            base = top + PANEL
            for node_id, count in sorted(now.led.items()):
                size = PANEL * count / most
                base -= size
                left, width = x(now.at_s), x(following.at_s) - x(now.at_s) + 0.3
                parts.append(
                    f'<rect x="{left:.1f}" y="{base:.1f}" width="{width:.1f}" height="{size:.1f}" '
                    f'fill="{colour(node_id)}" shape-rendering="crispEdges"/>'
                )
        return parts


def colour(node_id: int) -> str:
    """Return a node's colour; grey for partitions without a leader."""
    return COLOURS[(node_id - 1) % len(COLOURS)] if node_id > 0 else "#cccccc"


def rates(points: Sequence[tuple[float, int]]) -> list[tuple[float, float]]:
    """Return the counts per second, each over the last samples of about a second."""
    return [
        (after, (more - count) / (after - before))
        for (before, count), (after, more) in zip(points, points[SMOOTHED:], strict=False)
    ]


def _title(name: str, top: float) -> list[str]:
    return [f'<text x="{LEFT - 10}" y="{top + PANEL / 2:.0f}" {FONT} text-anchor="end">{name}</text>']


def _frame(most: float, top: float) -> list[str]:
    base = top + PANEL
    return [
        f'<line x1="{LEFT}" y1="{base:.0f}" x2="{WIDTH - RIGHT}" y2="{base:.0f}" stroke="#999"/>',
        f'<text x="{LEFT - 10}" y="{top + 10:.0f}" {FONT} text-anchor="end" fill="#777">{most:,.0f}</text>',
    ]


def _curve(points: Sequence[tuple[float, float]], x: Scale, top: float) -> list[str]:
    most = max([value for _, value in points] + [1.0])
    line = " ".join(f"{x(at):.1f},{top + PANEL - PANEL * value / most:.1f}" for at, value in points)
    return [*_frame(most, top), f'<polyline points="{line}" fill="none" stroke="#333" stroke-width="1.5"/>']


def _bars(points: Sequence[tuple[float, int]], x: Scale, top: float) -> list[str]:
    most = max([value for _, value in points] + [1])
    return _frame(most, top) + [
        f'<line x1="{x(at):.1f}" y1="{top + PANEL:.0f}" x2="{x(at):.1f}" y2="{top + PANEL - PANEL * value / most:.1f}" '
        'stroke="#333" stroke-width="3"/>'
        for at, value in points
        if value
    ]
