"""Completion in real shells."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from anabranch.broker.operator.cli import main

ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
ASK = {
    "bash": 'eval "$(anabranch completion bash)"; COMP_WORDS=(anabranch {words}); COMP_CWORD={last}; '
    '_anabranch_completion anabranch; printf "%s\\n" "${{COMPREPLY[@]}}"',
    # zsh completes in its line editor only: the request that its script makes.
    "zsh": 'autoload -Uz compinit; compinit -D; eval "$(anabranch completion zsh)"; whence _anabranch_completion '
    '>/dev/null; COMP_WORDS="anabranch {words}" COMP_CWORD={last} _ANABRANCH_COMPLETE=zsh_complete anabranch',
    "fish": "anabranch completion fish | source; complete --do-complete 'anabranch {words}'",
}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("words", "offered", "not_offered"),
    [
        ("gro", ["group"], ["topic"]),
        ("group de", ["delete", "describe"], ["seek"]),
        ("group list --output y", ["yaml"], ["json"]),
    ],
)
def test_a_shell_completes(shell: str, words: str, offered: list[str], not_offered: list[str]) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    script = ASK[shell].format(words=words, last=len(words.split()))
    done = subprocess.run([program, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    found = done.stdout.split()
    assert [word for word in offered if word not in found] == []
    assert [word for word in not_offered if word in found] == []


def test_a_command_whose_extra_is_missing_is_offered_without_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ModuleNotFoundError("No module named 'rich'", name="rich")

    monkeypatch.setattr(importlib, "import_module", refuse)
    shell = ShellComplete(main, {}, "anabranch", "_ANABRANCH_COMPLETE")
    assert [each.value for each in shell.get_completions([], "gro")] == ["group"]
    assert shell.get_completions(["group"], "de") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_names_the_command(shell: str) -> None:
    command = [sys.executable, "-m", "anabranch", "completion", shell]
    script = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"_ANABRANCH_COMPLETE={shell}_complete" in script
    assert "anabranch" in script
