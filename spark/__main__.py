"""Entry point of `python -m anabranch.spark`, and the file for spark-submit."""

from anabranch.spark.cli import main

if __name__ == "__main__":
    main(prog_name="anabranch spark")
