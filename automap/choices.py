"""What a user may choose by name, with a line on each, the defaults of what is chosen by number,
and how an option is described.

It imports no search and no compiler: help texts, completion and checks of names load nothing else.
What the names stand for is elsewhere (`automap.search.STRATEGIES`, `automap.space.presets.PRESETS`,
`automap.pipeline.search.PIPELINE_STRATEGIES`); tests hold both against each other.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from automap.errors import InputError


# Literals and not enums: users write these as texts, in Python as on the command line.
SearchSpace = Literal["sharding", "pipeline", "hybrid", "placement", "streams"]
Layers = Literal["folded", "apart"]
LeverName = Literal["accumulate", "offload", "remat"]
UnknownOps = Literal["replicate", "refuse"]
CompilerName = Literal["cpu", "gpu", "tpu"]
OtherProgram = Literal["maxtext", "megatron"]

# A search that is done ends before it; when it is over the best plan so far is taken.
DEFAULT_BUDGET_SECONDS: Final = 30.0
DEFAULT_ADVICE_SECONDS: Final = 300.0
"""Of processor time for all machines and batches of `automap advise`."""
# A large model takes XLA many minutes, and a compilation that is ended has to begin again.
DEFAULT_COMPILE_TIMEOUT_SECONDS: Final = 3600.0
# For a plan that was not asked to be verified, and that is near the limit of memory.
NEAR_LIMIT_COMPILE_SECONDS: Final = 120.0
DEFAULT_VERIFY_TOP: Final = 3
DEFAULT_NUMERICS_GIB: Final = 4.0

STRATEGIES: Final[Mapping[str, str]] = {
    "auto": "several of those below, in an order that suits the space",
    "adp": "Auto-MAP's auto data parallelism: most input tensors split; needs the extra rl",
    "agent": "a pretrained agent, and climbs from what it comes to",
    "beam": "decides one thing after another, keeps the best partial plans",
    "exact": "proves the best plan, or says how far from it the plan is",
    "exhaustive": "every plan; for spaces of a few thousand",
    "greedy": "improving moves from presets and random plans until none is left",
    "mcmc": "FlexFlow's Metropolis walks",
    "opp": "Auto-MAP's operator partitioning: most of the variables split; needs the extra rl",
    "optcnn": "OptCNN's dynamic programme: the least sum of kernels and collectives",
    "rainbow": "an agent that learns on this step; needs the extra rl",
}

PIPELINE_STRATEGIES: Final[Mapping[str, str]] = {
    "auto": "exact",
    "exact": "the proven best pipeline",
    "rainbow": "an agent that learns on this step; needs the extra rl",
    "pivots": "Auto-MAP's game: cuts of the step, devices follow; needs the extra rl",
    "local-search": "moves cuts while that helps",
    "even": "stages of about equal seconds",
    "servers": "the best of stages that begin where hosts do",
    "agent": "a pretrained agent, in milliseconds",
    "agent-gap": "the pretrained agent, and how far it is from the optimum",
}

HYBRID_STRATEGIES: Final[Mapping[str, str]] = {
    "auto": "the best of one program and of stages",
    "agent": "the same, each by pretrained agents: one program, stages, plans inside stages",
}

PLACEMENT_STRATEGIES: Final[Mapping[str, str]] = {
    "auto": "exact where placements are few, else mcmc",
    "exact": "the proven best placement, for small graphs",
    "mcmc": "FlexFlow's Metropolis walks from the baselines, and a descent to a local optimum",
    "agent": "a policy that was trained once on generated graphs, and places without training",
    "colocrl": "ColocRL: a sequence-to-sequence policy trained on this step with REINFORCE",
    "colocrl-heft": "the same, beginning at HEFT's placement",
    "colocrl-measured": "colocrl with rewards measured on this machine's devices",
    "heft": "earliest finish time, the longest way first (HEFT)",
    "m-sct": "small communication times under memory, as in Baechi",
    "memory": "devices filled one after the other, the fastest first, as much as fits",
    "mincut": "fewest bytes between the devices of the fastest kind, by METIS",
    "mapping": "the same for all devices in proportion to their speed, as Scotch maps",
    "single": "all operators on the device that takes least",
    "data-parallel": "the samples of every operator over the devices of the fastest kind",
    "optcnn": "layers where a step is shortest if nothing runs at once, as OptCNN takes it",
    "expert": "layers in order on the devices of the fastest kind, in parts of equal seconds",
}

LEVERS: Final[Mapping[str, str]] = {
    "accumulate": "accumulate gradients over parts of the batch (microbatches), and update once",
    "offload": "keep optimizer state, and what loops stack, in the host's memory",
    "remat": "compute values of the forward pass again in the backward pass",
}

STREAM_STRATEGIES: Final[Mapping[str, str]] = {
    "auto": "dos with IOS's limits: 8 groups a stage, 3 operators a group",
    "dos": "a dynamic programme: the proven best stages of each block",
    "exact": "the same as an integer programme, for blocks of up to 20 operators",
    "greedy": "all operators whose operands are there",
    "sequential": "one operator after another",
}

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
    # All names are listed: there are few, and one of them was meant.
    if name not in known:
        raise InputError(f"unknown {what} {name!r}{of}; allowed: {', '.join(known)}")


Surface = Literal["python", "command"]
"""Where an option is written: as a keyword, or as a flag with a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNames:
    """Names that an option allows, with a line on each; `space` is the one in which it does."""

    names: Mapping[str, str]
    space: SearchSpace | None = None

    def text(self, surface: Surface) -> str:
        """`auto, exact`, or `with --space pipeline auto, exact`."""
        names = ", ".join(self.names)
        if self.space is None:
            return names
        is_command = surface == "command"
        where = f"--space {self.space}" if is_command else f'space="{self.space}"'
        return f"with {where} {names}"


def _as_given(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option as users see it.

    `name` and `type` are those of the keyword; the flag is `name` with hyphens unless `flag` is
    given. `help` is a sentence without capital and full stop that follows `unit`, if there is one;
    `python` and `command` are added to it where a value is written differently. `choices` are known
    names, which complete in a shell. A flag with `is_repeated` may be given several times, its
    texts shown as `metavar`. `read` makes a given value the one of `Options`.
    """

    name: str
    type: Any
    help: str
    default: Any = None
    is_required: bool = False
    unit: str | None = None
    choices: tuple[KnownNames, ...] = ()
    python: str = ""
    command: str = ""
    flag: str | None = None
    metavar: str | None = None
    is_repeated: bool = False
    # A function and not a type: a text may stand for nothing (auto), or for a file to be read.
    read: Callable[[Any], Any] = _as_given

    def text(self, surface: Surface) -> str:
        """The sentence for a docstring or for the help of the command."""
        start = self.help if self.unit is None else f"{self.unit} {self.help}"
        names = "; ".join(part.text(surface) for part in self.choices)
        written = self.python if surface == "python" else self.command
        return f"{start}: {names}{written}" if names else f"{start}{written}"
