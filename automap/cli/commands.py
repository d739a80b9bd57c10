"""Every command as data: options and help with examples; the module of its name under
`automap.cli.run` runs it.

Results go to stdout, progress and warnings to stderr, and what a target prints too. The exit status
says why a command ended (`automap.exit_status`).

The options of a plan are made from their description in `automap.config`
                                                           -> in: `automap.cli.parameters.flag`
"""

from pathlib import Path
from typing import Final, get_args

import click

from automap import __version__, choices, compiler_options
from automap.cli.group import CONTEXT_SETTINGS, Command, Group
from automap.cli.parameters import (
    ARGUMENTS,
    COMPILING,
    JSON,
    NUMERICS,
    OPTIONS,
    PLAN_FILE,
    REPORT,
    TARGET,
    TARGET_OPTION,
    WORKLOAD,
    Machine,
    OneOf,
    WrittenPath,
    flag,
    output,
    table,
    verbosity_options,
)
from automap.config import TOPOLOGY
from automap.exit_status import MEANING


PLAN: Final = Command(
    "plan",
    summary="Find the fastest plan for TARGET that fits on a topology.",
    details=(
        "TARGET is module:function returning (step, args), or a path to HLO text, an HLO proto, "
        "StableHLO or an XLA dump folder. The current folder is searched for the module.",
        "What --strategy and --preset name is listed below the options and the examples.",
    ),
    examples=(
        "automap plan train:small --topology v5e:4x4 -o plan.json --report report.html",
        "automap plan train:small --arg batch=64 --topology 2x8xh100 --mesh data=8,model=2",
        "automap plan step.hlo.pb --topology 8xh100 --preset zero-3",
        "automap plan train:small --topology 4x8xv100 --space pipeline --stages 4",
        "automap plan train:small --topology 8xh100 --refine 120 -o plan.json",
        "automap plan serve:forward --topology 1xv100 --space streams --strategy dos",
        "automap plan train:small --topology haswell-4xk80 --space placement --apply",
    ),
    params=(
        *WORKLOAD,
        *OPTIONS.values(),
        output("write the plan file here"),
        REPORT,
        click.Option(["--json", "as_json"], is_flag=True, help="print the plan file to stdout"),
        flag(compiler_options.VERIFY),
        flag(compiler_options.VERIFY_TOP),
        flag(compiler_options.REFINE),
        *COMPILING,
        click.Option(
            ["--apply", "applies"],
            is_flag=True,
            help="run the plan for three steps, as `automap apply` does",
        ),
        *NUMERICS,
    ),
    tables=(
        table("Strategies", choices.STRATEGIES),
        table("Strategies of --space pipeline", choices.PIPELINE_STRATEGIES),
        table("Strategies of --space hybrid", choices.HYBRID_STRATEGIES),
        table("Strategies of --space placement", choices.PLACEMENT_STRATEGIES),
        table("Strategies of --space streams", choices.STREAM_STRATEGIES),
        table("Presets", choices.PRESETS),
    ),
)

COMPARE: Final = Command(
    "compare",
    summary="Every preset and the search side by side.",
    details=("With another --space than sharding the best of that space too.",),
    examples=(
        "automap compare train:small --topology 8xh100",
        "automap compare train:small --topology 4x8xv100 --space hybrid",
    ),
    # Every preset is a row of its own.
    params=(*WORKLOAD, *(option for name, option in OPTIONS.items() if name != "preset"), JSON),
)

