"""`anabranch completion`: the script with which a shell completes commands, options and choices."""

from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

PROGRAM: Final = "anabranch"
VARIABLE: Final = "_ANABRANCH_COMPLETE"
"""Set by the scripts when they ask the command what could follow."""


@click.command(short_help="Print the script for completion in a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes commands, options and their choices.

    \b
    bash: anabranch completion bash > ~/.local/share/bash-completion/completions/anabranch
    zsh:  anabranch completion zsh > "${fpath[1]}/_anabranch"
    fish: anabranch completion fish > ~/.config/fish/completions/anabranch.fish
    """
    found = get_completion_class(shell)
    assert found is not None, "click knows these shells"
    # The base class's: the one of bash starts bash to check its version.
    click.echo(ShellComplete.source(found(context.find_root().command, {}, PROGRAM, VARIABLE)))
