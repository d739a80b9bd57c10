"""What the search finds without being told: plans with names of their own, from data parallelism
alone, or from Megatron's plan where a step has one sequence and no batch to split.

    python -m scripts.discoveries -o docs/reports/discoveries.md

Each case is a small workload on which a named plan is much better than data parallelism. The search
knows no preset but data-parallel; its plan is to split what the named one splits, and to be no
slower. Where memory is what asks for a plan, the limit is set just above what the named plan needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
import platform
import time

import click
from flax import nnx
import jax
import numpy as np
from rich.progress import track

from automap.api.plan import Plan
from automap.config import Options
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program.trace import trace_step
from automap.topology import get_topology
from models import alexnet, dlrm, gpt, vgg
from models.experts import Experts, ExpertsConfig
from models.layers import Embedding
from models.training import Batch, Target, cross_entropy, train_step
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.discoveries -o docs/reports/discoveries.md"
BUDGET_SECONDS = 120.0
HEADER = [
    "plan",
    "model",
    "machine",
    "start, ms",
    "named plan, ms",
    "found, ms",
    "search, s",
    "found plan splits",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A workload on which the plan `preset` is good.

    `splits` are dimensions that the plan is to split in computing, as `Plan.decisions` names
    them. The search knows the preset `start` and no other. With `room` memory is `room` times the
    peak of the named plan, and what is stored is to be split too.
    """

    model: str
    target: Callable[[], Target]
    topology: str
    preset: str
    splits: tuple[str, ...]
    start: str = "data-parallel"
    room: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What the search found from its start, beside that and the named plan; search in processor
    seconds.
    """

    plan: Plan
    start_seconds: float
    start_fits: bool
    named_seconds: float
    search_seconds: float

    @property
    def split(self) -> dict[str, tuple[str, ...]]:
        """The axes of each dimension that computing splits."""
        return {d.group: d.axes for d in self.plan.decisions if d.kind == "compute" and d.axes}

    @property
    def stored_share(self) -> float:
        """The part of all parameters that a device keeps."""
        sizes = dict(self.plan.mesh.axes)
        whole = kept = 0.0
        for leaf in self.plan.inputs:
            if leaf.role == "parameter":
                n_elements = float(np.prod(leaf.shape))
                whole += n_elements
                # The parts of a leaf are as many as the product of all axes in its spec.
                kept += n_elements / np.prod([sizes[a] for axes in leaf.spec for a in axes or ()])
        return kept / whole


class Mixture(nnx.Module):
    """An embedding and one mixture of experts between residuals."""

    def __init__(self, config: ExpertsConfig, vocab: int, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.tokens = Embedding(vocab, config.d_model, rngs=rngs)
        self.experts = Experts(config, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits [B, S, vocab] of tokens [B, S]."""
        x = self.tokens(tokens)
        return self.tokens.attend(x + self.experts(x)[0])


def mixture(config: ExpertsConfig, *, batch: int, seq: int, vocab: int) -> Target:
    """A train step of the above."""

    def loss(model: Mixture, data: Batch) -> jax.Array:
        return cross_entropy(model(data["tokens"]), data["targets"]).mean()

    shapes = {name: ((batch, seq), "int32") for name in ("tokens", "targets")}
    return train_step(lambda rngs: Mixture(config, vocab, rngs=rngs), loss, shapes).target


def decoder(*, d_model: int, vocab: int, batch: int, seq: int) -> Target:
    """Two layers of GPT."""
    config = gpt.GptConfig(depth=2, d_model=d_model, heads=16, positions=seq, vocab=vocab)
    return gpt.gpt(config, batch=batch, seq=seq).target


def long_context(*, d_model: int, heads: int, seq: int) -> Target:
    """Two layers of GPT on one sequence, with fewer heads than there are devices."""
    config = gpt.GptConfig(depth=2, d_model=d_model, heads=heads, positions=seq, vocab=1024)
    return gpt.gpt(config, batch=1, seq=seq).target


def tables(*, large: int, small: int, batch: int) -> Target:
    """DLRM with four large tables and four small ones, whose rows are too odd to be split."""
    config = dlrm.DlrmConfig(tables=(large, small) * 4, bottom=(256, 63), top=(512, 256))
    return dlrm.dlrm(config, batch=batch).target


