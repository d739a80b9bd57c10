"""The processor of ColocRL's machines, a device of its own beside the GPUs.

flops_per_s = cores * base clock * (2 units * 8 lanes * 2 operations of a fused multiply-add)
            = 18 * 2.3e9 * 32
"""

from typing import Final

from automap.topology.model import Device, Source


_CORES: Final = 18
_CYCLES_PER_S: Final = 2.3e9
_F32_FLOPS_PER_CYCLE: Final = 32

HASWELL: Final = Device(
    name="haswell",
    memory_bytes=128 * 10**9,
    hbm_bytes_per_s=68e9,
    flops_per_s=(
        ("f32", _CORES * _CYCLES_PER_S * _F32_FLOPS_PER_CYCLE),
        ("f64", _CORES * _CYCLES_PER_S * _F32_FLOPS_PER_CYCLE / 2),
    ),
    matmul_efficiency=0.7,
    memory_efficiency=0.7,
    launch_seconds=5e-6,
    source=(
        Source(
            field="hbm_bytes_per_s, flops_per_s",
            document="Intel Xeon Processor E5-2699 v3 product specifications (18 cores, 2.3 GHz base)",
            note="68 GB/s with four channels of DDR4-2133; AVX2 with two FMA units at base clock; the"
            " paper says an 18-core Haswell at 2300 (Mirhoseini et al. 2017, section 4)",
        ),
        Source(
            field="memory_bytes, matmul_efficiency, memory_efficiency, launch_seconds",
            document="assumption",
            note="128 GB of host memory; a threaded library's matmuls; an op starts a thread pool",
        ),
    ),
)
