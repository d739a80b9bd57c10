"""The pictures of FlexFlow's page: strategies, as its figures 13 and 14, quality by time, as its
figure 12, and training by time, as its figure 9.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final


PICTURED: Final = ("inception-v3", "nmt")
_COLORS: Final = ("#4c78a8", "#f58518", "#54a24b", "#b279a2")
_COLUMNS: Final = 12
_LABELS: Final = {
    "rebuilt": "full: the task graph built and simulated",
    "delta": "Algorithm 2",
    "within": "changes written, simulated within a limit",
}


def draw_strategy(layers: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Each layer as a square: its parts along the batch from top to bottom, along other dimensions
    from left to right, each in the colour of its GPU.
    """
    n_rows = -(-len(layers) // _COLUMNS)

    def fill(figure: Any) -> None:
        patches: Any = import_module("matplotlib.patches")
        axes = figure.subplots()
        axes.set(xlim=(-0.1, _COLUMNS), ylim=(1.4 * n_rows, -0.5), aspect="equal")
        axes.axis("off")
        for number, layer in enumerate(layers):
            x, y = number % _COLUMNS, 1.4 * (number // _COLUMNS)
            rows = layer["devices"]
            for i, row in enumerate(rows):
                for j, device in enumerate(row):
                    width, height = 0.8 / len(row), 0.8 / len(rows)
                    place = (x + j * width, y + i * height)
                    color = _COLORS[device % len(_COLORS)]
                    axes.add_patch(
                        patches.Rectangle(place, width, height, facecolor=color, edgecolor="w")
                    )
            axes.text(x, y - 0.06, layer["name"][:16], fontsize=5)
        keys = [patches.Patch(color=color, label=f"GPU {n}") for n, color in enumerate(_COLORS)]
        figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), fontsize=7)

    _save(fill, (9.0, 1.1 * n_rows + 0.6), path)


def draw_quality(
    better: Mapping[str, Sequence[Sequence[float]]], seconds: Mapping[str, float], path: Path
) -> None:
    """The best step so far over the seconds of the search, by each simulation."""

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        for name, points in better.items():
            x = [at for at, _ in points] + [seconds[name]]
            y = [step * 1e3 for _, step in points] + [points[-1][1] * 1e3]
            axes.step(x, y, where="post", label=_LABELS[name])
        axes.set(xlabel="processor seconds", ylabel="best step, ms", xscale="symlog")
        axes.legend()

    _save(fill, (7.0, 3.0), path)


def draw_training(
    runs: Mapping[str, tuple[Sequence[float], Mapping[str, float]]], path: Path
) -> None:
    """For each model its losses over the seconds that its steps take under each plan."""

    def fill(figure: Any) -> None:
        for axes, (model, (losses, plans)) in zip(
            figure.subplots(1, len(runs), squeeze=False)[0], runs.items(), strict=True
        ):
            for name, step in plans.items():
                axes.plot([n * step for n in range(1, len(losses) + 1)], losses, label=name)
            axes.set(title=model, xlabel="simulated seconds", ylabel="loss")
            axes.legend()

    _save(fill, (4.0 * len(runs), 3.0), path)


def _save(fill: Callable[[Any], None], size: tuple[float, float], path: Path) -> None:
    matplotlib: Any = import_module("matplotlib")
    figures: Any = import_module("matplotlib.figure")
    # The same bytes in every run, and letters that stay letters.
    with matplotlib.rc_context({"svg.hashsalt": "automap", "svg.fonttype": "none"}):
        figure = figures.Figure(figsize=size, layout="constrained")
        fill(figure)
        figure.savefig(path, metadata={"Date": None})
