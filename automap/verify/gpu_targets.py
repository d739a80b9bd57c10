"""GPUs as XLA's compiler wants them described when none is there: a `GpuTargetConfigProto` as text.

One row per GPU; what all of them share is in `_COMMON`. Numbers are those the CUDA driver reports
for the device. Sources: NVIDIA's architecture white papers (SMs, caches, clocks, memory), the
compute capability table of the CUDA C++ Programming Guide (limits per SM and per block), the public
device specifications in XLA's repository (xla/backends/gpu/target_config/specs: P100, V100, A100,
H100, H200, B200, GB200), which hold the bytes a driver reports as free for use, and for the TITAN
Xp and the RTX 2080 Ti what CUDA's sample `deviceQuery` prints. Bytes per second are 2 * memory
clock * bus width.

No cuDNN is at hand when compiling ahead of time, so XLA picks kernels without trying them out. The
catalogue's K80 has no row: CUDA 12, which XLA's compiler comes with, has dropped compute capability
3.7.
"""

from dataclasses import dataclass
import math
from typing import Final

from automap.errors import CompilerError


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTarget:
    """What differs between GPUs.

    `shared_bytes_per_block` is what a block may have if it asks for more than the 48 KiB that every
    block has. `threads_per_sm` are resident at once.
    """

    description: str
    compute_capability: tuple[int, int]
    sm_count: int
    f32_units_per_sm: int
    clock_ghz: float
    memory_bytes: int
    memory_bytes_per_s: int
    l2_bytes: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    threads_per_sm: int = 2048

    def text(self, usable_bytes: int) -> str:
        """The text proto of one of whose memory programs may use so much."""
        major, minor = self.compute_capability
        device_bytes = math.ceil(usable_bytes / _USABLE_SHARE)
        return f"""gpu_device_info {{
  {_COMMON}
  core_count: {self.sm_count}
  fpus_per_core: {self.f32_units_per_sm}
  clock_rate_ghz: {self.clock_ghz}
  device_memory_size: {device_bytes}
  memory_bandwidth: {self.memory_bytes_per_s}
  l2_cache_size: {self.l2_bytes}
  threads_per_core_limit: {self.threads_per_sm}
  shared_memory_per_core: {self.shared_bytes_per_sm}
  shared_memory_per_block_optin: {self.shared_bytes_per_block}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{self.description}"
"""


# CUDA C++ Programming Guide, technical specifications per compute capability: equal from 6.0 to
# 10.0.
_COMMON: Final = """threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64"""
_KIB: Final = 1024
# What XLA counts on where no allocator says how much it may hand out, as JAX's does on a device.
# Above 95 % of it XLA computes values again, and hides no collectives (as of jax 0.10.2).
_USABLE_SHARE: Final = 0.8


def _v100(description: str, memory_bytes: int) -> GpuTarget:
    return GpuTarget(
        description=description,
        compute_capability=(7, 0),
        sm_count=80,
        f32_units_per_sm=64,
        clock_ghz=1.53,
        memory_bytes=memory_bytes,
        memory_bytes_per_s=898_048_000_000,
        l2_bytes=6 * _KIB**2,
        shared_bytes_per_sm=96 * _KIB,
        shared_bytes_per_block=96 * _KIB,
    )


def _a100(description: str, memory_bytes: int, memory_bytes_per_s: int) -> GpuTarget:
    return GpuTarget(
        description=description,
        compute_capability=(8, 0),
        sm_count=108,
        f32_units_per_sm=64,
        clock_ghz=1.41,
        memory_bytes=memory_bytes,
        memory_bytes_per_s=memory_bytes_per_s,
        l2_bytes=40 * _KIB**2,
        shared_bytes_per_sm=164 * _KIB,
        shared_bytes_per_block=163 * _KIB,
    )


