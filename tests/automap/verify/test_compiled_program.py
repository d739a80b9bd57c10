"""Where the program of a compiled step comes from, with runtimes that give it or do not."""

from types import SimpleNamespace

import jax
import pytest

from automap.jax_compat import compiled_proto


def _raising(*_: object) -> bytes:
    raise jax.errors.JaxRuntimeError("async-update instruction should have 1 operands but sees 3")


def _compiled(**functions: object) -> SimpleNamespace:
    return SimpleNamespace(runtime_executable=lambda: SimpleNamespace(**functions))


def test_the_program_of_a_step_compiled_here_is_its_own():
    compiled = jax.jit(lambda x: x + 1.0).lower(1.0).compile()
    (module,) = compiled.runtime_executable().hlo_modules()
    assert compiled_proto(compiled) == module.as_serialized_hlo_module_proto()


def test_what_the_runtime_cannot_load_is_looked_for_in_what_it_writes(monkeypatch):
    monkeypatch.setattr("automap.jax_compat.optimized_module", lambda data: data + b" read")
    compiled = _compiled(hlo_modules=_raising, serialize=lambda: b"written")
    assert compiled_proto(compiled) == b"written read"


@pytest.mark.parametrize(
    "functions", [{}, {"hlo_modules": _raising}, {"hlo_modules": _raising, "serialize": _raising}]
)
def test_a_runtime_that_does_neither_gives_nothing(functions):
    assert compiled_proto(_compiled(**functions)) is None
