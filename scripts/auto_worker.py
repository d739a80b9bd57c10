"""One compilation by XLA's auto-sharder, in an environment of its own: `PYTHON
scripts/auto_worker.py FOLDER`.

Imports nothing of this project, since it runs under the last JAX that can call the pass
(`scripts.auto_peer`).

    request.json + program.bin (a portable StableHLO artifact) -> answer.json + program.pb.gz

With a mesh the pass decides every sharding of the program; without one, the shardings that stand in
the program are kept. Devices are numbered row-major over the slice's coordinates, last dimension
fastest, and meshes lie row-major on them.
"""

import gzip
import io
import json
import os
from pathlib import Path
import sys
import threading
import time


MAX_MESSAGE_CHARACTERS = 2000


def main(folder: Path) -> None:
    """Answer the request of a folder."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    request = json.loads((folder / "request.json").read_text())
    begin, begin_process = time.monotonic(), time.process_time()
    try:
        answer = compiled((folder / "program.bin").read_bytes(), request, folder)
    except Exception as error:  # noqa: BLE001 - compilers raise what they like
        text = f"{type(error).__name__}: {error}"[:MAX_MESSAGE_CHARACTERS]
        full = "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower()
        answer = {
            "outcome": "out-of-memory" if full else "failed",
            "message": text,
            "inputs": [],
            "outputs": [],
            "peak_bytes": None,
        }
    # Both clocks: the pass runs in several threads.
    answer["seconds"] = time.monotonic() - begin
    answer["process_seconds"] = time.process_time() - begin_process
    # Moved into place when it is whole: whoever waits never reads half of it.
    partial = folder / "answer.part"
    partial.write_text(json.dumps(answer))
    partial.rename(folder / "answer.json")


def compiled(artifact: bytes, request: dict, folder: Path) -> dict:
    """Compile for a slice that need not be there, and say what came of it."""
    from jax.experimental import topologies
    from jaxlib import xla_client

    chips = topologies.get_topology_desc(platform="tpu", topology_name=request["slice"]).devices
    # Row-major over coordinates, as automap numbers a slice's devices.
    devices = sorted(chips, key=lambda d: (*d.coords, getattr(d, "core_on_chip", 0)))
    executable = devices[0].client.compile(
        on_all(artifact, len(devices)),
        xla_client.DeviceList(tuple(devices)),
        options_for([d.id for d in devices], request),
    )
    (module,) = executable.hlo_modules()
    proto = module.as_serialized_hlo_module_proto()
    (folder / "program.pb.gz").write_bytes(gzip.compress(proto, mtime=0))
    used = executable.get_compiled_memory_stats()
    outputs = texts([module.spmd_output_sharding])
    return {
        "outcome": "done",
        "message": "",
        "inputs": texts(module.spmd_parameters_shardings),
        "outputs": outputs,
        "peak_bytes": (
            used.argument_size_in_bytes
            + used.output_size_in_bytes
            - used.alias_size_in_bytes
            + used.temp_size_in_bytes
        ),
    }


def on_all(artifact: bytes, device_count: int) -> bytes:
    """The program as bytecode, for one partition on each device."""
    from jax.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with mlir.make_ir_context() as context, ir.Location.unknown():
        module = stablehlo.deserialize_portable_artifact(context, artifact)
        number = ir.IntegerType.get_signless(32)
        count = ir.IntegerAttr.get(number, device_count)
        module.operation.attributes["mhlo.num_partitions"] = count
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
        return buffer.getvalue()


def options_for(ids: list, request: dict) -> object:
    """Options of the compiler: the pass on a mesh, or the shardings as given."""
    from jaxlib import xla_client
    import numpy as np

    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = 1, len(ids)
    options.env_option_overrides = [(k, str(v)) for k, v in request["options"].items()]
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = 1, len(ids)
    build.use_spmd_partitioning = True
    build.device_assignment = xla_client.DeviceAssignment.create(np.array([ids]))
    if request["mesh"] is not None:
        build.use_auto_spmd_partitioning = True
        build.auto_spmd_partitioning_mesh_shape = request["mesh"]
        build.auto_spmd_partitioning_mesh_ids = list(range(len(ids)))
        # Or the inputs and outputs would stay as the program has them, whole.
        build.allow_spmd_sharding_propagation_to_parameters = [True]
        build.allow_spmd_sharding_propagation_to_output = [True]
    return options


def texts(shardings: list) -> list:
    """Shardings as XLA writes them, `{devices=[4,1]<=[4]}`; a tuple's one by one."""
    from jaxlib import xla_client

    flat = [one for s in shardings for one in (s.tuple_shardings or [s])]
    return [str(xla_client.HloSharding.from_proto(one)) for one in flat]


def end_with_parent() -> None:
    """End when the process that started this one is gone, which closes the pipe that it never
    writes to.
    """
    while os.read(sys.stdin.fileno(), 1):
        pass
    # At once, without waiting for the compiler's threads.
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
