"""Predicted training steps of convolution networks beside images a second that were published.

    python -m scripts.compare_images -o docs/reports/flexflow.md

The rows (`scripts/data/published_images.csv`) are those of one GPU with synthetic data of
TensorFlow's benchmarks of May 2017 (tensorflow/tensorflow, docs_src/performance/benchmarks.md at
5984ffef): float32, SGD, cuDNN 5.1, a K80 of Google's cloud and a P100 of a DGX-1. The networks are
the zoo's, with the sizes that those programs had. TensorFlow wrote what XLA keeps within a kernel
(normalization, activations), so its steps are longer than those that are predicted here by what
that takes; the zoo trains with AdamW. Nothing is fitted on these rows.
"""

from collections.abc import Callable, Iterator, Mapping
import csv
from dataclasses import dataclass, replace
from pathlib import Path
import statistics
from typing import Final

import click
from rich.progress import track

from automap.topology import get_topology
from models.alexnet import ALEXNET, Convolution, alexnet_step
from models.inception import inception_v3
from models.resnet import RESNET_50, resnet
from models.training import Target
from models.vgg import VGG_19, vgg
from scripts.compare_measured import predicted_alone
from scripts.tables import made_by, markdown, replace_table


COMMAND: Final = "python -m scripts.compare_images -o {output}"
ROWS: Final = Path(__file__).parent / "data" / "published_images.csv"
_HEADER: Final = [
    "GPU",
    "network",
    "batch",
    "published images/s",
    "predicted images/s",
    "predicted over published seconds",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A row of the file: a network of `NETWORKS` on one GPU of the catalogue."""

    gpu: str
    network: str
    batch: int
    images_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published row with the seconds of its step as they are predicted."""

    published: Published
    predicted_seconds: float

    @property
    def ratio(self) -> float:
        """Predicted over published seconds."""
        return self.predicted_seconds * self.published.images_per_s / self.published.batch

    def cells(self) -> list[str]:
        """The row of the table."""
        one = self.published
        predicted = one.batch / self.predicted_seconds
        numbers = [f"{one.images_per_s:g}", f"{predicted:.4g}", f"{self.ratio:.2f}"]
        return [one.gpu.upper(), one.network, str(one.batch), *numbers]


def _alexnet(batch: int) -> Target:
    # The fourth convolution is wider there than in the paper that the zoo's is of.
    convolutions = list(ALEXNET.convolutions)
    convolutions[3] = Convolution(channels=384, kernel=3, padding=1)
    return alexnet_step(replace(ALEXNET, convolutions=tuple(convolutions)), batch=batch).target


NETWORKS: Final[Mapping[str, Callable[[int], Target]]] = {
    "AlexNet": _alexnet,
    "Inception-v3": inception_v3,
    "ResNet-50": lambda batch: resnet(RESNET_50, batch=batch).target,
    "ResNet-152": lambda batch: (
        resnet(replace(RESNET_50, blocks=(3, 8, 36, 3)), batch=batch).target
    ),
    "VGG-16": lambda batch: (
        vgg(
            replace(VGG_19, blocks=((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3)),
            batch=batch,
        ).target
    ),
}


def published_rows(path: Path = ROWS) -> list[Published]:
    """All rows of the file."""
    with path.open(newline="") as file:
        return [
            Published(
                gpu=row["gpu"],
                network=row["network"],
                batch=int(row["batch"]),
                images_per_s=float(row["images_per_s"]),
            )
            for row in csv.DictReader(file)
        ]


def rows(published: list[Published]) -> Iterator[Row]:
    """The rows with predictions, of the catalogue without a calibration."""
    for one in track(published, "predicting"):
        target = NETWORKS[one.network](one.batch)
        estimate = predicted_alone(*target, get_topology(f"1x{one.gpu}"))
        yield Row(published=one, predicted_seconds=estimate.step_seconds)


def report(found: list[Row]) -> str:
    """Median and range of the ratios by GPU, and all rows."""
    by_gpu = {gpu: [r.ratio for r in found if r.published.gpu == gpu] for gpu in ("k80", "p100")}
    summary = [
        [gpu.upper(), f"{statistics.median(r):.2f}", f"{min(r):.2f} to {max(r):.2f}"]
        for gpu, r in by_gpu.items()
        if r
    ]
    header = ["GPU", "median of predicted over published seconds", "all"]
    return markdown(header, summary) + "\n" + markdown(_HEADER, [row.cells() for row in found])


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(output: Path | None) -> None:
    """Make the table."""
    table = report(list(rows(published_rows())))
    text = made_by(COMMAND.format(output=output or "FILE"), "no GPU is needed") + table
    if output is None:
        click.echo(text)
    else:
        replace_table(output, text, "images")


if __name__ == "__main__":
    main()
