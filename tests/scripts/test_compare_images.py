"""Published images a second, and what is said of them."""

import jax
import pytest

from automap.topology import get_topology
from scripts.compare_images import NETWORKS, Published, Row, published_rows, report


def _row(gpu, seconds):
    published = Published(gpu=gpu, network="AlexNet", batch=64, images_per_s=128.0)
    return Row(published=published, predicted_seconds=seconds)


def test_all_rows_are_of_known_networks_and_gpus():
    rows = published_rows()
    assert {row.network for row in rows} == set(NETWORKS)
    gpus = {"k80", "p100", "titan-xp", "2080ti", "v100-32gb"}
    assert {get_topology(f"1x{row.gpu}").device.name for row in rows} == gpus
    assert len({(row.gpu, row.network, row.batch) for row in rows}) == len(rows)


def test_a_step_is_held_against_the_seconds_of_its_batch():
    # 64 images at 128 a second take half a second.
    assert _row("k80", 1.0).ratio == pytest.approx(2.0)
    text = report([_row("k80", 1.0), _row("k80", 0.25), _row("k80", 0.5)])
    assert "| K80 | fit | 1.00 | 0.50 to 2.00 |" in text
    assert "P100" not in text


def test_the_fourth_convolution_of_alexnet_is_wider_there():
    _, (state, _) = NETWORKS["AlexNet"](2)
    features = {leaf.shape[-1] for leaf in jax.tree.leaves(state) if leaf.shape[:2] == (3, 3)}
    inputs = {leaf.shape[-2] for leaf in jax.tree.leaves(state) if leaf.shape[:2] == (3, 3)}
    # Three of 3 x 3: 192 to 384, to 384, to 256.
    assert (features, inputs) == ({384, 256}, {192, 384})
