"""The devices of the catalogue: peaks from vendors' documents, the rest stated assumptions.

Efficiencies and launch times are no datasheet numbers. They stand for a large op of a training
step and are marked as assumptions; `automap calibrate` writes measured ones for a user's machine.
"""

from typing import Final

from automap.topology.gpu_devices import GPUS, PROCESSOR_CORES
from automap.topology.model import Device, Source


# Vendors count memory in either unit: which one a page means shows in its number of bytes.
_GIB: Final = 2**30
_TPU_DOCS: Final = "https://cloud.google.com/tpu/docs"

_ASSUMED_TPU: Final = Source(
    field="matmul_efficiency",
    document="assumption",
    note="large fused ops",
)
_ASSUMED_LAUNCH: Final = Source(
    field="launch_seconds",
    document="assumption",
    note="XLA runs one program, so an op starts in about a microsecond",
)
_ASSUMED_PRODUCTS: Final = 0.8
_ESTIMATED_PRODUCTS: Final = Source(
    field="matmul_efficiency",
    document="estimated_cycles in programs of libtpu 0.0.51 for v5e and v5p, compiled 2026-11",
    note="products of 2,048 terms and more, beside what their kernels move; v4 as these, while of"
    " v6e and tpu7x the cycles are not known to be seconds, so that 0.8 is assumed",
)
_ESTIMATED_TPU: Final = Source(
    field="memory_efficiency, class_efficiency",
    document="estimated_cycles in programs of libtpu 0.0.51 for v5e, compiled 2026-11",
    note="fused float32 ops and reductions at 0.8 of the memory's peak, copies that are not fused"
    " and zeros to scatter into at 0.33, copies into another order of dimensions at 0.57",
)
_ESTIMATED_V5P: Final = Source(
    field="memory_efficiency, class_efficiency",
    document="estimated_cycles in 54 programs of libtpu 0.0.51 for v5p:2x2x4, compiled 2026-11",
    note="fused float32 ops as for v5e, copies that are not fused and zeros at 0.23, copies into"
    " another order of dimensions at 0.36",
)
_TILE: Final = Source(
    field="matmul_tile",
    document="https://docs.jax.dev/en/latest/pallas/tpu/index.html",
    note="the side of the matrix unit: mxu_column_size of jax.experimental.pallas.tpu.get_tpu_info",
)
_VMEM: Final = Source(
    field="on_chip_bytes",
    document="https://docs.jax.dev/en/latest/pallas/tpu/index.html",
    note="vmem_capacity_bytes of jax.experimental.pallas.tpu.get_tpu_info, times the cores of a"
    " device",
)
_KEPT_V5P: Final = Source(
    field="on_chip_bytes",
    document="memory spaces of tensors in 54 programs of libtpu 0.0.51 for v5p:2x2x4, compiled"
    " 2026-11",
    note="each core has 64 MiB, but what is made keeps its place there 1 time in 3 from 1 to 2 MiB,"
    " 1 in 4 from 8, 1 in 30 from 16: as for v5e with an eighth of its memory",
)
_MEGACORE: Final = Source(
    field="cores",
    document="https://docs.jax.dev/en/latest/_autosummary/"
    "jax.experimental.pallas.tpu.ChipVersion.html",
    note="v4 and v5p have two TensorCores a chip and Megacore: both are one JAX device",
)
_PCIE: Final = Source(
    field="host_bytes_per_s",
    document="https://jax-ml.github.io/scaling-book/tpus",
    note="PCIe: about 15 GB/s per chip, 32 GB/s of v6e; tpu7x, which is not named, as v6e, half of"
    " a chip's for each die",
)
_F32_IS_BF16: Final = Source(
    field="flops_per_s.f32",
    document="https://docs.jax.dev/en/latest/_autosummary/jax.default_matmul_precision.html",
    note="the default precision of an f32 dot on TPU is one bf16 pass",
)


_USABLE_TPU: Final = Source(
    field="memory_bytes",
    document="libtpu 0.0.51, what it says of a program that is too large",
    note="'exceeds available HBM (15.75G)' for v5e, and so on: of v4's chip twice a core's 15.25G",
)