# The odd sizes of the second leave the experts as the only dimension that can be split.
_EVEN = ExpertsConfig(d_model=1024, d_ff=4096, experts=8, room=1.25, dispatch="einsum")
_ODD = ExpertsConfig(d_model=1025, d_ff=2049, experts=16, room=1.25, dispatch="sorted")
_HEADS = "[0]['params']['layers'][*]['attention']['k']['kernel'][1]"
_FEED_FORWARD = "[0]['params']['layers'][*]['mlp']['down']['kernel'][0]"
_EXPERTS = "[0]['params']['experts']['down'][0]"
_TABLES = "[0]['params']['tables'][0]['embedding'][0]"
_CLASSIFIER = "[0]['params']['classifier'][0]['kernel'][1]"
_VOCABULARY = "[0]['params']['tokens']['embedding'][0]"
CASES: Mapping[str, Case] = {
    "ZeRO-3 where memory demands it": Case(
        model="GPT, 2 layers of 2048, batch 128",
        target=partial(decoder, d_model=2048, vocab=8192, batch=128, seq=128),
        topology="v5e:2x2",
        preset="zero-3",
        splits=("batch",),
        room=1.005,
    ),
    "sequence parallelism": Case(
        model="GPT, 2 layers of 2048, 2 sequences of 2048",
        target=partial(decoder, d_model=2048, vocab=1024, batch=2, seq=2048),
        topology="v5e:2x2",
        preset="sequence-parallel",
        splits=("[1]['targets'][1]", _HEADS, _FEED_FORWARD),
    ),
    "sequence parallel attention, gathered keys and values": Case(
        model="GPT, 2 layers of 512 with 2 heads, 1 sequence of 8192",
        target=partial(long_context, d_model=512, heads=2, seq=8192),
        topology="v5e:2x4",
        preset="sequence-parallel",
        splits=("[1]['targets'][1]", _HEADS),
        start="megatron",
    ),
    "sequence parallel attention, heads for positions": Case(
        model="GPT, 2 layers of 2048 with 16 heads, 1 sequence of 16,384",
        target=partial(long_context, d_model=2048, heads=16, seq=16_384),
        topology="v5e:4x4",
        preset="sequence-parallel",
        splits=("[1]['targets'][1]", _HEADS),
        start="megatron",
    ),
    "expert parallelism, einsum dispatch": Case(
        model="8 experts 1024 x 4096",
        target=partial(mixture, _EVEN, batch=16, seq=512, vocab=1024),
        topology="v5e:2x2",
        preset="expert-parallel",
        splits=(_EXPERTS, "batch"),
    ),
    "expert parallelism, sorted dispatch": Case(
        model="16 experts 1025 x 2049",
        target=partial(mixture, _ODD, batch=8, seq=16, vocab=1024),
        topology="v5e:2x2",
        preset="megatron",
        splits=(_EXPERTS,),
    ),
    "row-sharded embedding tables": Case(
        model="DLRM, 4 tables of 1,000,000 and 4 of 1,024 rows of 63",
        target=partial(tables, large=1_000_000, small=1024, batch=8192),
        topology="v5e:2x2",
        preset="megatron",
        splits=(_TABLES, "batch"),
    ),
    "one weird trick, AlexNet": Case(
        model="AlexNet, batch 256",
        target=alexnet.alexnet,
        topology="v5e:2x2",
        preset="one-weird-trick",
        splits=(_CLASSIFIER, "batch"),
    ),
    "one weird trick, VGG-19": Case(
        model="VGG-19, batch 256",
        target=partial(vgg.vgg_19, batch=256),
        topology="v5e:2x2",
        preset="one-weird-trick",
        splits=(_CLASSIFIER, "batch"),
    ),
    "vocabulary-parallel softmax": Case(
        model="GPT, 2 layers of 512, 262,144 words",
        target=partial(decoder, d_model=512, vocab=262_144, batch=64, seq=64),
        topology="v5e:2x2",
        preset="megatron",
        splits=(_VOCABULARY,),
    ),
}


def discovered(case: Case) -> Discovery:
    """The search of one case."""
    topology = get_topology(case.topology)
    step, args = case.target()
    workload = trace_step(step, args, platform=topology.platform)
    # All presets, each on its best mesh: the plans by name that the search is held against.
    known = find(workload, topology, Options(preset=case.start)).context.best_per_preset
    named, start = known[case.preset].estimate, known[case.start].estimate
    # Just above the named plan's own need, so that little else fits.
    limit = None if case.room is None else case.room * named.peak_bytes
    options = Options(budget_seconds=BUDGET_SECONDS, memory_limit_bytes=limit)
    begin = time.process_time()
    outcome = find(workload, topology, options, presets=(case.start,))
    return Discovery(
        plan=build_plan(outcome),
        start_seconds=start.step_seconds,
        start_fits=limit is None or start.peak_bytes <= limit,
        named_seconds=named.step_seconds,
        search_seconds=time.process_time() - begin,
    )


def row(name: str, case: Case, discovery: Discovery) -> list[str]:
    """A row of the table."""
    whole = {axis for axis, size in discovery.plan.mesh.axes if size > 1}
    split = [
        f"`{group}`" + ("" if set(axes) == whole else f" over {' x '.join(axes)}")
        for group, axes in discovery.split.items()
    ]
    if case.room is not None:
        split.append(f"{1 - discovery.stored_share:.0%} of the parameters are on other devices")
    start = f"{discovery.start_seconds * 1e3:.3f}"
    start += f" ({case.start}{'' if discovery.start_fits else ', does not fit'})"
    return [
        name,
        case.model,
        case.topology,
        start,
        f"{discovery.named_seconds * 1e3:.3f} ({case.preset})",
        f"{discovery.plan.predicted.step_seconds * 1e3:.3f}",
        f"{discovery.search_seconds:.1f}",
        "; ".join(split),
    ]


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--case", "names", multiple=True, type=click.Choice(list(CASES)))
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(names: Sequence[str], output: Path | None) -> None:
    """Print the table, or put it in OUTPUT."""
    chosen = {name: CASES[name] for name in names or CASES}
    rows = [row(name, case, discovered(case)) for name, case in track(chosen.items(), "searching")]
    table = made_by(COMMAND, f"jax {jax.__version__}, {platform.machine()}") + markdown(
        HEADER, rows
    )
    if output is None:
        click.echo(table)
    else:
        replace_table(output, table)


if __name__ == "__main__":
    main()
