"""The GPUs of the catalogue: dense peaks from NVIDIA's documents, efficiencies assumed.

flops_per_s   half of what a datasheet shows with sparsity; f32 is the rate of a dot at JAX's
              default precision (`automap.topology.dtypes`): TF32 from A100 on, plain fp32 before
memory_bytes  what a program can use where a document says so (B200: 180 of 192 GB)

How many multiprocessors (SMs) a GPU has is what kernels that run at once share  -> in:
`multiprocessors`. Counts are NVIDIA's, as CUDA reports them for the device
(`automap.verify.gpu_targets` lists the same for XLA's compiler, and a test holds both together);
those of the K80 are of one of its two GPUs (Tesla K80 board specification, BD-07317-001), those of
the GB300 of a full GB300 GPU (NVIDIA Blackwell Ultra architecture brief).
"""

from collections.abc import Mapping
from typing import Final, Literal

from automap.errors import TopologyError
from automap.topology.model import Device, Source, Topology


_GB: Final = 10**9
_ASSUMED: Final = Source(
    field="matmul_efficiency, memory_efficiency",
    document="assumption",
    note="large library matmuls and streaming kernels at sustained clocks",
)
_LAUNCH: Final = Source(
    field="launch_seconds",
    document="NVIDIA, Getting Started with CUDA Graphs; openxla/xla, default_matmul_perf_table",
    note="a short kernel with the gap to the next takes 3.4 us in a graph and 3.8 us on a stream"
    " (V100); the least product measured on an H100 takes 5.0 us. Between them",
)
_LAUNCH_MEASURED: Final = Source(
    field="launch_seconds",
    document="scripts.measure_steps on one H200, jax 0.11.2, 2026-11-27",
    note="kernels of a few numbers take 1.2 to 1.5 us, with up to 0.4 us to the next in the graphs"
    " that XLA makes of a step (recurrent networks, 2,000 to 8,000 kernels a step); later"
    " generations are taken to be as fast",
)
_F32_IS_TF32: Final = Source(
    field="flops_per_s.f32",
    document="https://docs.jax.dev/en/latest/_autosummary/jax.default_matmul_precision.html",
    note="the default precision of an f32 dot on A100 and later is TF32, whose rate this is",
)

_MEASURED: Final = Source(
    field="measured",
    document="openxla/xla, default_matmul_perf_table (CUDA plugin of jax 0.10.2)",
    note="seconds of products on this GPU, or on one with the same cores",
)


# A PCIe 3.0 x16 slot moves 15.75 GB/s in one direction, of which packets leave about 12
# (`automap.topology.gpu_links`), one of the next generation twice that. 5.0 was measured.
_HOST_GB_PER_S: Final = {"PCIe 3.0": 12.0, "PCIe 4.0": 24.0, "PCIe 5.0": 54.8, "C2C": 180.0}


def _gpu(
    name: str,
    *,
    memory_gb: int,
    hbm_gb_per_s: float,
    tflops: dict[str, float],
    matmul_efficiency: float,
    document: str,
    note: str,
    measured: str = "",
    host: Literal["PCIe 3.0", "PCIe 4.0", "PCIe 5.0", "C2C"] = "PCIe 3.0",
    slot_shared_by: int = 1,
) -> Device:
    datasheet = Source(
        field="memory_bytes, hbm_bytes_per_s, flops_per_s", document=document, note=note
    )
    # TF32 and bfloat16 came with the same generation of tensor cores, that of the A100.
    f32 = (_F32_IS_TF32,) if "bf16" in tflops else ()
    return Device(
        name=name,
        memory_bytes=memory_gb * _GB,
        hbm_bytes_per_s=hbm_gb_per_s * 1e9,
        flops_per_s=tuple((dtype, value * 1e12) for dtype, value in tflops.items()),
        matmul_efficiency=matmul_efficiency,
        memory_efficiency=0.85,
        # What a kernel costs at least, however small; calibrate for the figure of a machine.
        launch_seconds=2e-6 if measured else 4e-6,
        measured=measured,
        host_bytes_per_s=_HOST_GB_PER_S[host] * 1e9 / slot_shared_by,
        source=(
            datasheet,
            *f32,
            *((_MEASURED,) if measured else ()),
            _C2C if host == "C2C" else _slot(host, slot_shared_by),
            _ASSUMED,
            _LAUNCH_MEASURED if measured else _LAUNCH,
        ),
    )


