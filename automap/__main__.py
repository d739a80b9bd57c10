"""What the shell calls, as `automap` or as `python -m automap`: Ctrl-C ends it in order from its
first line on.
"""

from automap.interrupts import EndsAtOnce


def main(prog_name: str | None = None) -> None:
    """Run the command line and exit."""
    EndsAtOnce().install()
    # Takes a while, in which a signal may come.
    from automap.cli import main as command  # noqa: PLC0415

    command(prog_name=prog_name)


if __name__ == "__main__":
    main("python -m automap")
