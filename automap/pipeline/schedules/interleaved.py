"""Interleaved 1F1B: a group of devices has several stages, so that the pipeline fills in smaller
steps (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", SC 2021).

P groups of devices have v stages each: group g has stages g, g + P, .., g + (v - 1) P of S = v P.
Microbatches go through in rounds of P: the k-th forward pass of a group is of its stage and
microbatch, of M microbatches that P divides,

    stage        g + P ((k mod v P) div P)             -> in: `_turns`
    microbatch   P (k div v P) + k mod P

and the k-th backward pass the same with the group's stages from the last to the first. Group g does

    min(v M, 2 (P - g - 1) + (v - 1) P) forward passes, then a forward and a backward pass in turn,
    then what is left backward

which is Megatron-LM's order. P has to divide M: in a round of fewer microbatches groups would wait
for each other for ever. Of equal stages without transfers, whose passes take F and B, the bubble is

    (P - 1) (F + B)

whose stages are v times as many as 1F1B's and so each a v-th of them: of the M v (F + B) in which a
group is busy it is (P - 1) / (v M), a v-th of 1F1B's. For that every microbatch crosses v P - 1
boundaries instead of P - 1, and a group has up to 2 (P - g - 1) + (v - 1) P + 1 passes of its
stages in flight.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from automap.pipeline.schedules.base import Job, JobKind
from automap.plan.pipeline import ScheduleName


@dataclass(frozen=True, slots=True)
class Interleaved:
    """1F1B of groups of devices that have `stages_per_group` stages each."""

    stages_per_group: int = 2
    name: ScheduleName = "interleaved"
    # The value function knows the longest path of schedules with one stage a group only.
    order: None = None

    def passes(self, group: int, groups: int, microbatches: int) -> Iterator[Job]:
        """The later the group, the fewer forward passes before its first backward pass."""
        forward = list(self._turns("forward", group, groups, microbatches))
        backward = list(self._turns("backward", group, groups, microbatches))
        ahead = 2 * (groups - group - 1) + (self.stages_per_group - 1) * groups
        ahead = min(ahead, len(forward))
        yield from forward[:ahead]
        for n, job in enumerate(backward):
            if ahead + n < len(forward):
                yield forward[ahead + n]
            yield job

    def _turns(self, kind: JobKind, group: int, groups: int, microbatches: int) -> Iterator[Job]:
        """The group's passes of a kind in their order."""
        turns = range(self.stages_per_group)
        for first in range(0, microbatches, groups):
            for turn in turns if kind == "forward" else reversed(turns):
                for m in range(first, first + groups):
                    yield Job(kind, group + turn * groups, m)
