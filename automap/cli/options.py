"""Options that several commands share, as data; names and defaults are those of `automap.choices`."""

from collections.abc import Iterable, Mapping
import os
from typing import Any, Final, get_args

import click
from click.shell_completion import CompletionItem

from automap import choices


class OneOf(click.ParamType):
    """A text that completes to known names; which of them an option allows is checked with the
    others.
    """

    name = "text"

    def __init__(self, *tables: Mapping[str, str]) -> None:
        """Tables of names with a line on each; a name of several has the first one's."""
        self._lines = {name: line for table in reversed(tables) for name, line in table.items()}

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names that begin so."""
        return [
            CompletionItem(name, help=line)
            for name, line in self._lines.items()
            if name.startswith(incomplete)
        ]


class WrittenPath(click.Path):
    """Where something is written: below the folder in which the command was started, wherever a
    target goes.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The absolute path."""
        return super().convert(os.path.abspath(value), param, ctx)


def listed(names: Iterable[str]) -> str:
    """`auto, beam, exact`."""
    return ", ".join(names)


def table(title: str, names: Mapping[str, str]) -> str:
    """A paragraph of help with a line for each name."""
    width = max(map(len, names))
    rows = (f"  {name:{width}}  {line}" for name, line in names.items())
    return "\n".join(("\b", f"{title}:", *rows))


TARGET: Final = click.Argument(["target"])
TARGET_OPTION: Final = click.Option(
    ["--target"],
    metavar="TARGET",
    help="what was planned, as `automap plan` takes it; a plan file itself never has code imported or called",
)
ARGUMENTS: Final = click.Option(
    ["--arg", "arguments"],
    multiple=True,
    metavar="NAME=VALUE",
    help="a parameter of the target function",
)
PLAN_FILE: Final = click.Argument(["plan_file"], type=click.Path())
JSON: Final = click.Option(["--json", "as_json"], is_flag=True, help="print JSON")

WORKLOAD: Final[tuple[click.Parameter, ...]] = (
    TARGET,
    click.Option(
        ["--topology"],
        required=True,
        help="v5e:4x4, 8xh100, 4x8xv100, flexflow-p100, local, or a TOML file",
    ),
    click.Option(
        ["--mesh"],
        default="auto",
        help="auto (names and sizes of shardings in the step's code, if it has any, else all shapes), or sizes by "
        "name in any order: data=4,model=2; the best order on the links is taken",
    ),
    ARGUMENTS,
    click.Option(["--memory-limit"], type=float, help="GiB per device (default: all of it)"),
    click.Option(
        ["--budget"],
        default=choices.DEFAULT_BUDGET_SECONDS,
        show_default=True,
        help="seconds of processor time of the search, and at most twice as many on the clock",
    ),
    click.Option(["--seed"], default=0, show_default=True, help="same seed, same plan"),
    click.Option(
        ["--strategy"],
        default="auto",
        show_default=True,
        type=OneOf(choices.STRATEGIES, choices.PIPELINE_STRATEGIES),
        help=f"{listed(choices.STRATEGIES)}; with --space pipeline {listed(choices.PIPELINE_STRATEGIES)}; with "
        f"--space hybrid {listed(choices.HYBRID_STRATEGIES)}",
    ),
    click.Option(
        ["--pin"],
        multiple=True,
        metavar="PATH=SPEC",
        help="decide an input's sharding: \"[0]['params']['w']=null,model\", \"[1]*=data,null\"; "
        "per dimension null, an axis, or axes joined by +; * stands for anything",
    ),
    click.Option(
        ["--rule", "rules"],
        multiple=True,
        metavar="NAME=RULE",
        help="how a custom call or a jitted function may be split: "
        '"my_attention=bthd,bshd,bshd->bthd replicate=t,s,d"; a letter on both sides passes, one of '
        "the operands only is summed over",
    ),
    click.Option(
        ["--layers"],
        type=click.Choice(get_args(choices.Layers)),
        default="folded",
        show_default=True,
        help="whether equal layers share their decisions, or each has its own",
    ),
    click.Option(
        ["--profile"],
        type=click.Path(dir_okay=False),
        help="kernels measured on the topology's device, as `automap calibrate` writes them",
    ),
    click.Option(["--strict"], is_flag=True, help="refuse ops without a sharding rule"),
)
"""A step and what it is planned for."""

STAGES: Final = (
    click.Option(
        ["--space"],
        type=click.Choice(get_args(choices.SearchSpace)),
        default="sharding",
        show_default=True,
        help="one program for all devices, pipeline stages of replicas on devices of their own, or the best of both "
        "and of stages that are sharded inside",
    ),
    click.Option(["--stages"], default="auto", show_default=True, help="of a pipeline"),
    click.Option(["--microbatches"], default="auto", show_default=True, help="of a pipeline"),
)

COMPILING: Final = (
    click.Option(
        ["--timeout"],
        default=choices.DEFAULT_COMPILE_TIMEOUT_SECONDS,
        show_default=True,
        help="seconds for each compilation",
    ),
    click.Option(
        ["--cache-dir"], type=WrittenPath(file_okay=False), help="where witnesses are kept"
    ),
    click.Option(["--cache/--no-cache"], default=True, help="use and keep witnesses"),
)
"""Of what asks a compiler."""