ADVISE: Final = Command(
    "advise",
    summary="Which machine for TARGET: each machine and batch with the best plan found for it.",
    details=(
        "TARGET is as for `automap plan`; with --batch its function takes the batch as a "
        "parameter. A condition of --fit compares devices, gpus, chips or memory (GB of a device) "
        "with a number, or names devices and machines; without a condition on how many, machines "
        "of at most 256 devices are considered.",
        "Presets are priced on every machine, and a search goes on where it may change an answer. "
        "What is found is kept: the same command goes on from there.",
    ),
    examples=(
        'automap advise train:small --fit "gpus<=64,h100|a100" --batch 64..4096',
        "automap advise train:small --topology 8xh100 --topology v5e:4x4 --batch 64,96,128",
        "automap advise train:small --tokens-per-second 1e6 --price prices.toml -o advice.svg",
    ),
    params=(
        TARGET,
        ARGUMENTS,
        click.Option(
            ["--topology", "topologies"],
            multiple=True,
            type=Machine(),
            help="only this machine, a name or a TOML file; may be given several times",
        ),
        click.Option(["--fit"], default="", help="conditions that machines meet, parted by commas"),
        click.Option(
            ["--batch"],
            default="",
            help="64..4096 (each twice the one before) or 64,96; by default the target's own",
        ),
        click.Option(
            ["--batch-arg"],
            default="batch",
            show_default=True,
            metavar="NAME",
            help="the target's parameter that is the batch",
        ),
        click.Option(["--tokens-per-second"], type=float, default=0.0, help="the least to reach"),
        click.Option(["--samples-per-second"], type=float, default=0.0, help="the least to reach"),
        click.Option(["--price"], type=click.Path(), help="TOML: money for a device and hour"),
        click.Option(
            ["--strategy"],
            type=OneOf(choices.STRATEGIES),
            default="greedy",
            show_default=True,
            help="how to search",
        ),
        click.Option(
            ["--budget"],
            type=float,
            default=choices.DEFAULT_ADVICE_SECONDS,
            show_default=True,
            help="seconds of processor time, and at most twice as many on the clock",
        ),
        OPTIONS["seed"],
        output("write all rows here (.json), or a picture of them (.svg, .png, .pdf)"),
        JSON,
        click.Option(
            ["--cache-dir"], type=WrittenPath(file_okay=False), help="where rows are kept"
        ),
        click.Option(["--cache/--no-cache"], default=True, help="use and keep rows"),
    ),
)

EXPLAIN: Final = Command(
    "explain",
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
    summary="The catalogue of machines, or one machine in full.",
    details=("With NAME (or a TOML file) one machine, its meshes and the sources of its numbers.",),
    examples=("automap topologies", "automap topologies 2x8xh100", "automap topologies own.toml"),
    params=(click.Argument(["name"], required=False, type=Machine()), JSON),
)

VERIFY: Final = Command(
    "verify",
    summary="Compile a plan ahead of time, without the hardware, and hold it against its "
    "prediction.",
    details=(
        "Exit status 0 if the compiler confirms that the plan fits and both steps agree, 1 if it "
        "does not fit, 3 if it fits and the steps do not agree. Of another compiler than the "
        "plan's own what it needs is shown, and is no verdict. A pipeline is compiled stage by "
        "stage, and its numbers are not compared; a placement is refused.",
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
        *NUMERICS,
        JSON,
    ),
)

APPLY: Final = Command(
    "apply",
    summary="Run three steps under a plan on this machine's devices, and compare with one device.",
    details=(
        "Any plan: one program, a pipeline, a placement, streams. On accelerators if this process "
        "has as many as the plan, else on as many CPU devices; arguments that are shapes are "
        "drawn, and a batch stays the same. Prints the seconds of a step and how far results are "
        "from those of one device; exit status 3 if they differ. In a program of your own a plan "
        "is run by plan.jit(step).",
    ),
    examples=(
        "automap apply plan.json --target train:small",
        "automap apply plan.json --target train:small --arg batch=64 --no-numerics",
    ),
    params=(PLAN_FILE, TARGET_OPTION, ARGUMENTS, *NUMERICS, JSON),
)

SIMULATE: Final = Command(
    "simulate",
    summary="Run a plan's step task by task; no accelerator is touched.",
    details=(
        "The plan has the seconds of its tasks. For those of another machine or profile, "
        "--target names what was planned, to be priced again.",
        "One program is run on one device and its links. Prints the simulated step beside the "
        "plan's prediction, how busy the device and its links are, what is waited for, and the "
        "longest kernels and collectives with the lines of code they come from.",
        "A trace has a lane for kernels and, where collectives run beside them (GPUs), one for "
        "these; click a task for its phase, bytes and line of code, press w and s to zoom. Trips "
        "of a loop follow one another; of very long loops a task stands for several trips.",
        "A pipeline (--space pipeline or hybrid) is run pass by pass on all its stages and the "
        "links between them, by the seconds in the plan. Prints how long each stage is busy, how "
        "long it waits for other stages and for transfers, and what it sends. A trace has, for "
        "each stage, a lane for its passes, one for each direction of the link to the next "
        "stage, and one for its all-reduce and update; click a task for its microbatch and bytes.",
        "A placement is run on all its devices and links, by the seconds in the plan.",
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
            "--target; for one program only",
        ),
        TARGET_OPTION,
        ARGUMENTS,
        click.Option(
            ["--profile"],
            type=click.Path(dir_okay=False),
            help="kernels measured on the topology's device, as `automap calibrate` writes them; "
            "needs --target; for one program only",
        ),
        JSON,
    ),
)

