"""What tables of levers are made of: models, what people use without a planner, and both priced.

Small variants of four models of the zoo, their layers in a loop, and Llama 3 8B at its context
length. What people use, `POLICIES`: the step as it is, nothing kept of each layer, and its products
(MaxText's minimal policy), each with its best preset that fits.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from automap.config import Options, read_options
from automap.jaxpr.blocks import block_groups
from automap.plan.levers import LeversRecord, WithoutLeversRecord
from automap.planner.rebuild import levered_workload
from automap.planner.records import Outcome
from automap.planner.remat import KeptValues, keep_nothing, keep_products, remat_records
from automap.planner.sharding import find
from automap.program.trace import Workload
from automap.topology.model import Topology
from models.gpt import GptConfig, gpt
from models.llama import LLAMA_8B, llama
from models.moe import MoeConfig, moe
from models.t5 import T5Config, t5
from models.training import TrainStep
from models.vit import VitConfig, vit


SEARCH: Final = read_options(strategy="greedy", budget=60.0, levers="remat")


def small_gpt() -> TrainStep:
    """Six layers of 512 on 32 sequences."""
    sizes = GptConfig(
        depth=6,
        d_model=512,
        heads=8,
        positions=512,
        vocab=8192,
        layers="scanned",
    )
    return gpt(sizes, batch=32, seq=512, dtype="bfloat16")


def _wide_gpt(layers: Literal["scanned", "unrolled"]) -> TrainStep:
    sizes = GptConfig(depth=8, d_model=1024, heads=16, positions=512, vocab=8192, layers=layers)
    return gpt(sizes, batch=8, seq=256, dtype="bfloat16")


def _t5() -> TrainStep:
    sizes = T5Config(
        depth=4, d_model=512, d_kv=64, d_ff=2048, heads=8, vocab=8192, layers="scanned"
    )
    return t5(sizes, batch=32, seq=512, dtype="bfloat16")


def _moe() -> TrainStep:
    sizes = MoeConfig(
        depth=4,
        d_model=512,
        heads=8,
        experts=8,
        room=1.25,
        positions=512,
        vocab=8192,
        layers="scanned",
    )
    return moe(sizes, batch=16, seq=512, dtype="bfloat16")


def _vit() -> TrainStep:
    sizes = VitConfig(depth=6, d_model=512, heads=8, layers="scanned")
    return vit(sizes, batch=64, dtype="bfloat16")


def _llama_8b() -> TrainStep:
    sizes = replace(LLAMA_8B, layers="scanned", attention="flash")
    return llama(sizes, batch=16, seq=8192, dtype="bfloat16")


Model = Callable[[], TrainStep]
MODELS: Final[Mapping[str, Model]] = {"GPT": small_gpt, "T5": _t5, "MoE": _moe, "ViT": _vit}
LLAMA: Final = "Llama 3 8B, flash"
LARGE: Final[Mapping[str, Model]] = {LLAMA: _llama_8b}
OFFLOADED: Final[Mapping[str, Model]] = {
    "GPT, layers in a loop": partial(_wide_gpt, "scanned"),
    "GPT, layers apart": partial(_wide_gpt, "unrolled"),
    "GPT of many samples": small_gpt,
    "T5 of many samples": _t5,
    "ViT of many samples": _vit,
}
_Policy = Callable[[list], KeptValues]
POLICIES: Final[dict[str, _Policy | None]] = {
    "none": None,
    "full": keep_nothing,
    "minimal": keep_products,
}


@dataclass(frozen=True)
class PolicyStep:
    """The step with what people use, `levers` its policy; of none, the step itself."""

    workload: Workload
    levers: LeversRecord | None


def policy_steps(workload: Workload, topology: Topology) -> Iterator[tuple[str, PolicyStep]]:
    """The step with each policy, by its name."""
    assert workload.reemitter is not None  # noqa: S101 - it was traced
    groups = block_groups(workload.reemitter.flat)
    without = WithoutLeversRecord(step_seconds=0.0, peak_bytes=0, fits=False)
    for name, keep in POLICIES.items():
        if keep is None:
            yield name, PolicyStep(workload, None)
            continue
        records = remat_records(groups, keep(groups))
        levers = LeversRecord(remat=records, recompute_seconds=0.0, without=without)
        changed = levered_workload(workload, levers, topology.platform)
        yield name, PolicyStep(changed, levers)


@dataclass(frozen=True)
class PricedPreset:
    """A preset of a step with a policy."""

    name: str
    seconds: float
    peak_bytes: float


def best_preset(step: PolicyStep, topology: Topology, options: Options) -> PricedPreset | None:
    """The fastest preset that fits, if one does."""
    # A preset's own price takes no search.
    alone = replace(options, preset="data-parallel", levers=())
    context = find(step.workload, topology, alone).context
    fitting = [
        PricedPreset(name, each.estimate.step_seconds, each.estimate.peak_bytes)
        for name, each in context.best_per_preset.items()
        if context.objective.fits(each.estimate)
    ]
    return min(fitting, key=lambda preset: preset.seconds, default=None)


def preset_outcome(step: PolicyStep, topology: Topology, options: Options, name: str) -> Outcome:
    """That preset as a plan."""
    outcome = find(step.workload, topology, replace(options, preset=name, levers=()))
    return replace(outcome, levers=step.levers)


def milliseconds(seconds: float | None) -> str:
    """A cell; - where there is none."""
    return "-" if seconds is None or seconds == float("inf") else f"{seconds * 1e3:.2f}"


def levers_words(levers: LeversRecord | None) -> str:
    """The levers of a plan in a few words."""
    if levers is None:
        return "none"
    parts = [f"{levers.microbatches} microbatches"] if levers.microbatches > 1 else []
    parts += ["remat"] if levers.remat else []
    waiting = any(row.memory == "host" for group in levers.remat for row in group.kept)
    parts += ["kept values on the host"] if waiting else []
    parts += [f"{len(levers.offload)} leaves on the host"] if levers.offload else []
    return ", ".join(parts)