def _tpu(
    name: str,
    *,
    usable_gib: float,
    hbm_gb_per_s: float,
    vmem_mib: int,
    vmem: Source = _VMEM,
    copies: tuple[float, float] = (0.33, 0.57),
    estimated: Source = _ESTIMATED_TPU,
    tile: int = 128,
    products: float = _ASSUMED_PRODUCTS,
    cores: int = 1,
    host_gb_per_s: float = 15,
    tflops: dict[str, float],
    note: str,
    page: str = "",
) -> Device:
    """A TPU; `usable_gib` is what its compiler lets a program have.

    `copies` are the efficiencies of copies that are not fused, and of those into another order of
    dimensions, `products` that of products.
    """
    # No TPU multiplies float32 at once: at the default precision it rounds to bfloat16 first.
    peaks = {"f32": tflops["bf16"]} | tflops
    return Device(
        name=name,
        memory_bytes=round(usable_gib * _GIB),
        hbm_bytes_per_s=hbm_gb_per_s * 1e9,
        flops_per_s=tuple((dtype, value * 1e12) for dtype, value in peaks.items()),
        matmul_efficiency=products,
        memory_efficiency=0.8,
        launch_seconds=1e-6,
        on_chip_bytes=vmem_mib * 2**20,
        class_efficiency=(("copy", copies[0]), ("turn", copies[1])),
        matmul_tile=tile,
        cores=cores,
        host_bytes_per_s=host_gb_per_s * 1e9,
        source=(
            Source(
                field="hbm_bytes_per_s, flops_per_s",
                document=f"{_TPU_DOCS}/{page or name}",
                note=note,
            ),
            _USABLE_TPU,
            _PCIE,
            _F32_IS_BF16,
            vmem,
            _TILE,
            *([_MEGACORE] if cores > 1 else []),
            estimated,
            _ESTIMATED_PRODUCTS if products > _ASSUMED_PRODUCTS else _ASSUMED_TPU,
            _ASSUMED_LAUNCH,
        ),
    )


# The processor of ColocRL's machines:
# flops_per_s = cores * base clock * (2 units * 8 lanes * 2 operations of a fused multiply-add).
_CORES: Final = PROCESSOR_CORES["haswell"]
_CYCLES_PER_S: Final = 2.3e9
_F32_FLOPS_PER_CYCLE: Final = 32

_HASWELL: Final = Device(
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
            document="Intel Xeon Processor E5-2699 v3 product specifications (18 cores, 2.3 GHz"
            " base)",
            note="68 GB/s with four channels of DDR4-2133; AVX2 with two FMA units at base clock;"
            " the paper says an 18-core Haswell at 2300 (Mirhoseini et al. 2017, section 4)",
        ),
        Source(
            field="memory_bytes, matmul_efficiency, memory_efficiency, launch_seconds",
            document="assumption",
            note="128 GB of host memory; a threaded library's matmuls; an op starts a thread pool",
        ),
    ),
)


DEVICES: Final[dict[str, Device]] = {
    device.name: device
    for device in (
        _tpu(
            "v4",
            products=0.98,
            usable_gib=2 * 15.25,  # of each core
            hbm_gb_per_s=1200,
            vmem_mib=32,  # 16 MiB in each of the two cores
            cores=2,
            tflops={"bf16": 275, "s8": 275},
            note="32 GiB, 1200 GB/s, 275 TFLOPs bf16 or int8 per chip; one JAX device per chip",
        ),
        _tpu(
            "v5e",
            products=0.98,
            usable_gib=15.75,
            hbm_gb_per_s=819,
            vmem_mib=128,
            tflops={"bf16": 197, "s8": 393},
            note="16 GB, 819 GB/s, 197 TFLOPs bf16, 393 TOPs int8",
        ),
        _tpu(
            "v5p",
            products=0.98,
            usable_gib=95.73,
            hbm_gb_per_s=2765,
            vmem_mib=16,  # what libtpu makes use of, not the 128 MiB that there are
            vmem=_KEPT_V5P,
            copies=(0.23, 0.36),
            cores=2,
            estimated=_ESTIMATED_V5P,
            tflops={"bf16": 459, "s8": 918},
            note="95 GiB for users, 2765 GB/s, 459 TFLOPs bf16; int8 at twice that",
        ),
        _tpu(
            "v6e",
            usable_gib=31.24,
            hbm_gb_per_s=1638,
            vmem_mib=128,
            tile=256,
            host_gb_per_s=32,
            tflops={"bf16": 918, "s8": 1836},
            note="32 GB, 1638 GB/s, 918 TFLOPs bf16, 1836 TOPs int8",
        ),
        _tpu(
            "tpu7x",
            usable_gib=94.74,
            hbm_gb_per_s=3690,
            vmem_mib=64,
            tile=256,
            host_gb_per_s=16,
            tflops={"bf16": 1153.5, "f8e4m3fn": 2307},
            note="half a chip: the two dies of a chip (192 GiB, 7380 GB/s, 2307 TFLOPs bf16, 4614"
            " fp8) are two JAX devices",
        ),
        *GPUS,
        _HASWELL,
        Device(
            name="cpu",
            memory_bytes=8 * _GIB,
            hbm_bytes_per_s=20e9,
            flops_per_s=(("f32", 1e11), ("f64", 5e10)),
            matmul_efficiency=0.8,
            memory_efficiency=0.8,
            launch_seconds=5e-6,
            host_bytes_per_s=10e9,
            source=(
                Source(
                    field="all",
                    document="assumption",
                    note="nominal: stands for one fake CPU device in tests and demonstrations,"
                    " not for any processor; calibrate for real times",
                ),
            ),
        ),
    )
}
"""Device name -> device, in the order shown to users."""
