"""Common properties of all commands: help, documentation, exit codes, colours, imports."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from anabranch.broker.operator.cli import main

DOCS = Path(__file__).parents[4] / "docs"
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]m")


def test_the_page_of_commands_is_up_to_date() -> None:
    # In a process of its own: commands that ran without the program keep another text of --help.
    code = "from anabranch.broker.operator.cli.documentation import documentation\nprint(documentation(), end='')"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == made, (
        "run python -m anabranch.broker.operator.cli.documentation"
    )


def test_links_of_the_page_exist() -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    files = set(re.findall(r"\]\(([a-z-]+\.md)\)", text))
    assert files
    assert [name for name in files if not (DOCS / name).is_file()] == []
    headings = {"-".join(line.lower().split()[1:]) for line in text.splitlines() if line.startswith("##")}
    links = set(re.findall(r"\]\(#([a-z-]+)\)", text))
    assert links - headings == set()
    assert {name for name in headings if name.startswith("anabranch-")} <= links


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--help",), 0),
        (("group", "seek", "-h"), 0),
        (("nonsense",), 2),
        (("topic", "list", "--output", "xml"), 2),
        (("topic", "list", "--command-property", "security.protocol=NONE"), 2),
        (("consume", "t", "--format", "%q"), 2),
        (("topic", "list", "--bootstrap-server", "nowhere:port"), 2),
        (("topic", "list", "--bootstrap-server", "127.0.0.1:1"), 1),
        (("produce", "t", "--bootstrap-server", "127.0.0.1:1"), 1),
        (("doctor", "--config", "/no/such/file.toml"), 2),
        (("wal", "inspect", "/no/such/log"), 1),
    ],
)
def test_exit_codes(arguments: tuple[str, ...], code: int) -> None:
    result = CliRunner().invoke(main, arguments, input="x\n")
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit | None)
    if code:
        assert sum(line.startswith("Error: ") for line in result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topics",), "No such command 'topics'. Did you mean 'topic'?"),
        (("topic", "lst"), "No such command 'lst'. Did you mean 'list'?"),
        (("config", "describe", "topics", "t"), "Invalid value for 'KIND': 'topics' is not one of 'topic', "),
        (("storage", "inspect", "x"), "no catalog in the data directory"),
        (("catalog", "rebuild", "--data-dir", "typo"), "local:typo/objects: No such file or directory"),
        (("wal", "give-up", "--data-dir", "typo", "--yes"), "there is nothing in the catalog"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_near(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"Error: {said}" in CliRunner().invoke(main, arguments).stderr
    assert list(tmp_path.iterdir()) == []


def imported_by(*arguments: str) -> set[str]:
    """Return the top-level packages that a command imports."""
    code = (
        "import sys\nfrom anabranch.broker.operator.cli import main\n"
        f"try: main({list(arguments)!r})\nexcept SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()}


def test_help_and_small_commands_import_little() -> None:
    slow = {"confluent_kafka", "sqlalchemy", "pydantic", "aiobotocore", "pyspark", "yaml"}
    assert imported_by("--help") & (slow | {"rich"}) == set()
    assert imported_by("group", "list", "--bootstrap-server", "127.0.0.1:1") & slow == set()
    assert imported_by("consume", "t", "-b", "127.0.0.1:1") & (slow | {"rich"}) == set()
    assert imported_by("produce", "t", "-b", "127.0.0.1:1") & (slow | {"rich"}) == set()
    slow |= {"cryptography", "structlog"}
    assert imported_by("topic", "list", "-b", "127.0.0.1:1") & slow == set()
    assert imported_by("cluster", "status", "--admin", "127.0.0.1:1") & slow == set()
    assert imported_by("node", "list", "--admin", "127.0.0.1:1") & slow == set()
    assert imported_by("acl", "list", "-b", "127.0.0.1:1") & slow == set()
    assert imported_by("quota", "list", "-b", "127.0.0.1:1") & slow == set()
    assert imported_by("user", "list", "-b", "127.0.0.1:1") & slow == set()


def test_a_command_loads_the_messages_that_it_uses() -> None:
    code = (
        "import sys\nfrom anabranch.broker.operator.cli import main\n"
        "try: main(['topic', 'list', '-b', '127.0.0.1:1'])\nexcept SystemExit: pass\n"
        "print(*(name for name in sys.modules if name.startswith('anabranch.protocol.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert "anabranch.protocol.messages.metadata" in found
    assert "anabranch.protocol.registry" not in found
    assert "anabranch.protocol.messages.join_group" not in found
    assert "anabranch.protocol.batch" not in found


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_of_a_terminal(variables: dict[str, str], coloured: bool, tmp_path: Path) -> None:
    master, terminal = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS"}}
    environment = {**kept, "TERM": "xterm-256color", **variables}
    command = [sys.executable, "-m", "anabranch", "doctor", "--data-dir", str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        shown = b""
        try:
            while part := os.read(master, 65536):
                shown += part
        except OSError:  # Linux reports the end of a terminal as an error
            pass
    os.close(master)
    assert process.returncode in {0, 1}
    assert "check" in shown.decode()
    assert bool(COLOUR.search(shown.decode())) == coloured


def test_a_pipe_has_no_colours(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "anabranch", "doctor", "--data-dir", str(tmp_path / "data")]
    kept = {name: value for name, value in os.environ.items() if name not in {"FORCE_COLOR", "COLUMNS"}}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**kept, "TERM": "xterm"})
    assert "check" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def in_shell(command: str, typed: str = "") -> tuple[int, str]:
    """Run a line of a shell in which `anabranch` is the command; return exit code and standard error."""
    line = f'anabranch() {{ "{sys.executable}" -m anabranch "$@"; }}; {command}'
    done = subprocess.run(["bash", "-c", line], input=typed, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", ["--help", "completion bash", "doctor --output json", "doctor"])
def test_output_that_cannot_be_written_is_one_line(command: str, tmp_path: Path) -> None:
    words = command.split()
    line = " ".join([words[0], *(["--data-dir", str(tmp_path / "data")] if words[0] == "doctor" else []), *words[1:]])
    assert in_shell(f"anabranch {line} > /dev/full") == (1, "Error: standard output: No space left on device\n")
    assert in_shell(f"anabranch {line} >&-") == (1, "Error: standard output: it is closed\n")
    assert in_shell(f"anabranch {line} 2>&- > {tmp_path}/output") == in_shell(f"anabranch {line} > /dev/null")
    assert (tmp_path / "output").stat().st_size


def test_messages_that_cannot_be_written_change_no_exit_code() -> None:
    for stderr in ("2>&-", "2>/dev/full"):
        assert in_shell(f"anabranch nonsense {stderr}")[0] == 2


STREAM_TEST = """
import sys
from anabranch.broker.operator.cli.streams import guarded_streams

def fail(): raise {error}

with guarded_streams():
    {does}
"""


@pytest.mark.parametrize(
    ("does", "error", "reads", "code", "said"),
    [
        ("sys.stdout.write('x' * 10**6)", "", False, 0, ""),
        ("sys.stdout.write('x')", "", False, 0, ""),
        ("print(len(sys.stdin.read()))", "", True, 0, ""),
        ("fail()", "BrokenPipeError(32, 'Broken pipe of a connection')", True, 1, "Broken pipe of a connection"),
        ("fail()", "SystemExit(3)", True, 3, ""),
    ],
)
def test_only_a_reader_that_ends_is_no_error(*, does: str, error: str, reads: bool, code: int, said: str) -> None:
    code_text = STREAM_TEST.format(does=f"sys.stdin.readline(); {does}", error=error or "AssertionError")
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", code_text], stdin=subprocess.PIPE, stdout=writing, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(writing)
        if not reads:
            os.close(reading)
        _, errors = process.communicate("first\nmore")
    if reads:
        os.close(reading)
    assert process.returncode == code
    assert said in errors
    assert bool(errors) == bool(said)
