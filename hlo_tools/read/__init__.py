"""Files -> `hlo_tools.module.Module`; XLA's and MLIR's parsers run in a process of their own."""

from hlo_tools.read.content import read_bytes as read_bytes, read_module as read_module
