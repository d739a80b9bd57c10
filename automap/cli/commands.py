"""Every command as data: options, help with examples, and the module under `automap.cli.run` that
runs it.

Results go to stdout, progress and warnings to stderr, and what a target prints too. The exit status
says why a command ended (`automap.exit_status`).

The options of a plan are made from their description in `automap.config`    -> in: `flag`
"""

from collections.abc import Mapping
import os
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from automap import __version__, choices, compiler_options
from automap.choices import Option
from automap.cli.group import CONTEXT_SETTINGS, Command, Group, verbosity_options
from automap.config import TOPOLOGY, described_options
from automap.exit_status import MEANING


class OneOf(click.ParamType):
    """A text that completes to known names; which of them an option allows is checked with the
    others.
    """

    name = "text"

    def __init__(self, *tables: Mapping[str, str]) -> None:
        """Tables of names with a line on each; a name of several has the first one's."""
        # Reversed, so that the first table's line is the one that is left.
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


class Machine(click.ParamType):
    """A name of the catalogue, which completes to its examples, or a TOML file."""

    name = "text"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The examples that begin so."""
        # Loads numpy, for which a command line that is read would have to wait.
        from automap.topology import catalogue_entries

        return [
            CompletionItem(entry.example, help=entry.pattern)
            for entry in catalogue_entries()
            if entry.example.startswith(incomplete)
        ]


class WrittenPath(click.Path):
    """Where something is written: below the folder in which the command was started, wherever a
    target goes.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The absolute path."""
        # While the command line is read, before a target changes the folder.
        return super().convert(os.path.abspath(value), param, ctx)


def table(title: str, names: Mapping[str, str]) -> str:
    """A paragraph of help with a line for each name."""
    width = max(map(len, names))
    rows = (f"  {name:{width}}  {line}" for name, line in names.items())
    # The control character tells click to leave the lines as they are.
    return "\n".join(("\b", f"{title}:", *rows))


def flag(option: Option, kind: click.ParamType | None = None) -> click.Option:
    """The option of the command, by default of its own type; its value has the option's name."""
    name = option.flag or f"--{option.name.replace('_', '-')}"
    is_switch = option.type is bool
    # Only these are shown in the help; a default of nothing is said in the sentence.
    has_default = not (is_switch or option.default is None or option.default == ())
    return click.Option(
        [name, option.name],
        type=None if is_switch else kind or _click_type(option),
        is_flag=is_switch,
        multiple=option.is_repeated,
        required=option.is_required,
        metavar=option.metavar,
        help=option.text("command"),
        **({"default": option.default, "show_default": True} if has_default else {}),
    )


def _click_type(option: Option) -> Any:
    # Names complete in a shell and are checked by `Options`, which knows in which space each is
    # allowed.
    if option.choices:
        return OneOf(*(known.names for known in option.choices))
    if get_origin(option.type) is Literal:
        return click.Choice(get_args(option.type))
    # Of a union, as `str | Path | None`, the kind of value that a text on the command line is.
    types = get_args(option.type) or (option.type,)
    if Path in types:
        return click.Path(dir_okay=False)
    if option.is_repeated or str in types:
        return str
    return float if float in types else int


# Shared by several commands: click's options have no state, so one object may be in many.
TARGET: Final = click.Argument(["target"])
TARGET_OPTION: Final = click.Option(
    ["--target"],
    metavar="TARGET",
    help="what was planned, as `automap plan` takes it; a plan file itself never has code imported "
    "or called",
)
ARGUMENTS: Final = click.Option(
    ["--arg", "arguments"],
    multiple=True,
    metavar="NAME=VALUE",
    help="a parameter of the target function",
)
PLAN_FILE: Final = click.Argument(["plan_file"], type=click.Path())
JSON: Final = click.Option(["--json", "as_json"], is_flag=True, help="print JSON")

REPORT: Final = click.Option(
    ["--report"],
    type=WrittenPath(dir_okay=False),
    help="write a page with pictures of the plan here, one file that any browser opens",
)

OPTIONS: Final = {option.name: flag(option) for option in described_options()}
"""Those of `automap.config`, by name."""

WORKLOAD: Final[tuple[click.Parameter, ...]] = (TARGET, flag(TOPOLOGY, Machine()), ARGUMENTS)
"""A step and what it is planned for."""

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


