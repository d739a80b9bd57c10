"""`python -m automap`, the command where the folder of scripts is not on the path."""

from automap.cli import main


if __name__ == "__main__":
    main(prog_name="python -m automap")
