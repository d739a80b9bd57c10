"""Predicted training steps of convolution networks beside images a second that were published.

    python -m scripts.compare_images -o docs/reports/flexflow.md

The rows (`scripts/data/published_images.csv`) are those of one GPU with synthetic data, float32 and
SGD. Of a K80 of Google's cloud and a P100 of a DGX-1 they are TensorFlow's own of May 2017, with
cuDNN 5.1 (tensorflow/tensorflow, docs_src/performance/benchmarks.md at 5984ffef). Of a Titan Xp, an
RTX 2080 Ti and a V100 with 32 GB they are Lambda's of March 2019, with TensorFlow 1.12 and cuDNN
7.4.1 (lambdalabs.com/blog/2080-ti-deep-learning-benchmarks): three networks of that page, which has
no batch sizes, so those of TensorFlow's rows are taken. The networks are the zoo's, with the sizes
that those programs had. TensorFlow wrote what XLA keeps within a kernel (normalization,
activations); the zoo trains with AdamW.

`vector_share` and `vector_narrow_sum` of `automap/backends/xla_gpu/defaults.toml` are chosen on the
rows of the K80, with the rates of its base clocks (`BASE_CLOCKS`), as its boost clocks, which the
catalogue has, last no longer than its power; all other rows judge them.
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
FITTED_ON: Final = "k80"
# 5.6 TFLOPS of a board's two GPUs (BD-07317-001).
BASE_CLOCKS: Final[Mapping[str, float]] = {"k80": 2.8e12}
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
        target, topology = NETWORKS[one.network](one.batch), get_topology(f"1x{one.gpu}")
        if one.gpu in BASE_CLOCKS:
            rates = (("f32", BASE_CLOCKS[one.gpu]),)
            topology = replace(topology, device=replace(topology.device, flops_per_s=rates))
        estimate = predicted_alone(*target, topology)
        yield Row(published=one, predicted_seconds=estimate.step_seconds)


def report(found: list[Row]) -> str:
    """Median and range of the ratios by GPU, and all rows."""
    gpus = dict.fromkeys(row.published.gpu for row in found)
    by_gpu = {gpu: [row.ratio for row in found if row.published.gpu == gpu] for gpu in gpus}
    summary = [
        [
            gpu.upper(),
            "fit" if gpu == FITTED_ON else "judge",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
        ]
        for gpu, ratios in by_gpu.items()
    ]
    header = ["GPU", "used to", "median of predicted over published seconds", "all"]
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
