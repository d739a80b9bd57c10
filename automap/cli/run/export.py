"""`automap export`: a plan file -> lines of another program's configuration."""

from automap.choices import OtherProgram
from automap.plan.codec import encode
from automap.plan.degrees import WRITERS, plan_degrees
from automap.plan.record import PlanRecord
from automap.terminal import say, say_json, say_result


def run(*, plan_file: str, program: OtherProgram, as_json: bool) -> None:
    """Print the lines, and on stderr what they leave out."""
    degrees = plan_degrees(PlanRecord.load(plan_file))
    lines = WRITERS[program](degrees)
    if as_json:
        say_json({"lines": lines, "degrees": encode(degrees)})
        return
    for note in degrees.notes:
        say(f"warning: {note}")
    say_result("\n".join(lines))
