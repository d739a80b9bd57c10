"""Training the pipeline agent: whatever the number of processes, and stopped or not, the same seed
makes the same weights.
"""

from click.testing import CliRunner
import numpy as np
import pytest
from safetensors.numpy import load_file


pytest.importorskip("torch")
from scripts import train_pipeline_agent  # noqa: E402


pytestmark = pytest.mark.slow


def trained(folder, rounds, *more):
    output = folder / "weights.safetensors"
    sizes = ["--rounds", str(rounds), "--problems", "3", "--updates", "2", "--width", "8"]
    arguments = [str(folder), *sizes, "-o", str(output), *more]
    result = CliRunner().invoke(train_pipeline_agent.main, arguments)
    assert result.exit_code == 0, result.output
    return load_file(output)


def test_the_same_seed_makes_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(train_pipeline_agent, "JUDGED", 3)
    monkeypatch.setattr(train_pipeline_agent, "_DECISIONS_OF_A_ROW", 20)
    alone = trained(tmp_path / "alone", 2, "--decisions", "40")
    # Two processes; and ended before reinforcement, from which a second command goes on.
    trained(tmp_path / "stopped", 2, "--processes", "2")
    again = trained(tmp_path / "stopped", 2, "--processes", "2", "--decisions", "40")
    assert set(alone) == set(again)
    for name, array in alone.items():
        assert np.array_equal(array, again[name]), name
