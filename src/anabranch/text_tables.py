"""The tables of commands. Loaded when one is made: what prints no table starts faster."""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table


class TrimmedTable(Table):
    """A table without blanks at the ends of its lines."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments = (each for each in super().__rich_console__(console, options) if isinstance(each, Segment))
        for line in Segment.split_lines(segments):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                text, style, control = line[-1]
                line[-1] = Segment(text.rstrip(), style, control)
            yield from line
            yield Segment.line()