def _hopper(description: str, memory_bytes: int, memory_bytes_per_s: int) -> GpuTarget:
    # Of an SM's 228 KiB the system takes one for each block.
    return GpuTarget(
        description=description,
        compute_capability=(9, 0),
        sm_count=132,
        f32_units_per_sm=128,
        clock_ghz=1.98,
        memory_bytes=memory_bytes,
        memory_bytes_per_s=memory_bytes_per_s,
        l2_bytes=50 * _KIB**2,
        shared_bytes_per_sm=228 * _KIB,
        shared_bytes_per_block=227 * _KIB,
    )


GPU_TARGETS: Final[dict[str, GpuTarget]] = {
    "p100": GpuTarget(
        description="Tesla P100-SXM2-16GB", compute_capability=(6, 0), sm_count=56,
        f32_units_per_sm=64, clock_ghz=1.4805, memory_bytes=17_066_885_120,
        memory_bytes_per_s=732_160_000_000, l2_bytes=4 * _KIB**2,
        shared_bytes_per_sm=64 * _KIB, shared_bytes_per_block=48 * _KIB,
    ),
    # Its bytes are the 12,196 MiB that nvidia-smi shows under Linux.
    "titan-xp": GpuTarget(
        description="NVIDIA TITAN Xp", compute_capability=(6, 1), sm_count=30,
        f32_units_per_sm=128, clock_ghz=1.582, memory_bytes=12_196 * _KIB**2,
        memory_bytes_per_s=547_680_000_000, l2_bytes=3 * _KIB**2,
        shared_bytes_per_sm=96 * _KIB, shared_bytes_per_block=48 * _KIB,
    ),
    "2080ti": GpuTarget(
        description="NVIDIA GeForce RTX 2080 Ti", compute_capability=(7, 5), sm_count=68,
        f32_units_per_sm=64, clock_ghz=1.545, memory_bytes=11_554_717_696,
        memory_bytes_per_s=616_000_000_000, l2_bytes=5_767_168,
        shared_bytes_per_sm=64 * _KIB, shared_bytes_per_block=64 * _KIB, threads_per_sm=1024,
    ),
    "v100": _v100("Tesla V100-SXM2-16GB", 16_935_682_048),
    # As the 16 GB part, with twice its memory.
    "v100-32gb": _v100("Tesla V100-SXM2-32GB", 2 * 16_935_682_048),
    "a100-40gb": _a100("NVIDIA A100-SXM4-40GB", 42_298_834_944, 1_555_200_000_000),
    "a100": _a100("NVIDIA A100-SXM4-80GB", 85_100_068_864, 2_039_040_000_000),
    "h100": _hopper("NVIDIA H100 80GB HBM3", 84_942_979_072, 3_352_320_000_000),
    "h200": _hopper("NVIDIA H200", 151_397_597_184, 4_800_000_000_000),
    "b200": GpuTarget(
        description="NVIDIA B200", compute_capability=(10, 0), sm_count=148,
        f32_units_per_sm=128, clock_ghz=1.965, memory_bytes=191_514_411_008,
        memory_bytes_per_s=7_672_320_000_000, l2_bytes=132_644_864,
        shared_bytes_per_sm=228 * _KIB, shared_bytes_per_block=227 * _KIB,
    ),
    "gb200": GpuTarget(
        description="NVIDIA GB200", compute_capability=(10, 0), sm_count=152,
        f32_units_per_sm=128, clock_ghz=2.062, memory_bytes=197_897_748_480,
        memory_bytes_per_s=7_928_064_000_000, l2_bytes=135_528_448,
        shared_bytes_per_sm=228 * _KIB, shared_bytes_per_block=227 * _KIB,
    ),
}  # fmt: skip


def gpu_target(device: str) -> GpuTarget:
    """The target of a device of the catalogue. Raises `CompilerError` with the names there are."""
    if device not in GPU_TARGETS:
        raise CompilerError(
            f"the GPU compiler needs a description of the device: got {device!r}; allowed: "
            f"{', '.join(GPU_TARGETS)}; compile for one of these, or verify with --compiler cpu"
        )
    return GPU_TARGETS[device]
