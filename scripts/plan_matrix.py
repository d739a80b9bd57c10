"""Whether a change of the code changes plans: records the plan files of a matrix, and compares two
records.

    python -m scripts.plan_matrix record before/        # in the old checkout
    python -m scripts.plan_matrix record after/         # in the new one
    python -m scripts.plan_matrix compare before/ after/

A cell is a model of the zoo on a machine under a preset, or under the search. Its plan is made
through `automap.plan` alone, so the script runs in any checkout. A record holds one plan file for
each cell, or the error that was raised in its place, and `seconds.json` with the processor seconds
of each cell. What is compared is the JSON, entry by entry: numbers must be equal to the last digit.
Of the search its seconds are left out. Plans are the same, and planning is not slower, if the
command exits with 0.
"""

from collections.abc import Iterator
import importlib
import json
import math
from pathlib import Path
import time
from typing import Any, Final

import click
import jax
from rich.progress import track

import automap


TOPOLOGIES: Final = ("v5e:2x4", "v5p:2x2x4", "2x8xh100", "4x8xv100")
PRESETS: Final = (
    "data-parallel",
    "zero-1",
    "zero-3",
    "megatron",
    "sequence-parallel",
    "expert-parallel",
    "one-weird-trick",
)
_SEARCH: Final = "search"
_SCANNED: Final = {"layers": "scanned"}
_STEPS: Final = {"steps": "scanned"}
_HALF: Final = {"dtype": "bfloat16"}
MODELS: Final[dict[str, dict[str, Any]]] = {
    "models.alexnet:alexnet": {"batch": 1024},
    "models.bert:bert_48": {"batch": 16, **_SCANNED},
    "models.dlrm:dlrm_kaggle": {"batch": 8192},
    "models.gpt:gpt_124m": {"batch": 32, **_SCANNED, **_HALF},
    "models.gpt:gpt_tiny": {},
    "models.inception:inception_v3": {"batch": 128},
    "models.lenet:lenet": {"batch": 128},
    "models.llama:llama_1b": {"batch": 16, "seq": 1024, **_SCANNED, **_HALF},
    "models.mamba:mamba_tiny": {},
    "models.mlp:mlp": {"batch": 4096},
    "models.moe:moe_8x": {"batch": 16, **_SCANNED, **_HALF},
    "models.nmt:nmt": {"batch": 256, **_STEPS},
    "models.resnet:resnet_50": {"batch": 256},
    "models.rnnlm:rnnlm": {"batch": 256, **_STEPS},
    "models.rnntc:rnntc": {"batch": 256, **_STEPS},
    "models.t5:t5_base": {"batch": 64, **_SCANNED},
    "models.unet:unet_cifar": {"batch": 128},
    "models.vgg:vgg_19": {"batch": 256},
    "models.vit:vit_b16": {"batch": 256, **_SCANNED},
}
# Long enough that no search ends by its budget, which would make a plan depend on the machine's
# speed.
_BUDGET_SECONDS: Final = 600.0
# Planning counts as slower from this ratio of the processor seconds of all cells on.
_SLOWER: Final = 1.1
# Differences shown for one cell.
_SHOWN: Final = 6


@click.group(help=__doc__)
def main() -> None:
    """Record or compare."""


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--model", "models", multiple=True, type=click.Choice(list(MODELS)), help="default: all"
)
@click.option("--topology", "topologies", multiple=True, default=TOPOLOGIES, show_default=True)
def record(folder: Path, models: tuple[str, ...], topologies: tuple[str, ...]) -> None:
    """Make the plan files of the matrix in FOLDER; those that are there already are kept."""
    # Else JAX looks for an accelerator on this machine.
    jax.config.update("jax_platforms", "cpu")
    folder.mkdir(parents=True, exist_ok=True)
    clock = folder / "seconds.json"
    seconds = json.loads(clock.read_text()) if clock.exists() else {}
    for target in track(models or MODELS, "planning"):
        step, args = _load(target)
        for topology in topologies:
            for name in (*PRESETS, _SEARCH):
                file = folder / _file_name(target, topology, name)
                if file.exists():
                    continue
                began = time.process_time()
                text = _planned(step, args, topology, name)
                seconds[file.name] = time.process_time() - began
                file.write_text(text)
                clock.write_text(json.dumps(seconds, indent=1))


def _load(target: str) -> Any:
    module, _, function = target.partition(":")
    return getattr(importlib.import_module(module), function)(**MODELS[target])


def _file_name(target: str, topology: str, name: str) -> str:
    model = target.partition(":")[2]
    return f"{model}-{topology.replace(':', '-')}-{name}.json"


def _planned(step: Any, args: Any, topology: str, name: str) -> str:
    """The text of the plan file, or of the message of the error that is raised instead."""
    preset = None if name == _SEARCH else name
    try:
        plan = automap.plan(step, args, topology=topology, preset=preset, budget=_BUDGET_SECONDS)
    except automap.AutomapError as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})
    return json.dumps(plan.to_json(), indent=1)


@main.command()
@click.argument("before", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("after", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--ignore", multiple=True, help="a field that was changed on purpose, as search.note")
@click.pass_context
def compare(context: click.Context, before: Path, after: Path, ignore: tuple[str, ...]) -> None:
    """Print the cells whose plans differ, and the seconds of both records."""
    names = [{f.name for f in folder.glob("*-*.json")} for folder in (before, after)]
    for name in sorted(names[0] ^ names[1]):
        click.echo(f"{name}: only in {before if name in names[0] else after}")
    common = sorted(names[0] & names[1])
    left_out = {"search.seconds", *ignore}
    changed = 0
    for name in common:
        old, new = (json.loads((folder / name).read_text()) for folder in (before, after))
        lines = [line for path, line in _differences("", old, new) if path not in left_out]
        if lines:
            changed += 1
            rest = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
            click.echo("\n  ".join([name, *lines[:_SHOWN], *rest]))
    old_seconds, new_seconds = (_seconds(folder, common) for folder in (before, after))
    click.echo(
        f"{len(common)} cells compared, {changed} differ; "
        f"planned in {old_seconds:.0f} and {new_seconds:.0f} processor seconds"
    )
    is_slower = new_seconds > _SLOWER * old_seconds
    context.exit(1 if changed or is_slower or names[0] != names[1] else 0)


def _seconds(folder: Path, names: list[str]) -> float:
    seconds = json.loads((folder / "seconds.json").read_text())
    return math.fsum(seconds[name] for name in names)


def _differences(path: str, old: Any, new: Any) -> Iterator[tuple[str, str]]:
    """(path of the field without indices, what differs there) of two JSON values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            inner = f"{path}.{key}" if path else key
            if key in old and key in new:
                yield from _differences(inner, old[key], new[key])
            else:
                yield inner, f"{inner}: only {'before' if key in old else 'after'}"
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for before, after in zip(old, new, strict=True):
            yield from _differences(path, before, after)
    elif old != new:
        yield path, f"{path}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


if __name__ == "__main__":
    main()
