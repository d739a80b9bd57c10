"""Measured seconds of kernels on one kind of device, and what they say of kernels that were not
measured.

`automap.cost.profile.measured`    measured seconds in the place of the roofline's, for a whole
                                   table of kernels at once
`automap.cost.profile.prices`      what a compiler said of kernels, as corrections of their
                                   predicted seconds
`automap.cost.profile.shapes`      a kernel's shape on one device, whatever splits it
`automap.cost.profile.signatures`  what decides how long a kernel runs: its signature, and how it
                                   follows from a sharding
"""

from automap.cost.profile.prices import CompiledKernel, KernelPrices
from automap.cost.profile.record import (
    ConvolutionTime,
    DotTime,
    KernelProfile,
    StageTime,
    StreamTime,
    Transfer,
    TransferTime,
    default_path,
    device_name,
)


__all__ = [
    "CompiledKernel",
    "ConvolutionTime",
    "DotTime",
    "KernelPrices",
    "KernelProfile",
    "StageTime",
    "StreamTime",
    "Transfer",
    "TransferTime",
    "default_path",
    "device_name",
]
