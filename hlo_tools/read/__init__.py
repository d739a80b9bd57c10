"""Files -> `hlo_tools.module.Module`; XLA's and MLIR's parsers run in a process of their own.

`hlo_tools.read.messages`  protobuf messages of which only some fields are read; the library
                           `protobuf` decodes them
`hlo_tools.read.proto`     serialized HLO protos -> `hlo_tools.module`
"""

from hlo_tools.read.content import read_bytes as read_bytes, read_module as read_module
