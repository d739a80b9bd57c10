"""The topology "local": what is said when JAX starts without a device."""

import logging

import jax

from automap.topology.local import local_topology


def test_why_jax_leaves_out_a_device_is_one_line(monkeypatch, caplog, capsys):
    """JAX logs the traceback of a CUDA plugin that finds no GPU."""

    def devices():
        try:
            raise RuntimeError("Unable to load CUDA. Is it installed?")
        except RuntimeError:
            logging.getLogger("jax.xla_bridge").exception("Exception when calling %s", "it")
        return jax.local_devices()

    before = list(logging.getLogger("jax").handlers)
    monkeypatch.setattr(jax, "devices", devices)
    with caplog.at_level(logging.WARNING):
        assert local_topology().name == "cpu:8"
    (said,) = [record for record in caplog.records if record.name == "automap"]
    expected = "JAX: Exception when calling it: Unable to load CUDA. Is it installed?"
    assert said.getMessage() == expected and not said.exc_info
    assert logging.getLogger("jax").handlers == before
    assert "Traceback" not in capsys.readouterr().err
