"""`automap export`: a plan file -> lines of another program's configuration."""

from automap.choices import OtherProgram
from automap.errors import InputError
from automap.plan.codec import encode
from automap.plan.degrees import WRITERS, plan_degrees
from automap.plan.record import PlanRecord
from automap.terminal import say, say_json, say_result


def run(*, plan_file: str, program: OtherProgram, as_json: bool) -> None:
    """Print the lines, and on stderr what they leave out. Raises `InputError` for a placement."""
    plan = PlanRecord.load(plan_file)
    if plan.placement is not None:
        raise InputError(
            f"the plan is a placement of {len(plan.placement.operators)} operators, each on "
            "devices of its own, which degrees do not say; plan "
            f"{plan.workload.target} with --space sharding or hybrid"
        )
    degrees = plan_degrees(plan)
    lines = WRITERS[program](degrees)
    if as_json:
        say_json({"lines": lines, "degrees": encode(degrees)})
        return
    for note in degrees.notes:
        say(f"warning: {note}")
    say_result("\n".join(lines))
