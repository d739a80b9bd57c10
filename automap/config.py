"""The options of a plan, described once: names, types, defaults, choices, units and sentences.

An `Option` (`automap.choices`) describes one; a field of `Options` holds its checked value. All
else is made from these fields, so that an option is added in one place:

    the keywords of `automap.plan` and `automap.parallelize`, their signatures and docstrings
                                                               -> in: `automap.api.keywords`
    the options of the command, its help and completion        -> in: `automap.cli.commands`
    the values that the planners read                          -> in: `read_options`

`OptionKeywords` repeats names and types for type checkers and editors, which read no metadata; a
test holds it against the fields.

Nothing here loads numpy or JAX before a value is read: help has to answer at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack, get_args

from automap import choices
from automap.choices import KnownNames, Layers, Option, SearchSpace, UnknownOps
from automap.errors import InputError
from automap.option_values import (
    check_positive,
    read_count,
    read_levers,
    read_memory_limit,
    read_mesh,
    read_pins,
    read_profile,
    read_rules,
    read_strict,
    unknown_keyword,
)
from automap.plan.checks import MAX_INTEGER


if TYPE_CHECKING:
    from automap.cost.profile import KernelProfile
    from automap.topology.mesh import Mesh


_DESCRIPTION: Final = "option"
"""The key of an option in the metadata of its field."""


def _described(option: Option) -> Any:
    """A field of `Options` that holds what is read of an option."""
    return field(default=option.read(option.default), metadata={_DESCRIPTION: option})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked options, each with its description.

    Raises `InputError` for numbers out of range, unknown names and bad rules.
    """

    mesh: "Mesh | None" = _described(
        Option(
            name="mesh",
            type=str | Mapping[str, int],
            default="auto",
            help="auto (names and sizes of shardings in the step's own code, if it has any, else "
            "all shapes), or sizes by name in any order: data=4,model=2",
            python=' or `{"data": 4, "model": 2}`; names mean nothing by themselves, but presets '
            'give features to an axis called "model" if there is one',
            command="; the best order on the links is taken; names mean nothing by themselves, but "
            "presets give features to an axis called model if there is one",
            read=read_mesh,
        )
    )
    """Tried in every order of its axes; None searches all shapes."""

    strategy: str = _described(
        Option(
            name="strategy",
            type=str,
            default="auto",
            help="how to search",
            choices=(
                KnownNames(names=choices.STRATEGIES),
                KnownNames(names=choices.PIPELINE_STRATEGIES, space="pipeline"),
                KnownNames(names=choices.HYBRID_STRATEGIES, space="hybrid"),
                KnownNames(names=choices.PLACEMENT_STRATEGIES, space="placement"),
                KnownNames(names=choices.STREAM_STRATEGIES, space="streams"),
            ),
        )
    )

    preset: str | None = _described(
        Option(
            name="preset",
            type=str | None,
            help="take this named plan and do not search",
            choices=(KnownNames(names=choices.PRESETS),),
        )
    )

    budget_seconds: float = _described(
        Option(
            name="budget",
            type=float,
            default=choices.DEFAULT_BUDGET_SECONDS,
            unit="seconds",
            help="of processor time of the search, and at most twice as many on the clock, both "
            "from when the step is traced; the best plan so far is taken then, and on Ctrl-C",
        )
    )

    memory_limit_bytes: float | None = _described(
        Option(
            name="memory_limit",
            type=float | None,
            unit="GiB",
            help="per device; by default all of it",
            read=read_memory_limit,
        )
    )

    pins: tuple[str, ...] = _described(
        Option(
            name="pin",
            type=str | Sequence[str],
            default=(),
            help="decide an input's sharding: `\"[0]['params']['w']=null,model\"`, "
            '`"[1]*=data,null"`; per dimension null, an axis, or axes joined by +; * in a path '
            "stands for anything",
            metavar="PATH=SPEC",
            is_repeated=True,
            read=read_pins,
        )
    )
    """As `automap.space.pins` reads them."""

    rules: tuple[tuple[str, str], ...] = _described(
        Option(
            name="rules",
            type=Mapping[str, str] | None,
            help="how a custom call or a jitted function may be split, by name; a letter on both "
            "sides passes, one of the operands only is summed over: ",
            python='`{"my_attention": "bthd,bshd,bshd->bthd replicate=t,s,d"}`',
            command='`"my_attention=bthd,bshd,bshd->bthd replicate=t,s,d"`',
            flag="--rule",
            metavar="NAME=RULE",
            is_repeated=True,
            read=read_rules,
        )
    )
    """(name, rule) as `hlo_tools.rules.notation` reads them."""

    unknown_ops: UnknownOps = _described(
        Option(
            name="strict",
            type=bool,
            default=False,
            help="refuse ops without a sharding rule, which else are replicated with a warning",
            read=read_strict,
        )
    )

    layers: Layers = _described(
        Option(
            name="layers",
            type=Layers,
            default="folded",
            help="whether equal layers share their decisions (folded), or each has its own (apart)",
        )
    )

    profile: "KernelProfile | None" = _described(
        Option(
            name="profile",
            type=str | Path | None,
            help="a file of kernels measured on the topology's device, as `automap calibrate` "
            "writes it",
            read=read_profile,
        )
    )

    space: SearchSpace = _described(
        Option(
            name="space",
            type=SearchSpace,
            default="sharding",
            help="what is decided: one program for all devices (sharding), stages of replicas on "
            "devices of their own (pipeline), the best of both and of stages that are sharded "
            "inside (hybrid), which operator runs on which devices, whole or in parts "
            "(placement), or which operators of a device run at once or merged (streams)",
        )
    )

    stages: int | None = _described(
        Option(
            name="stages",
            type=int | str,
            default="auto",
            help="of a pipeline; auto tries several",
            read=partial(read_count, "stages"),
        )
    )

    microbatches: int | None = _described(
        Option(
            name="microbatches",
            type=int | str,
            default="auto",
            help="of a pipeline; auto tries 1 and the powers of two that divide the batch",
            read=partial(read_count, "microbatches"),
        )
    )

    groups: int | None = _described(
        Option(
            name="groups",
            type=int | str,
            default="auto",
            help="of operators that run at once in a stage of streams, at most; auto is 8 with "
            "strategy auto, any number with another",
            read=partial(read_count, "groups"),
        )
    )

    group_size: int | None = _described(
        Option(
            name="group_size",
            type=int | str,
            default="auto",
            help="operators of such a group, which run one after another, at most; auto is 3 with "
            "strategy auto, 1 with another",
            read=partial(read_count, "group-size"),
        )
    )

    levers: tuple[str, ...] = _described(
        Option(
            name="levers",
            type=str,
            default="auto",
            help="what trades time for memory: auto (any, where memory decides), none, or names "
            "separated by commas, which are tried where all fits too",
            choices=(KnownNames(names=choices.LEVERS),),
            read=read_levers,
        )
    )
    """By name; they are of one program for all devices."""

    seed: int = _described(
        Option(
            name="seed",
            type=int,
            default=0,
            help="same seed, same plan, as long as the search ends within its budget",
        )
    )

    @property
    def axes(self) -> tuple[tuple[str, int], ...] | None:
        """(name, size) of the mesh's axes, None if all meshes are searched."""
        return self.mesh and self.mesh.axes

    def __post_init__(self) -> None:
        """Check numbers and names."""
        check_positive("budget", self.budget_seconds, "seconds")
        if self.memory_limit_bytes is not None:
            check_positive("memory limit", self.memory_limit_bytes / 2**30, "GiB")
            if not 1 <= self.memory_limit_bytes <= MAX_INTEGER:
                raise InputError(
                    f"memory limit {self.memory_limit_bytes / 2**30:g} GiB; allowed: from 1 to "
                    f"{MAX_INTEGER} bytes, in GiB"
                )
        if not (isinstance(self.seed, Integral) and 0 <= self.seed <= MAX_INTEGER):
            raise InputError(f"seed {self.seed}; allowed: an integer from 0 to {MAX_INTEGER}")
        _check_literal("space", self.space, SearchSpace)
        if self.space != "sharding":
            self._check_pipeline()
        else:
            choices.check_known("strategy", self.strategy, choices.STRATEGIES)
            self._check_sharding()
        if self.preset is not None:
            choices.check_known("preset", self.preset, choices.PRESETS)
        self._check_rules()
        _check_literal("layers", self.layers, Layers)

    def _check_rules(self) -> None:
        if self.rules:
            from automap.step.rules import user_rules  # loads numpy

            user_rules(self.rules)

    def _check_pipeline(self) -> None:
        known, where = _STRATEGIES_OF_SPACE[self.space]
        choices.check_known("strategy", self.strategy, known, where)
        given = {"mesh": self.mesh, "preset": self.preset, "pin": self.pins}
        for name, value in given.items():
            if value:
                raise InputError(
                    f"--{name} is of shardings, --space {self.space} decides stages; give one or "
                    "the other"
                )
        if self.space in ("streams", "placement"):
            self._check_no_pipeline()
        if self.space != "streams":
            self._check_no_streams()

    def _check_sharding(self) -> None:
        self._check_no_pipeline()
        self._check_no_streams()

    def _check_no_pipeline(self) -> None:
        for name, count in (("stages", self.stages), ("microbatches", self.microbatches)):
            if count is not None:
                raise InputError(
                    f"--{name} {count} is of pipelines; give --space pipeline or hybrid with it"
                )

    def _check_no_streams(self) -> None:
        for name, count in (("groups", self.groups), ("group-size", self.group_size)):
            if count is not None:
                raise InputError(f"--{name} {count} is of streams; give --space streams with it")


