"""Automatic parallelization of unmodified single-device JAX steps."""

from automap.api import ParallelStep as ParallelStep, parallelize as parallelize
from automap.apply.pipeline.transfer import fetch as fetch
from automap.errors import (
    AutomapError as AutomapError,
    CompilerError as CompilerError,
    InfeasiblePlanError as InfeasiblePlanError,
    InputError as InputError,
    MeshMismatchError as MeshMismatchError,
    PlanError as PlanError,
    TopologyError as TopologyError,
)
from automap.plan import Plan as Plan
from automap.topology import Topology as Topology, get_topology as get_topology


# Last: the functions take the names of the submodules `automap.plan`, `automap.simulate` and `automap.verify`, which
# stay importable.
from automap.api import plan as plan  # isort: skip
from automap.simulate.api import simulate as simulate  # isort: skip
from automap.simulate.pipelined import PipelineSimulation as PipelineSimulation  # isort: skip
from automap.simulate.simulation import Simulation as Simulation  # isort: skip
from automap.verify.api import Verification as Verification, verify as verify  # isort: skip
