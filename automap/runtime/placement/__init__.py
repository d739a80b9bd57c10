"""Plans with a placement, run: operators' tasks as jitted programs on devices of their own.

`PlacedStep` is called like the step; `automap.runtime.run` makes it. `measured_seconds` times one.
"""

from automap.runtime.placement.step import (
    PlacedStep as PlacedStep,
    measured_seconds as measured_seconds,
)