PLAN: Final = Command(
    "plan",
    runs="automap.cli.run.plan",
    summary="Find the fastest plan for TARGET that fits on a topology.",
    details=(
        "TARGET is module:function returning (step, args), or a path to HLO text, an HLO proto, "
        "StableHLO or "
        "an XLA dump folder. The current folder is searched for the module.",
        table("Strategies", choices.STRATEGIES),
        table("Strategies of --space pipeline", choices.PIPELINE_STRATEGIES),
        table("Strategies of --space streams", choices.STREAM_STRATEGIES),
        table("Presets", choices.PRESETS),
    ),
    examples=(
        "automap plan train:small --topology v5e:4x4 -o plan.json --report report.html",
        "automap plan train:small --arg batch=64 --topology 2x8xh100 --mesh data=8,model=2",
        "automap plan step.hlo.pb --topology 8xh100 --preset zero-3",
        "automap plan train:small --topology 4x8xv100 --space pipeline --stages 4",
        "automap plan train:small --topology 8xh100 --refine 120 -o plan.json",
        "automap plan serve:forward --topology 1xv100 --space streams --strategy dos",
    ),
    params=(
        *WORKLOAD,
        *OPTIONS.values(),
        click.Option(
            ["-o", "--output"], type=WrittenPath(dir_okay=False), help="write the plan file here"
        ),
        REPORT,
        click.Option(["--json", "as_json"], is_flag=True, help="print the plan file to stdout"),
        flag(compiler_options.VERIFY),
        flag(compiler_options.VERIFY_TOP),
        flag(compiler_options.REFINE),
        *COMPILING,
    ),
)

COMPARE: Final = Command(
    "compare",
    runs="automap.cli.run.compare",
    summary="Every preset and the search side by side.",
    details=("With --space pipeline or hybrid the best of those spaces too.",),
    examples=(
        "automap compare train:small --topology 8xh100",
        "automap compare train:small --topology 4x8xv100 --space hybrid",
    ),
    # Every preset is a row of its own.
    params=(*WORKLOAD, *(option for name, option in OPTIONS.items() if name != "preset"), JSON),
)

EXPLAIN: Final = Command(
    "explain",
    runs="automap.cli.run.explain",
    summary="Why a plan is as it is; or how two plans differ.",
    details=("WHAT is an input's path, a group, or a second plan file to compare with.",),
    examples=(
        "automap explain plan.json",
        "automap explain plan.json \"[0]['params']['w1']\"",
        "automap explain plan.json other.json",
        "automap explain plan.json --report report.html",
    ),
    params=(PLAN_FILE, click.Argument(["what"], required=False), JSON, REPORT),
)

TOPOLOGIES: Final = Command(
    "topologies",
    runs="automap.cli.run.topologies",
    summary="The catalogue of machines, or one machine in full.",
    details=("With NAME (or a TOML file) one machine, its meshes and the sources of its numbers.",),
    examples=("automap topologies", "automap topologies 2x8xh100", "automap topologies own.toml"),
    params=(click.Argument(["name"], required=False, type=Machine()), JSON),
)

VERIFY: Final = Command(
    "verify",
    runs="automap.cli.run.verify",
    summary="Compile a plan ahead of time, without the hardware, and hold it against its "
    "prediction.",
    details=(
        "Exit status 0 if the compiler confirms that the plan fits and both steps agree, 1 if it "
        "does not fit, 3 if it fits and "
        "the steps do not agree. Of another compiler than the plan's own what it needs is shown, "
        "and is no verdict.",
    ),
    examples=(
        "automap verify plan.json --target train:small",
        "automap verify plan.json --target train:small --arg batch=64 --compiler cpu --no-numerics",
    ),
    params=(
        PLAN_FILE,
        click.Option(
            ["--compiler"],
            type=click.Choice(get_args(choices.CompilerName)),
            help="default: that of the plan's topology",
        ),
        TARGET_OPTION,
        ARGUMENTS,
        *COMPILING,
        click.Option(["--numerics/--no-numerics"], default=True, help="run both steps on the CPU"),
        click.Option(
            ["--numerics-limit"],
            default=choices.DEFAULT_NUMERICS_GIB,
            show_default=True,
            help="GiB that running both steps may take",
        ),
        JSON,
    ),
)

