"""What a user may choose by name, with a line on each, and the defaults of what is chosen by
number.

It imports no search and no compiler: help texts, completion and checks of names load nothing else.
What the names stand for is elsewhere (`automap.search.STRATEGIES`, `automap.space.presets.PRESETS`,
`automap.pipeline.search.PIPELINE_STRATEGIES`); tests hold both against each other.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from automap.errors import InputError


SearchSpace = Literal["sharding", "pipeline", "hybrid"]
Layers = Literal["folded", "apart"]
UnknownOps = Literal["replicate", "refuse"]
CompilerName = Literal["cpu", "gpu", "tpu"]

DEFAULT_BUDGET_SECONDS: Final = 30.0
DEFAULT_COMPILE_TIMEOUT_SECONDS: Final = 3600.0
DEFAULT_VERIFY_TOP: Final = 3
DEFAULT_NUMERICS_GIB: Final = 4.0

STRATEGIES: Final[Mapping[str, str]] = {
    "auto": "several of those below, in an order that suits the space",
    "beam": "decides one thing after another, keeps the best partial plans",
    "exact": "proves the best plan, or says how far from it the plan is",
    "exhaustive": "every plan; for spaces of a few thousand",
    "greedy": "improving moves from presets and random plans until none is left",
    "mcmc": "FlexFlow's Metropolis walks",
    "optcnn": "OptCNN's dynamic programme: the least sum of kernels and collectives",
    "rainbow": "an agent that learns on this step; needs the extra rl",
}

PIPELINE_STRATEGIES: Final[Mapping[str, str]] = {
    "auto": "exact",
    "exact": "the proven best pipeline",
    "rainbow": "an agent that learns on this step; needs the extra rl",
    "local-search": "moves cuts while that helps",
    "even": "stages of about equal seconds",
    "servers": "the best of stages that begin where hosts do",
    "agent": "a pretrained agent, in milliseconds",
    "agent-gap": "the pretrained agent, and how far it is from the optimum",
}

HYBRID_STRATEGIES: Final[Mapping[str, str]] = {"auto": "the best of one program and of stages"}

PRESETS: Final[Mapping[str, str]] = {
    "data-parallel": "the batch is split, everything else is copied",
    "zero-1": "data-parallel, and a part of the optimizer state on each device",
    "zero-3": "data-parallel, and a part of parameters and optimizer state on each device (FSDP)",
    "megatron": "heads, feed-forward and vocabulary on one axis, the batch on the others",
    "sequence-parallel": "megatron, and the sequence on its axis wherever no feature is split",
    "expert-parallel": "data-parallel, and tokens move to their experts on one axis",
    "one-weird-trick": "the batch in convolutions, features in fully connected layers",
}


def check_known(what: str, name: str, known: Iterable[str], of: str = "") -> None:
    """Raise `InputError` for a name that is none of `known`, which it lists; `of` says where it is
    unknown.
    """
    if name not in known:
        raise InputError(f"unknown {what} {name!r}{of}; allowed: {', '.join(known)}")
