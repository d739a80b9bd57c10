"""Files -> `hlo_tools.module.Module`; what XLA and MLIR have to parse is parsed in a process of its own."""

from hlo_tools.read.content import read_bytes as read_bytes, read_module as read_module
