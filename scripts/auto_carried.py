"""AUTO's shardings of inputs and outputs, carried over to the TPU compiler of today as a plan
without constraints.

What it decided inside the step cannot be carried over: the compiler's own partitioner fills that
in, so this shows what AUTO's answer is worth to somebody who has only that, as `jit(...,
in_shardings=..., out_shardings=...)`.
"""

from collections.abc import Sequence
from dataclasses import replace

from automap.api.plan import Plan
from automap.plan.record import LeafRecord, MeshRecord
from automap.step.call import TracedCall
from automap.topology.mesh import Mesh
from automap.topology.model import Topology
from automap.verify.cache import default_folder
from automap.verify.compiling import ask
from automap.verify.program import planned_program
from scripts.auto_shardings import read_spec


def carried_plan(
    plan: Plan, mesh: Mesh, inputs: Sequence[str], outputs: Sequence[str]
) -> Plan | None:
    """A plan of the same step with these shardings, XLA's texts, on a mesh; None if its axes cannot
    say one.

    Raises `PlanError` for texts that cannot be read, and for dimensions that are split unevenly.
    """
    specs = [
        _carried(leaves, texts, mesh)
        for leaves, texts in ((plan.inputs, inputs), (plan.outputs, outputs))
    ]
    if specs[0] is None or specs[1] is None:
        return None
    # What the plan predicts is left as it was: only the compiler's word on the carried one is used.
    return replace(
        plan,
        mesh=MeshRecord(axes=mesh.axes),
        inputs=specs[0],
        outputs=specs[1],
        constraints=(),
        predicted=replace(plan.predicted, collectives=()),
        search=replace(plan.search, point=None),
        decisions=(),
        conflicts=(),
    )


def _carried(
    leaves: Sequence[LeafRecord], texts: Sequence[str], mesh: Mesh
) -> tuple[LeafRecord, ...] | None:
    result = []
    for leaf, text in zip(leaves, texts, strict=True):
        spec = read_spec(text, len(leaf.shape), mesh.axes)
        # One leaf that no axes can say is enough: half of AUTO's answer would be another plan.
        if spec is None:
            return None
        result.append(replace(leaf, spec=spec))
    return tuple(result)


def compiled_seconds(
    plan: Plan, call: TracedCall, topology: Topology, timeout_seconds: float
) -> float | None:
    """The step of a plan as the TPU compiler of this environment schedules it, None if it does not
    fit.

    Raises `CompilerError` if the compiler is missing, fails or is not done in time.
    """
    witness = ask(
        planned_program(plan, call),
        "tpu",
        timeout_seconds=timeout_seconds,
        cache_folder=default_folder(),
    )
    return None if witness.step is None else witness.step.seconds
