"""What a user may choose about a plan: the command's options, which are also keywords of
`automap.plan`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import math
from pathlib import Path
from typing import get_args

from automap import choices
from automap.choices import Layers, SearchSpace, UnknownOps
from automap.cost.profile import KernelProfile
from automap.errors import InputError
from automap.plan.checks import MAX_INTEGER
from automap.step.rules import user_rules
from automap.topology.mesh import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked options.

    `mesh` None searches all shapes, a mesh is tried in every order of its axes, `preset` skips the
    search, `memory_limit_bytes` None allows all of a device's memory; `pins` are texts as
    `automap.space.pins` reads them; `rules` are (name, rule) of custom calls and functions, as
    `hlo_tools.rules.notation` reads them; `unknown_ops` says what to do with ops that have none;
    `space` says what is decided, `stages` and `microbatches` are those of a pipeline, None to
    search them; `layers` "apart" decides for each of several equal layers; `profile` has measured
    seconds of kernels. Raises `InputError` for numbers out of range, unknown names and bad rules.
    """

    mesh: Mesh | None = None
    strategy: str = "auto"
    preset: str | None = None
    budget_seconds: float = choices.DEFAULT_BUDGET_SECONDS
    memory_limit_bytes: float | None = None
    pins: tuple[str, ...] = ()
    rules: tuple[tuple[str, str], ...] = ()
    unknown_ops: UnknownOps = "replicate"
    layers: Layers = "folded"
    profile: KernelProfile | None = None
    space: SearchSpace = "sharding"
    stages: int | None = None
    microbatches: int | None = None
    seed: int = 0

    @property
    def axes(self) -> tuple[tuple[str, int], ...] | None:
        """(name, size) of the mesh's axes, None if all meshes are searched."""
        return self.mesh and self.mesh.axes

    def __post_init__(self) -> None:
        """Check numbers and names."""
        _check_positive("budget", self.budget_seconds, "seconds")
        if self.memory_limit_bytes is not None:
            _check_positive("memory limit", self.memory_limit_bytes / 2**30, "GiB")
            if not 1 <= self.memory_limit_bytes <= MAX_INTEGER:
                raise InputError(
                    f"memory limit {self.memory_limit_bytes / 2**30:g} GiB; allowed: from 1 to "
                    f"{MAX_INTEGER} bytes, in GiB"
                )
        if not 0 <= self.seed <= MAX_INTEGER:
            raise InputError(f"seed {self.seed}; allowed: an integer from 0 to {MAX_INTEGER}")
        if self.space not in get_args(SearchSpace):
            raise InputError(f"space {self.space!r}; allowed: {', '.join(get_args(SearchSpace))}")
        if self.space != "sharding":
            self._check_pipeline()
        else:
            choices.check_known("strategy", self.strategy, choices.STRATEGIES)
            self._check_sharding()
        if self.preset is not None:
            choices.check_known("preset", self.preset, choices.PRESETS)
        user_rules(self.rules)
        if self.layers not in get_args(Layers):
            raise InputError(f"layers {self.layers!r}; allowed: {', '.join(get_args(Layers))}")

    def _check_pipeline(self) -> None:
        is_pipeline = self.space == "pipeline"
        known = choices.PIPELINE_STRATEGIES if is_pipeline else choices.HYBRID_STRATEGIES
        of = " of pipelines" if is_pipeline else " of --space hybrid"
        choices.check_known("strategy", self.strategy, known, of)
        given = {"mesh": self.mesh, "preset": self.preset, "pin": self.pins}
        for name, value in given.items():
            if value:
                raise InputError(
                    f"--{name} is of shardings, --space {self.space} decides stages; give one or "
                    "the other"
                )

    def _check_sharding(self) -> None:
        for name, count in (("stages", self.stages), ("microbatches", self.microbatches)):
            if count is not None:
                raise InputError(
                    f"--{name} {count} is of pipelines; give --space pipeline or hybrid with it"
                )


