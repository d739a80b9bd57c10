"""Checkpoints that cannot be read: one error, whatever is wrong with the file."""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import save_file


pytest.importorskip("torch")

from rl.checkpoint import FORMAT, load  # noqa: E402
from rl.errors import CheckpointError  # noqa: E402


def test_files_that_numpy_or_json_cannot_read_are_refused(tmp_path):
    path = tmp_path / "file"
    deep = "[" * 100_000
    for scalars in (deep, "9" * 5000, "[]", "{"):
        save_file({"a": np.zeros(1)}, path, metadata={"format": FORMAT, "scalars": scalars})
        with pytest.raises(CheckpointError, match="no checkpoint"):
            load(path)
    header = {"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}
    text = json.dumps(header | {"__metadata__": {"format": FORMAT, "scalars": "{}"}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(CheckpointError, match="a is F8_E4M3; allowed: BOOL"):
        load(path)


def test_a_checkpoint_is_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(CheckpointError, match="is no regular file"):
            load(path)
    with pytest.raises(CheckpointError):
        load(tmp_path / ("x" * 5000))