_C2C: Final = Source(
    field="host_bytes_per_s",
    document="NVIDIA GB200 NVL72 datasheet; the rest is an assumption",
    note="NVLink-C2C moves 900 GB/s between a Grace and its two GPUs, both directions together: 225"
    " of each GPU in one direction, of which 0.8 are assumed to be reached",
)


def _slot(host: str, shared_by: int) -> Source:
    shared = f", shared by {shared_by} GPUs" if shared_by > 1 else ""
    if host == "PCIe 5.0":
        return Source(
            field="host_bytes_per_s",
            document="docs/reports/levers.md",
            note=f"an x16 slot{shared}: copies of 67 MB between one H100 80GB HBM3 and its host, in"
            " either direction",
        )
    return Source(
        field="host_bytes_per_s",
        document=f"PCI-SIG, {host}",
        note=f"an x16 slot{shared}, of whose peak 12 / 15.75 are left for data",
    )


_V100_TFLOPS: Final = {"f64": 7.8, "f32": 15.7, "f16": 125}
_V100_SHEET: Final = "NVIDIA V100 Tensor Core GPU datasheet (Volta V100, SXM2)"
_V100_NOTE: Final = "900 GB/s, 125 TFLOPS f16 tensor, 15.7 f32; no bf16 unit, bf16 runs as f32"
_A100_TFLOPS: Final = {"f64": 19.5, "f32": 156, "bf16": 312, "f16": 312, "s8": 624}
_A100_NOTE: Final = "dense rates: TF32 156, bf16 and f16 312, int8 624, f64 19.5"
_HOPPER_TFLOPS: Final = {
    "f64": 67,
    "f32": 494.7,
    "bf16": 989.4,
    "f16": 989.4,
    "f8e4m3fn": 1978.9,
    "s8": 1978.9,
}


