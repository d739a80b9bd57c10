"""What was measured on GPUs: seconds of collectives inside a host, and of products.

`automap.topology.measured.collectives`  seconds of a collective over one link level, by its ranks
                                         and bytes
`automap.topology.measured.products`     seconds of a matrix product on one GPU, by its sizes and
                                         element type

The tables are half of those that XLA ships for its latency estimates of GPU programs (openxla/xla,
`default_collective_perf_table` and `default_matmul_perf_table`, as the CUDA plugin of jax 0.10.2
has them): every second size of a collective and every second shape of a product. The other half is
with the tests and judges what is read from these. `python -m scripts.measured_gpus` makes both
halves.
"""
