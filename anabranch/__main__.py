"""Entry point of the `anabranch` command."""

import sys

from anabranch.names import ShadowedError, check_names


def main() -> None:
    """Run the command, unless a package of this distribution is hidden by another of its name."""
    try:
        check_names()
    except ShadowedError as error:
        sys.exit(f"Error: {error}")
    from broker.cli import run

    run()


if __name__ == "__main__":
    main()