GPUS: Final[tuple[Device, ...]] = (
    _gpu(
        "k80",
        memory_gb=12,
        hbm_gb_per_s=240,
        # Kepler has no arithmetic in half types: they run as f32.
        tflops={"f64": 1.46, "f32": 4.37},
        matmul_efficiency=0.65,
        slot_shared_by=2,
        document="NVIDIA Tesla K80 GPU Accelerator board specification (BD-07317-001)",
        note="one of the two GPUs of a board: half of 24 GB, 480 GB/s, 8.74 TFLOPS f32 and 2.91 f64"
        " at boost clocks (5.6 f32 at base clocks)",
    ),
    _gpu(
        "p100",
        memory_gb=16,
        hbm_gb_per_s=732,
        tflops={"f64": 5.3, "f32": 10.6, "f16": 21.2},
        matmul_efficiency=0.75,
        document="NVIDIA Tesla P100 whitepaper (WP-08019-001), SXM2 16 GB",
        note="16 GB, 732 GB/s, 10.6 TFLOPS f32, 21.2 f16, 5.3 f64; bf16 runs as f32",
    ),
    _gpu(
        "titan-xp",
        memory_gb=12,
        hbm_gb_per_s=547.6,
        tflops={"f64": 0.38, "f32": 12.15},
        matmul_efficiency=0.75,
        document="NVIDIA TITAN Xp specifications (GP102, 3840 cores at 1582 MHz boost)",
        note="12 GB, 547.6 GB/s, 12.15 TFLOPS f32; f64 at 1/32; half types run as f32",
    ),
    _gpu(
        "2080ti",
        memory_gb=11,
        hbm_gb_per_s=616,
        tflops={"f64": 0.42, "f32": 13.45, "f16": 53.8, "s8": 215.2},
        matmul_efficiency=0.75,
        document="NVIDIA Turing GPU architecture whitepaper (WP-09183-001), GeForce RTX 2080 Ti",
        note="11 GB, 616 GB/s, reference clocks: 13.45 TFLOPS f32, 53.8 f16 tensor with f32 sums as"
        " XLA asks for (107.6 with f16 sums), 215.2 int8",
    ),
    _gpu(
        "v100",
        memory_gb=16,
        hbm_gb_per_s=900,
        tflops=_V100_TFLOPS,
        matmul_efficiency=0.75,
        document=_V100_SHEET,
        note=f"16 GB, {_V100_NOTE}",
    ),
    _gpu(
        "v100-32gb",
        memory_gb=32,
        hbm_gb_per_s=900,
        tflops=_V100_TFLOPS,
        matmul_efficiency=0.75,
        document=_V100_SHEET,
        note=f"32 GB, {_V100_NOTE}",
    ),
    _gpu(
        "a100-40gb",
        memory_gb=40,
        hbm_gb_per_s=1555,
        tflops=_A100_TFLOPS,
        matmul_efficiency=0.8,
        host="PCIe 4.0",
        document="NVIDIA A100 Tensor Core GPU datasheet (A100 40GB SXM)",
        note=f"40 GB, 1555 GB/s; {_A100_NOTE}",
    ),
    _gpu(
        "a100",
        memory_gb=80,
        hbm_gb_per_s=2039,
        tflops=_A100_TFLOPS,
        matmul_efficiency=0.8,
        host="PCIe 4.0",
        document="NVIDIA A100 Tensor Core GPU datasheet (A100 80GB SXM)",
        note=f"80 GB, 2039 GB/s; {_A100_NOTE}",
    ),
    _gpu(
        "h100",
        memory_gb=80,
        hbm_gb_per_s=3350,
        tflops=_HOPPER_TFLOPS,
        matmul_efficiency=0.7,
        measured="h100",
        host="PCIe 5.0",
        document="NVIDIA H100 Tensor Core GPU datasheet (H100 SXM)",
        note="80 GB, 3.35 TB/s; half the sparse rates shown: TF32 495, bf16 989, fp8 1979",
    ),
    _gpu(
        "h200",
        memory_gb=141,
        hbm_gb_per_s=4800,
        tflops=_HOPPER_TFLOPS,
        matmul_efficiency=0.7,
        measured="h100",
        host="PCIe 5.0",
        document="NVIDIA H200 Tensor Core GPU datasheet (H200 SXM)",
        note="141 GB, 4.8 TB/s; the rates of H100 SXM",
    ),
    _gpu(
        "b200",
        memory_gb=180,
        hbm_gb_per_s=8000,
        tflops={
            "f64": 40, "f32": 1100, "bf16": 2250, "f16": 2250, "f8e4m3fn": 4500, "s8": 4500,
            "f4e2m1fn": 9000,
        },
        matmul_efficiency=0.7,
        measured="b200",
        host="PCIe 5.0",
        document="NVIDIA DGX B200 datasheet and user guide; NVIDIA Blackwell architecture brief"
        " (HGX B200)",
        note="an eighth of 1,440 GB (192 GB of HBM3e, 180 usable) and 64 TB/s; dense rates: TF32"
        " 1100, bf16 2250, fp8 and int8 4500, fp4 9000",
    ),
    _gpu(
        "gb200",
        memory_gb=186,
        hbm_gb_per_s=8000,
        tflops={
            "f64": 45, "f32": 1250, "bf16": 2500, "f16": 2500, "f8e4m3fn": 5000, "s8": 5000,
            "f4e2m1fn": 10000,
        },
        matmul_efficiency=0.7,
        measured="b200",
        host="C2C",
        document="NVIDIA GB200 NVL72 datasheet; NVIDIA Blackwell architecture brief (GB200)",
        note="half of a superchip's 372 GB and 16 TB/s; half the sparse rates shown, a 72nd of the"
        " rack: TF32 1250, bf16 2500, fp8 5000, fp4 10000",
    ),
    _gpu(
        "gb300",
        memory_gb=279,
        hbm_gb_per_s=8000,
        tflops={
            "f64": 1.39, "f32": 1250, "bf16": 2500, "f16": 2500, "f8e4m3fn": 5000, "s8": 165,
            "f4e2m1fn": 15000,
        },
        matmul_efficiency=0.7,
        measured="b200",
        host="C2C",
        document="NVIDIA GB300 NVL72 datasheet; https://verda.com/blog/gb300-nvl72-architecture",
        note="a 72nd of the rack's 20 TB, 576 TB/s and 100 TFLOPS f64; dense rates: TF32 1250, bf16"
        " 2500, fp8 5000, fp4 15000, int8 165",
    ),
)  # fmt: skip
"""In the order shown to users: by age."""

