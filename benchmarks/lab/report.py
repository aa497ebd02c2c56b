"""Results of a run beside Apache Kafka: medians and spread of the rounds, ratios with their goals, and tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lab.session import Figures, Session
from benchmarks.support import Result, middle, number

UNITS: Mapping[str, str] = {
    "mb_per_s": "MB/s",
    "cpu_s_per_gb": "s/GB",
    "p50_ms": "ms",
    "p99_ms": "ms",
    "p999_ms": "ms",
    "peak_mib": "MiB",
    "switches_per_mb": "1/MB",
    "requests_per_s": "1/s",
    "cpu_us_per_request": "us",
    "switches_per_request": "1",
    "from_files_mb_per_s": "MB/s",
    "p99_alone_ms": "ms",
    "p99_over_alone": "x",
}
RATIOS = ("mb_per_s", "cpu_s_per_gb", "p99_ms", "p999_ms")


def goals(throughput: str | None = None, cpu: str | None = None, p99: str | None = None) -> Mapping[str, str]:
    """Return goals by figure."""
    given = {"mb_per_s": throughput, "cpu_s_per_gb": cpu, "p99_ms": p99}
    return {figure: goal for figure, goal in given.items() if goal is not None}


FROM_MEMORY = goals(">= 1.2", "<= 0.5")
PYTHON = goals(">= 1.3", "<= 0.6", "<= 1")
CLIENTS = goals(cpu="<= 0.7", p99="<= 1")
GOALS: Mapping[str, Mapping[str, str]] = {
    "produce.1p.16KiB": goals(">= 1.3", "<= 0.6", "<= 0.9"),
    "produce.1p.256KiB": goals(">= 2", "<= 0.45", "<= 0.7"),
    "produce.16p.16KiB": goals(">= 1.5", "<= 0.55", "<= 0.9"),
    "produce.16p.256KiB": goals(">= 2", "<= 0.5", "<= 0.7"),
    # A load at a fixed rate ends with its last ack, some ms late.
    "steady.10MBps": {**goals(">= 0.99", "<= 0.9", "<= 1"), "p999_ms": "<= 1"},
    "single": goals(">= 2.5", "<= 0.35", "<= 0.5"),
    "librdkafka": PYTHON,
    "aiokafka": PYTHON,
    "tail": FROM_MEMORY,
    **{f"fetch.{partitions}p.{size}KiB": FROM_MEMORY for partitions in (1, 16) for size in (16, 256)},
    "e2e": CLIENTS,
    "many": CLIENTS,
    "tls": goals(">= 1.1", "<= 0.9"),
}
"""Goals for the ratio of node over Apache Kafka."""
OWN_GOALS = {"catchup": {"p99_over_alone": "<= 1.5"}}
"""Goals for the node's own figures."""


@dataclass(frozen=True)
class Row:
    """One figure of one broker, or the ratio of two: the values of all rounds."""

    key: str
    figure: str
    of: str
    """Name of a broker, or `ratio`, or `NAME.ratio` for the node over another broker than Apache Kafka."""
    rounds: Sequence[float]
    goal: str | None = None

    @property
    def result(self) -> Result:
        """The median."""
        unit = "x" if self.of.endswith("ratio") else UNITS[self.figure]
        return Result(f"{self.key}.{self.figure}.{self.of}", middle(self.rounds), unit, self.goal)


def rows_of(rounds: Mapping[str, Mapping[str, Mapping[int, Figures]]], node: str, peers: Sequence[str]) -> list[Row]:
    """Return the rows of all measurements. Ratios are those of a pair measured in the same round."""
    rows = []
    for key, by_broker in rounds.items():
        own_goals = OWN_GOALS.get(key, {})
        for name, found in by_broker.items():
            figures = {figure: None for measured in found.values() for figure in measured}
            for figure in figures:
                values = [measured[figure] for measured in found.values() if figure in measured]
                rows.append(Row(key, figure, name, values, own_goals.get(figure) if name == node else None))
        for peer in peers:
            goals = GOALS.get(key, {}) if peer == peers[0] else {}
            for figure in RATIOS:
                values = pair_ratios(by_broker.get(node, {}), by_broker.get(peer, {}), figure)
                if values:
                    of = "ratio" if peer == peers[0] else f"{peer}.ratio"
                    rows.append(Row(key, figure, of, values, goals.get(figure)))
    return rows


def pair_ratios(ours: Mapping[int, Figures], theirs: Mapping[int, Figures], figure: str) -> list[float]:
    """Return the ratios of the rounds in which both brokers were measured."""
    return [
        ours[round_][figure] / theirs[round_][figure]
        for round_ in ours
        if figure in ours[round_] and theirs.get(round_, {}).get(figure)
    ]


