"""Questions of commands before irreversible changes."""

import click


def confirm(question: str) -> None:
    """Ask on standard error; return if the answer is yes.

    Raises ClickException if it is no, or if standard input has none, and KeyboardInterrupt at Ctrl-C.
    """
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        click.echo(err=True)
        raise click.ClickException(
            "nothing was changed: standard input has no answer to the question; --yes answers it"
        ) from None
    if not agreed:
        raise click.ClickException("nothing was changed")
