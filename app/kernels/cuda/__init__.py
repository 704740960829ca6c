"""Kernels for NVIDIA GPUs, see docs/cuda.md.

Every factory returns `Launches`; its docstring tells shapes, roles, and which output may lie over which
input.

| family | factory |
|---|---|
| matrix products, convolutions | `gemm.gemm`, `gemv.gemv`, `conv.conv` |
| attention, of a few query rows | `attention.attention`, `attention_decode.attention_decode` |
| chains of elementwise operators | `elementwise.elementwise` |
| strided copies, casts | `elementwise.copy` |
| softmax, log softmax | `softmax.softmax` |
| layer, RMS, group and instance normalization | `normalize.row_norm`, `group_norm` |
| reductions, positions of extrema | `reduce.reduce`, `argument` |
| running sums, the k largest | `scan.cumulative_sum`, `top_k` |
| pooling, depthwise convolution | `windows.pool`, `depthwise` |
| Resize, Pad | `resample.lookup`, `blend` |
| transposes, channels first and last | `transpose.moved` |
| reads at indices | `gather.gather_nd`, `gather_elements` |
| writes at indices | `gather.scatter_elements`, `scatter_nd` |

Nothing here imports numba's CUDA target before a kernel is compiled (`compiler.py`).
"""