def read_options(
    *,
    mesh: str | Mapping[str, int] = "auto",
    strategy: str = "auto",
    preset: str | None = None,
    budget: float = choices.DEFAULT_BUDGET_SECONDS,
    memory_limit: float | None = None,
    pin: str | Sequence[str] = (),
    rules: Mapping[str, str] | None = None,
    strict: bool = False,
    layers: Layers = "folded",
    profile: str | Path | None = None,
    space: SearchSpace = "sharding",
    stages: int | str = "auto",
    microbatches: int | str = "auto",
    seed: int = 0,
) -> Options:
    """Options as the command takes them.

    Args:
        mesh: "auto" (names and sizes of shardings in the step's own code, if it has any, else all
            shapes), or sizes by name: "data=4,model=2" or {"data": 4, "model": 2}. Every order of
            the axes that lies on the topology is tried; an axis called "model" is the one that
            presets give features.
        strategy: a name from `automap.choices.STRATEGIES`.
        preset: a name from `automap.choices.PRESETS`; no search then.
        budget: seconds of processor time of the search, compiling our own solvers included; it ends
            no later than twice as many seconds on the wall clock. Both begin when the step is
            traced.
        memory_limit: GiB per device; None allows all of it.
        pin: inputs whose sharding is decided, as "[0]['params']['w']=null,model"; * in a path
            stands for anything.
        rules: sharding rules of custom calls and jitted functions, by name: {"my_kernel":
            "ik,kj->ij"}.
        strict: an op without a rule is an error rather than replicated with a warning.
        layers: "folded": equal layers share their decisions; "apart": each has its own.
        profile: a file of kernels measured on the topology's device, by `automap calibrate`.
        space: "sharding", one program for all devices; "pipeline", replicated stages on devices of
            their own; "hybrid", the best of these and of stages that are sharded inside.
        stages: of a pipeline; "auto" tries several.
        microbatches: of a pipeline; "auto" tries 1 and the powers of two that divide the batch.
        seed: same seed, same plan, as long as the search ends within its budget.

    Raises:
        ProfileError: a profile that cannot be read.
        InputError: a value that is not one of these.
    """
    return Options(
        mesh=_mesh(mesh),
        strategy=strategy,
        preset=preset,
        budget_seconds=budget,
        memory_limit_bytes=None if memory_limit is None else memory_limit * 2**30,
        pins=(pin,) if isinstance(pin, str) else tuple(pin),
        rules=tuple((rules or {}).items()),
        unknown_ops="refuse" if strict else "replicate",
        layers=layers,
        profile=None if profile is None else KernelProfile.load(profile),
        space=space,
        stages=_count("stages", stages),
        microbatches=_count("microbatches", microbatches),
        seed=seed,
    )


def _count(name: str, given: int | str) -> int | None:
    if given == "auto":
        return None
    if not _is_size(str(given)):
        raise InputError(f"--{name} {given}: allowed: auto, or an integer from 1")
    return int(given)


def _is_size(text: str) -> bool:
    """Whether a text is an integer from 1 with at most as many digits as the largest that a file
    can hold.
    """
    return text.isdecimal() and len(text) <= len(str(MAX_INTEGER)) and int(text) > 0


def _mesh(given: str | Mapping[str, int]) -> Mesh | None:
    if given == "auto":
        return None
    pairs = (
        [tuple(part.partition("=")[::2]) for part in given.split(",")]
        if isinstance(given, str)
        else [(name, str(size)) for name, size in given.items()]
    )
    names = [name for name, _ in pairs]
    is_read = all(n.isidentifier() and _is_size(v) for n, v in pairs)
    if not is_read or not pairs or len(set(names)) != len(names):
        raise InputError(
            f"mesh {given!r}: expected auto, or different names with sizes, as data=4,model=2"
        )
    return Mesh(tuple(names), tuple(int(size) for _, size in pairs))


def _check_positive(name: str, value: float, unit: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} {value}: must be a positive number of {unit}")
