"""Entry point of the `anabranch` command."""

from broker.cli import main

if __name__ == "__main__":
    main()