_STRATEGIES_OF_SPACE: Final[Mapping[str, tuple[Mapping[str, str], str]]] = {
    "pipeline": (choices.PIPELINE_STRATEGIES, " of pipelines"),
    "hybrid": (choices.HYBRID_STRATEGIES, " of --space hybrid"),
    "placement": (choices.PLACEMENT_STRATEGIES, " of placements"),
    "streams": (choices.STREAM_STRATEGIES, " of streams"),
}
"""Beside those of shardings, with the words that say where they are known."""


class OptionKeywords(TypedDict, total=False):
    """The keywords of `Options` for type checkers and editors; a test holds it against the
    fields.
    """

    mesh: str | Mapping[str, int]
    strategy: str
    preset: str | None
    budget: float
    memory_limit: float | None
    pin: str | Sequence[str]
    rules: Mapping[str, str] | None
    strict: bool
    layers: Layers
    profile: str | Path | None
    space: SearchSpace
    stages: int | str
    microbatches: int | str
    groups: int | str
    group_size: int | str
    levers: str
    seed: int


def described_options(source: type[Any] = Options) -> tuple[Option, ...]:
    """The options that the fields of a class describe, in their order."""
    return tuple(f.metadata[_DESCRIPTION] for f in fields(source) if _DESCRIPTION in f.metadata)


def read_options(**given: Unpack[OptionKeywords]) -> Options:
    """Options as users write them; what is not given has its default.

    Raises `InputError` for a value that is not allowed, `ProfileError` for a profile that cannot be
    read, `TypeError` for a keyword that is no option.
    """
    # By the users' names, which have no units: `budget` is read into `budget_seconds`.
    known = {f.metadata[_DESCRIPTION].name: f for f in fields(Options)}
    for name in given:
        if name not in known:
            raise unknown_keyword(name, known)
    values = {
        known[name].name: known[name].metadata[_DESCRIPTION].read(value)
        for name, value in given.items()
    }
    return Options(**values)


TOPOLOGY: Final = Option(
    name="topology",
    type=str,
    is_required=True,
    help="a name, as v5e:4x4, 8xh100, 4x8xv100, flexflow-p100 or local, or a TOML file",
    python=", or a `Topology`",
)
"""What a step is planned for."""


def _check_literal(name: str, value: str, literal: Any) -> None:
    allowed = get_args(literal)
    if value not in allowed:
        raise InputError(f"{name} {value!r}; allowed: {', '.join(allowed)}")