SIMULATE: Final = Command(
    "simulate",
    runs="automap.cli.run.simulate",
    summary="Run a plan's step task by task on one device and its links; no accelerator is "
    "touched.",
    details=(
        "The plan has the seconds of its tasks. For those of another machine or profile, --target "
        "names what was "
        "planned, to be priced again.",
        "Prints the simulated step beside the plan's prediction, how busy the device and its links "
        "are, what is "
        "waited for, and the longest kernels and collectives with the lines of code they come "
        "from.",
        "A trace has a lane for kernels and, where collectives run beside them (GPUs), one for "
        "these; click a "
        "task for its phase, bytes and line of code, press w and s to zoom. Trips of a loop follow "
        "one another; "
        "of very long loops a task stands for several trips.",
        "A pipeline (--space pipeline or hybrid) is run pass by pass on all its stages and the "
        "links between "
        "them, by the seconds in the plan. Prints how long each "
        "stage is busy, how long it waits for other stages and for transfers, and what it sends. A "
        "trace has, for "
        "each stage, a lane for its passes, one for each direction of the link to the next stage, "
        "and one for its "
        "all-reduce and update; click a task for its microbatch and bytes.",
    ),
    examples=(
        "automap simulate plan.json",
        "automap simulate plan.json --trace trace.json",
        "automap simulate plan.json --topology 2x8xh100 --target train:small",
    ),
    params=(
        PLAN_FILE,
        click.Option(
            ["--trace"],
            type=WrittenPath(dir_okay=False),
            help="write the timeline here: open it at https://ui.perfetto.dev (Open trace file) "
            "or chrome://tracing (Load)",
        ),
        click.Option(
            ["--topology"],
            help="another machine with as many devices, as `automap plan` takes it; needs "
            "--target; not for a pipeline",
        ),
        TARGET_OPTION,
        ARGUMENTS,
        click.Option(
            ["--profile"],
            type=click.Path(dir_okay=False),
            help="kernels measured on the topology's device, as `automap calibrate` writes them; "
            "needs --target; not for a pipeline",
        ),
        JSON,
    ),
)

CALIBRATE: Final = Command(
    "calibrate",
    runs="automap.cli.run.calibrate",
    summary="Measure this machine's accelerators, or its processor, for `automap plan`.",
    details=(
        "Writes a hardware file for --topology and a profile for --profile. What is in the profile "
        "already is "
        "not measured again; Ctrl-C keeps what was measured.",
    ),
    examples=(
        "automap calibrate -o hardware.toml",
        "automap calibrate --full --target train:small --profile profile.json -o hardware.toml",
        "automap plan train:small --topology hardware.toml --profile profile.json",
    ),
    params=(
        click.Option(
            ["--device-count"], type=int, help="devices to measure at the same time (default: all)"
        ),
        click.Option(
            ["--quick/--full", "is_quick"],
            default=True,
            help="a few sizes in a minute or two, or many",
        ),
        click.Option(
            ["--target", "targets"],
            multiple=True,
            help="measure also the kernels of module:function's presets",
        ),
        click.Option(
            ["-o", "--output"],
            type=WrittenPath(dir_okay=False),
            help="write the hardware file (TOML) here",
        ),
        click.Option(
            ["--profile", "profile_path"],
            type=WrittenPath(dir_okay=False, path_type=Path),
            help="the profile to write, or go on with (default: in the user's cache folder)",
        ),
        JSON,
    ),
)

COMPLETION: Final = Command(
    "completion",
    runs="automap.cli.run.completion",
    summary="Print what makes a shell complete commands, options and names.",
    details=(
        'In bash and zsh: eval "$(automap completion bash)", in a file that the shell reads at its '
        "start. In fish: automap completion fish | source.",
    ),
    examples=("automap completion bash", "automap completion fish"),
    params=(click.Argument(["shell"], type=click.Choice(["bash", "zsh", "fish"])), JSON),
)

main: Final = Group(
    "automap",
    commands=[PLAN, COMPARE, EXPLAIN, VERIFY, SIMULATE, TOPOLOGIES, CALIBRATE, COMPLETION],
    help="Plan how to run a single-device JAX step on many devices.",
    epilog="\b\nExamples:\n"
    "  $ automap plan train:small --topology v5e:4x4 -o plan.json\n"
    "  $ automap explain plan.json\n"
    "  $ automap verify plan.json --target train:small\n"
    "train.py is yours; its function small returns (step, args), arrays or jax.ShapeDtypeStructs.\n"
    "`automap COMMAND --help` has options and examples of each.\n\n"
    "\b\nExit status:\n" + "\n".join(f"  {status:3d}  {text}" for status, text in MEANING.items()),
    context_settings=CONTEXT_SETTINGS,
    params=[*verbosity_options()],
)
click.version_option(__version__, prog_name="automap")(main)