def results_of(rows: Sequence[Row]) -> list[tuple[Result, Sequence[float]]]:
    """Return the results with the values of their rounds."""
    return [(row.result, row.rounds) for row in rows]


def write_json(path: Path, results: Sequence[tuple[Result, Sequence[float]]], failures: Sequence[str]) -> None:
    """Write all results so far. The file is complete at any time."""
    rows: list[object] = [
        {**vars(result), "met": result.met, "rounds": [float(f"{value:.5g}") for value in rounds]}
        for result, rounds in results
    ]
    rows += [{"failure": text} for text in failures]
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(json.dumps(rows, indent=1) + "\n")
    part.replace(path)


def markdown(rows: Sequence[Row], node: str, peers: Sequence[str], native: str) -> str:
    """Return the tables for documents: ratios with their spread, then the figures of each broker.

    `native` is the version of the node's native part, or why it used none.
    """
    cells = {(row.key, row.figure, row.of): row for row in rows}
    keys = list(dict.fromkeys(row.key for row in rows))
    lines = [
        f"Ratios of {node} over {peers[0]}: median (lowest-highest) of the rounds, and [goal]. Missed goals are bold.",
        f"Native part: {native}.",
        "",
        "| load | throughput | CPU per GB | p99 | p99.9 |"
        + "".join(f" over {peer}: throughput | CPU per GB | p99 |" for peer in peers[1:]),
        "|---|---|---|---|---|" + "---|---|---|" * len(peers[1:]),
    ]
    columns = [("ratio", figure) for figure in RATIOS]
    columns += [(f"{peer}.ratio", figure) for peer in peers[1:] for figure in RATIOS if figure != "p999_ms"]
    for key in keys:
        found = [cells.get((key, figure, of)) for of, figure in columns]
        if any(found):
            lines.append(f"| {key} | " + " | ".join("" if row is None else ratio(row) for row in found) + " |")
    lines += [
        "",
        "| load | broker | MB/s | CPU s/GB | p50, p99, p99.9 ms | peak MiB | context switches per MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for key in keys:
        for name in (node, *peers):
            if (key, "mb_per_s", name) in cells:
                figures = (key, name, cells)
                latencies = ", ".join(filter(None, (plain(*figures, each) for each in ("p50_ms", "p99_ms", "p999_ms"))))
                own = [plain(*figures, each, spread=True) for each in ("mb_per_s", "cpu_s_per_gb")]
                rest = [plain(*figures, each) for each in ("peak_mib", "switches_per_mb")]
                lines.append(f"| {key} | {name} | " + " | ".join([*own, latencies, *rest]) + " |")
    others = [row for row in rows if row.figure not in {*RATIOS, "p50_ms", "peak_mib", "switches_per_mb"}]
    lines += ["", "| load | figure | broker | median (lowest-highest) |", "|---|---|---|---|"]
    for row in others:
        shown = f"{middle_and_spread(row)} {row.result.unit}"
        bold = f"**{shown}**" if row.result.met is False else shown
        lines.append(f"| {row.key} | {row.figure} | {row.of} | {bold}{goal_text(row.goal)} |")
    return "\n".join(lines) + "\n"


def ratio(row: Row) -> str:
    """Format a ratio with its spread and goal."""
    text = middle_and_spread(row)
    return (f"**{text}**" if row.result.met is False else text) + goal_text(row.goal)


def goal_text(goal: str | None) -> str:
    """Format a goal, if there is one."""
    return "" if goal is None else f" [{goal}]"


def middle_and_spread(row: Row) -> str:
    """Format the median, and lowest and highest in brackets if there are several rounds."""
    if len(row.rounds) == 1:
        return number(row.rounds[0])
    return f"{number(middle(row.rounds))} ({number(min(row.rounds))}-{number(max(row.rounds))})"


def plain(key: str, name: str, cells: Mapping[tuple[str, str, str], Row], figure: str, *, spread: bool = False) -> str:
    """Format a broker's figure; empty if it was not measured."""
    row = cells.get((key, figure, name))
    if row is None:
        return ""
    return middle_and_spread(row) if spread else number(middle(row.rounds))


def session_rows(session: Session) -> list[Row]:
    """Return the rows of a session."""
    return rows_of(session.rounds, session.node.name, session.peers)


def session_markdown(session: Session) -> str:
    """Return the tables of a session."""
    return markdown(session_rows(session), session.node.name, session.peers, session.node.native())