# A longer name before one that is a part of it.
GPU_KINDS: Final[tuple[tuple[str, str], ...]] = (
    ("Tesla K80", "k80"),
    ("P100-SXM2-16GB", "p100"),
    ("TITAN Xp", "titan-xp"),
    ("RTX 2080 Ti", "2080ti"),
    ("V100-SXM2-32GB", "v100-32gb"),
    ("V100-SXM3-32GB", "v100-32gb"),
    ("V100-SXM2-16GB", "v100"),
    ("A100-SXM4-40GB", "a100-40gb"),
    ("A100-SXM4-80GB", "a100"),
    ("H100 80GB HBM3", "h100"),
    ("H200", "h200"),
    ("GB300", "gb300"),
    ("GB200", "gb200"),
    ("B200", "b200"),
)
"""A part of JAX's device_kind -> GPU of the catalogue; the first that matches."""

MULTIPROCESSORS: Final[Mapping[str, int]] = {
    "k80": 13,
    "p100": 56,
    "titan-xp": 30,
    "2080ti": 68,
    "v100": 80,
    "v100-32gb": 80,
    "a100-40gb": 108,
    "a100": 108,
    "h100": 132,
    "h200": 132,
    "b200": 148,
    "gb200": 152,
    "gb300": 160,
}
"""By the name of the device."""


PROCESSOR_CORES: Final[Mapping[str, int]] = {"haswell": 18}
"""Of processors beside GPUs, by the name of the device."""


def is_processor(device: Device) -> bool:
    """Whether a device of a machine with GPUs is none."""
    return device.name in PROCESSOR_CORES


def core_count(device: Device) -> int:
    """SMs of a GPU, of one that is not listed those of the A100; cores of a processor."""
    known = {**MULTIPROCESSORS, **PROCESSOR_CORES}
    return known.get(device.name, MULTIPROCESSORS["a100"])


def has_matrix_units(device: Device, dtype: str) -> bool:
    """Whether products of a type run on matrix units: float32 does where bfloat16 is a type, others
    before it if they are more than twice as fast as float32, as vectors of two are.
    """
    rates = dict(device.flops_per_s)
    return "bf16" in rates or device.peak_flops_per_s(dtype) > 2 * rates["f32"]


def multiprocessors(topology: Topology) -> int:
    """SMs of a topology's device. Raises `TopologyError` for a device without a figure."""
    name = topology.device.name
    if topology.platform != "cuda" or name not in MULTIPROCESSORS:
        raise TopologyError(
            f"device {name!r}: how many multiprocessors it has is not known; allowed: "
            f"{', '.join(MULTIPROCESSORS)}, whose kernels can run at once"
        )
    return MULTIPROCESSORS[name]
