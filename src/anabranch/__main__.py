"""Entry point of the `anabranch` command."""

from anabranch.broker.operator.cli import run as main

if __name__ == "__main__":
    main()
