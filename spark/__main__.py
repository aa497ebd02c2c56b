"""Entry point of `python -m spark`, and the file for spark-submit."""

from spark.cli import main

if __name__ == "__main__":
    main(prog_name="anabranch spark")