CALIBRATE: Final = Command(
    "calibrate",
    summary="Measure this machine's accelerators, or its processor, for `automap plan`.",
    details=(
        "Writes a hardware file for --topology and a profile for --profile. What is in the profile "
        "already is not measured again; Ctrl-C keeps what was measured.",
    ),
    examples=(
        "automap calibrate -o hardware.toml",
        "automap calibrate --full --target train:small --profile profile.json -o hardware.toml",
        "automap calibrate --stages serve:forward --profile profile.json -o hardware.toml",
        "automap plan train:small --topology hardware.toml --profile profile.json",
    ),
    params=(
        click.Option(
            ["--device-count"], type=int, help="devices to measure at the same time (default: all)"
        ),
        click.Option(
            ["--quick/--full", "is_quick"],
            default=True,
            help="a few sizes in a minute or two (default), or many",
        ),
        click.Option(
            ["--target", "targets"],
            multiple=True,
            help="measure also the kernels of module:function's presets",
        ),
        click.Option(
            ["--stages", "stage_targets"],
            multiple=True,
            help="measure also module:function's stages that --space streams chooses from",
        ),
        click.Option(
            ["--budget", "budget_seconds"], default=120.0, help="seconds for each --stages (120)"
        ),
        output("write the hardware file (TOML) here"),
        click.Option(
            ["--profile", "profile_path"],
            type=WrittenPath(dir_okay=False, path_type=Path),
            help="the profile to write, or go on with (default: in the user's cache folder)",
        ),
        JSON,
    ),
)

OTHER_PROGRAM: Final = click.Choice(get_args(choices.OtherProgram))

EXPORT: Final = Command(
    "export",
    summary="Write a plan as a configuration of MaxText or Megatron-LM.",
    details=(
        "MaxText's and Megatron-LM's say degrees of parallelism, which is less than a plan says: "
        "what they leave out is said on stderr.",
    ),
    examples=(
        "automap export plan.json --to maxtext",
        "automap export plan.json --to megatron --json",
    ),
    params=(
        PLAN_FILE,
        click.Option(["--to", "program"], type=OTHER_PROGRAM, required=True),
        JSON,
    ),
)

DEGREES: Final = Command(
    "degrees",
    summary="Read a configuration of MaxText or Megatron-LM as options of `automap plan`.",
    details=(
        "CONFIG is a MaxText configuration (YAML), or a script or YAML file with Megatron-LM's "
        "arguments. What is printed stands behind `automap plan TARGET --topology TOPOLOGY`.",
    ),
    examples=(
        "automap degrees llama.yml --from maxtext --topology v5p:4x4x4",
        "automap degrees pretrain.sh --from megatron --topology 4x8xh100 --json",
    ),
    params=(
        click.Argument(["config"], type=click.Path(dir_okay=False)),
        click.Option(["--from", "program"], type=OTHER_PROGRAM, required=True),
        flag(TOPOLOGY, Machine()),
        JSON,
    ),
)

COMPLETION: Final = Command(
    "completion",
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
    commands=[
        PLAN,
        COMPARE,
        ADVISE,
        EXPLAIN,
        VERIFY,
        APPLY,
        SIMULATE,
        TOPOLOGIES,
        CALIBRATE,
        EXPORT,
        DEGREES,
        COMPLETION,
    ],
    help="Plan how to run a single-device JAX step on many devices.",
    epilog="\b\nExamples:\n"
    "  $ automap plan train:small --topology v5e:4x4 -o plan.json\n"
    "  $ automap explain plan.json\n"
    "  $ automap verify plan.json --target train:small\n"
    "train.py is yours; its function small returns (step, args), arrays or shapes.\n"
    "`automap COMMAND --help` has options and examples of each.\n\n"
    "\b\nExit status:\n" + "\n".join(f"  {status:3d}  {text}" for status, text in MEANING.items()),
    context_settings=CONTEXT_SETTINGS,
    params=[*verbosity_options()],
)
click.version_option(__version__, prog_name="automap")(main)
