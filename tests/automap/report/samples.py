"""Plans of every kind that the tests of the report share."""

from dataclasses import replace
from pathlib import Path

from automap.api.plan import Plan
from automap.plan.pipeline import PipelineRecord, StageRecord
from automap.plan.streams import OperatorRecord, StreamsRecord, StreamStageRecord


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u2028\u202e"


def sample() -> Plan:
    """The plan of the tests of plan files, which has no program."""
    return Plan.load(Path(__file__).resolve().parents[1] / "plan" / "plan_sample.json")


def pipelined(stages: int = 3, microbatches: int = 4) -> Plan:
    """The sample as a pipeline with a device a stage, and the rest on the last."""
    plan = sample()
    count = plan.mesh.device_count
    devices = [(s,) for s in range(stages - 1)] + [tuple(range(stages - 1, count))]
    rows = tuple(
        StageRecord(
            devices=devices[s],
            cut_after=None if s == stages - 1 else str(s),
            layers=f"layer {s}",
            forward_seconds=1e-3,
            backward_seconds=2e-3,
            reduce_seconds=5e-4,
            sent_bytes=1000,
            peak_bytes=2000,
            transfer_seconds=1e-4,
        )
        for s in range(stages)
    )
    record = PipelineRecord(schedule="1f1b", microbatches=microbatches, stages=rows)
    return replace(plan, pipeline=record, program=None, refined=None, streams=None)


def streamed(plan: Plan) -> Plan:
    """A plan of one device with two stages: one operator, then two groups at once."""

    alone = {"b": 0.5, "c": 1.0, "d": 2.0}

    def stage(*groups: tuple[str, ...], seconds: float) -> StreamStageRecord:
        made = tuple(
            tuple(OperatorRecord(at=o, label=f"op {o}", seconds=alone.get(o)) for o in g)
            for g in groups
        )
        return StreamStageRecord(together="concurrent", groups=made, seconds=seconds)

    record = StreamsRecord(
        most_groups=None,
        most_in_group=3,
        sequential_seconds=5.0,
        greedy_seconds=4.0,
        stages=(stage(("a",), seconds=1.0), stage(("b", "c"), ("d",), seconds=2.0)),
    )
    return replace(plan, streams=record)
