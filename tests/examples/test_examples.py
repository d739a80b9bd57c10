"""The examples: what a plan computes is what one device computes, a checkpoint goes on with another
number of devices, and adoption is at most three lines.
"""

import difflib
from importlib import import_module, util
import os
from pathlib import Path
import re
import subprocess
import sys

import pytest


ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/how-to/adopt.md"
NEEDED = {
    "jax_optax": ("optax",),
    "flax_nnx": ("flax",),
    "flax_linen": ("flax",),
    "equinox_filter": ("equinox",),
    "keras_fit": ("keras",),
    "keras_jax": ("keras",),
    "torch_torchax": ("torchax", "torch"),
    "mixture_of_experts": ("optax",),
    "pipelined": ("optax",),
}
MOST_LINES = 3
STEPS, MORE = 4, 6
LOSS = re.compile(r"step (\d+)  loss ([0-9.]+)  held out ([0-9.]+)")


def _lines(name: str) -> list[str]:
    """The unified diff from one device to a plan, without its head."""
    folder = ROOT / "examples" / name
    before, after = ((folder / f"{v}.py").read_text().splitlines() for v in ("plain", "planned"))
    return list(difflib.unified_diff(before, after, lineterm="", n=0))[2:]


def _run(module: str, *arguments: str) -> dict[int, tuple[float, float]]:
    """Step -> its loss and that of held-out text, as the log says."""
    # Without this repository's settings for tests, as a user runs it.
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = LOSS.findall(done.stderr)
    return {int(step): (float(loss), float(held_out)) for step, loss, held_out in rows}


def _need(name: str) -> None:
    for module in (*NEEDED[name], "orbax.checkpoint"):
        if util.find_spec(module.partition(".")[0]) is None:
            pytest.skip(f"{module} is not installed")


def test_every_example_is_here():
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/planned.py")}
    assert folders == set(NEEDED)


@pytest.mark.parametrize("name", NEEDED)
def test_adoption_is_at_most_three_lines_and_the_page_shows_them(name):
    lines = [line for line in _lines(name) if not line.startswith("@@")]
    assert 1 <= sum(line.startswith("+") for line in lines) <= MOST_LINES
    assert sum(line.startswith("-") for line in lines) <= MOST_LINES
    assert "\n".join(lines) in PAGE.read_text(), "\n".join(lines)


def test_a_planned_example_computes_what_one_device_computes(monkeypatch, tmp_path):
    """The smallest one, in this process; the others are slow."""
    _need("jax_optax")
    # Both set the levels of loggers, which are the process's.
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)
    arguments = ["--steps", "2", "--every", "5"]
    plain, planned = (
        import_module(f"examples.jax_optax.{v}").main(arguments) for v in ("plain", "planned")
    )
    assert planned == pytest.approx(plain, abs=2e-3)


@pytest.mark.slow
def test_the_lines_of_a_checkpoint_of_nnx_save_and_restore_it(tmp_path):
    _need("flax_nnx")
    import jax
    import orbax.checkpoint as ocp

    nnx = import_module("flax.nnx")
    page = re.search(r"```text\n(_, state = nnx\.split.*?)```", PAGE.read_text(), re.DOTALL)
    assert page is not None
    save, *restore = page[1].splitlines()
    model, optimizer = import_module("examples.flax_nnx.planned").init(0)
    names = {
        **{"jax": jax, "nnx": nnx, "ocp": ocp, "model": model, "optimizer": optimizer},
        **{"checkpointer": ocp.StandardCheckpointer(), "path": tmp_path / "saved"},
    }
    exec(save, names)
    names["checkpointer"].save(names["path"], names["state"])
    names["checkpointer"].wait_until_finished()
    saved = jax.tree.map(jax.numpy.copy, names["state"])
    nnx.update((model, optimizer), jax.tree.map(jax.numpy.zeros_like, saved))
    assert float(jax.numpy.abs(model.embed.embedding[...]).sum()) == 0
    # The page's lines are for a state that is there, as it is before a restore.
    exec("\n".join(restore), names)
    same = jax.tree.map(lambda a, b: bool((a == b).all()), saved, nnx.split((model, optimizer))[1])
    assert all(jax.tree.leaves(same))


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDED)
def test_an_example_trains_and_goes_on_with_another_number_of_devices(name, tmp_path):
    _need(name)
    often = ["--every", "2"]
    plain = _run(f"examples.{name}.plain", "--steps", str(MORE), *often, "--devices", "1")
    kept = ["--checkpoint", str(tmp_path)]
    begun = _run(f"examples.{name}.planned", "--steps", str(STEPS), *often, "--devices", "8", *kept)
    gone_on = _run(
        f"examples.{name}.planned", "--steps", str(MORE), *often, "--devices", "4", *kept
    )
    assert list(begun) == [2, 4] and list(gone_on) == [6]
    for step, (loss, held_out) in {**begun, **gone_on}.items():
        assert (loss, held_out) == pytest.approx(plain[step], abs=0.02), step


@pytest.mark.slow
def test_one_command_trains_in_two_processes(tmp_path):
    _need("jax_optax")
    few = ["--steps", "4", "--every", "2"]
    plain = _run("examples.jax_optax.plain", *few, "--devices", "1")
    both = _run(
        "examples.launch",
        "examples.jax_optax.planned",
        *("--processes", "2", "--devices", "2", "--checkpoint", str(tmp_path), *few),
    )
    assert list(both) == [2, 4]
    for step, losses in both.items():
        assert losses == pytest.approx(plain[step], abs=0.02), step
