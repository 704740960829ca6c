"""Small graphs, one or more for each operator that symbols can spell: the suite and real MXNet run them all."""

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser

# Name, inputs as NAME:DIMS (i for int64 below 3, b for bool), nodes; the last node gives `out`.
GRAPHS = """
add; x:2x3x4, y:3x1; out = Add(x, y)
same; x:2x3, y:2x3; a = Sub(x, y) | b = Div(a, y) | out = Mul(b, x)
scalars; x:2x3; c = Constant<value = float[1] {0.4}>() | a = Sub(c, x) | b = Div(c, a) | out = Pow(b, c)
rank0; x:3; c = Constant<value = float {2.5}>() | s = ReduceSum<keepdims = 0>(x) | out = Mul(s, c)
wide; x:3; c = Constant<value = float[1,1,1] {2.0}>() | out = Add(x, c)
three; x:2x3, y:3, z:2x1; a = Max(x, y, z) | b = Min(x, y) | c = Sum(a, b, y) | out = Mean(c, z)
whole; i:2x3i, j:3i; a = Add(i, j) | b = Mul(a, i) | c = Equal(b, j) | out = Cast<to = 1>(c)
mod; x:2x3; c = Constant<value = float[1] {0.3}>() | f = Floor(x) | out = Sub(x, f)
compare; x:2x3, y:3; a = Greater(x, y) | b = LessOrEqual(x, y) | c = Or(a, b) | d = Not(c) | e = Xor(d, a) | out = Where(e, x, y)
bools; p:2x3b, q:3b; a = And(p, q) | out = Not(a)
rational; x:2x3; a = Exp(x) | b = Log(a) | c = Sqrt(b) | d = Reciprocal(c) | out = Erf(d)
trig; x:2x3; a = Sin(x) | b = Cos(a) | c = Tan(b) | d = Atan(c) | out = Sinh(d)
arcs; x:2x3; a = Asin(x) | b = Acos(x) | c = Asinh(x) | d = Atanh(x) | e = Cosh(x) | f = Acosh(e) | g = Tanh(f) | out = Mean(a, b, c, d, g)
modulo; x:2x3, y:2x3; h = Constant<value = float[1] {0.5}>() | n = Sub(x, h) | i = Mod<fmod = 1>(n, y) | a = GreaterOrEqual(i, y) | b = Less(x, y) | out = And(a, b)
modulo_whole; i:2x3i, j:3i; t = Constant<value = int64[1] {1}>() | a = Sub(i, t) | b = Add(j, t) | out = Mod(a, b)
infinite; x:2x3; z = Sub(x, x) | a = Div(x, z) | b = IsInf(a) | out = Cast<to = 1>(b)
modern; x:2x3x4, s:4; a = RMSNormalization(x, s) | out = Swish<alpha = 1.2>(a)
steps; x:2x3; t = Constant<value = float[1] {10.0}>() | m = Mul(x, t) | a = Round(m) | b = Floor(m) | c = Ceil(m) | d = Sub(a, b) | out = Add(d, c)
halves; x:2x3; t = Constant<value = float[6] {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5}>() | s = Constant<value = int64[2] {2, 3}>() | z = Sub(x, x) | r = Reshape(t, s) | m = Add(r, z) | out = Round(m)
signs; x:2x3; h = Constant<value = float[1] {0.5}>() | m = Sub(x, h) | a = Sign(m) | b = Abs(m) | c = Neg(a) | out = Mul(b, c)
relu; x:2x3; h = Constant<value = float[1] {0.5}>() | m = Sub(x, h) | a = Relu(m) | b = LeakyRelu<alpha = 0.2>(m) | c = Elu<alpha = 0.7>(m) | d = Selu(m) | out = Sum(a, b, c, d)
gates; x:2x3; h = Constant<value = float[1] {0.5}>() | m = Sub(x, h) | a = Sigmoid(m) | b = HardSigmoid(m) | c = HardSwish(m) | d = Softplus(m) | e = Softsign(m) | out = Sum(a, b, c, d, e)
gelu; x:2x3; h = Constant<value = float[1] {0.5}>() | m = Sub(x, h) | a = Gelu(m) | b = Gelu<approximate = "tanh">(m) | c = Mish(m) | d = Celu<alpha = 0.6>(m) | e = ThresholdedRelu<alpha = 0.1>(m) | out = Sum(a, b, c, d, e)
prelu; x:2x3x4; h = Constant<value = float[1] {0.5}>() | s = Constant<value = float[3,1] {0.1, 0.2, 0.3}>() | m = Sub(x, h) | a = PRelu(m, s) | t = Constant<value = float[4] {0.1, 0.2, 0.3, 0.4}>() | b = PRelu(m, t) | out = Add(a, b)
clip; x:2x3; l = Constant<value = float {0.3}>() | u = Constant<value = float {0.6}>() | a = Clip(x, l, u) | b = Clip(x, l) | c = Clip(x, , u) | out = Sum(a, b, c)
where; x:2x3x4, y:4, p:3x1b; out = Where(p, x, y)
nan; x:2x3; l = Log(x) | n = Neg(x) | m = Log(n) | a = IsNaN(m) | b = Cast<to = 1>(a) | out = Add(b, l)
cast; x:2x3; t = Constant<value = float[1] {9.0}>() | m = Mul(x, t) | a = Cast<to = 7>(m) | out = Cast<to = 1>(a)
softmax; x:2x3x4; a = Softmax<axis = 1>(x) | b = LogSoftmax(x) | out = Add(a, b)
conv; x:1x4x7x8, w:6x4x3x3, b:6; out = Conv<pads = [1, 2, 1, 2], strides = [2, 1]>(x, w, b)
conv_uneven; x:1x4x7x8, w:6x2x3x3; out = Conv<pads = [0, 1, 1, 2], dilations = [2, 1], group = 2>(x, w)
conv_same; x:1x4x7x8, w:6x4x4x3; out = Conv<auto_pad = "SAME_UPPER", strides = [2, 2]>(x, w)
conv_line; x:1x4x9, w:6x4x3; out = Conv<pads = [2, 0]>(x, w)
conv_deep; x:1x2x5x6x7, w:3x2x2x2x2; out = Conv<pads = [1, 0, 0, 1, 0, 0]>(x, w)
deconv; x:1x4x5x6, w:4x3x3x3, b:6; out = ConvTranspose<group = 2, strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 0]>(x, w, b)
deconv_uneven; x:1x4x5x6, w:4x3x3x3; out = ConvTranspose<strides = [2, 2], pads = [0, 1, 1, 2]>(x, w)
deconv_sized; x:1x4x5x6, w:4x3x3x3; out = ConvTranspose<strides = [2, 2], output_shape = [10, 12]>(x, w)
pool; x:1x2x7x9; a = MaxPool<kernel_shape = [3, 2], strides = [2, 1], pads = [1, 0, 1, 0]>(x) | out = Relu(a)
pool_uneven; x:1x2x7x9; out = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [0, 1, 1, 1]>(x)
pool_ceil; x:1x2x7x9; out = MaxPool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(x)
pool_line; x:1x2x9; out = MaxPool<kernel_shape = [3], strides = [2]>(x)
average; x:1x2x7x9; a = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x) | b = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1>(x) | out = Add(a, b)
average_ceil; x:1x2x7x9; out = AveragePool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(x)
average_uneven; x:1x2x7x9; out = AveragePool<kernel_shape = [3, 3], strides = [2, 2], pads = [0, 0, 1, 1]>(x)
global; x:1x2x7x9; a = GlobalAveragePool(x) | b = GlobalMaxPool(x) | out = Add(a, b)
batch_norm; x:2x3x4x5, s:3, b:3, m:3, v:3; out = BatchNormalization<epsilon = 0.01>(x, s, b, m, v)
batch_norm_given; x:2x3x4x5, s:3, b:3, mean:3, var:3; out = BatchNormalization<epsilon = 0.01>(x, s, b, mean, var)
instance_norm; x:2x3x4x5, s:3, b:3; out = InstanceNormalization(x, s, b)
layer_norm; x:2x3x4, s:4, b:4; out = LayerNormalization(x, s, b)
layer_norm_axes; x:2x3x4, s:3x4; out = LayerNormalization<axis = 1>(x, s)
group_norm; x:2x4x3x5, s:4, b:4; out = GroupNormalization<num_groups = 2>(x, s, b)
lrn; x:1x5x3x4; out = LRN<size = 3, alpha = 0.3, bias = 1.5>(x)
lp; x:2x3x4; a = LpNormalization<axis = 1>(x) | b = LpNormalization<p = 1>(x) | out = Add(a, b)
gemm; x:3x4, w:5x4, b:5; out = Gemm<transB = 1>(x, w, b)
gemm_scaled; x:4x3, w:4x5, b:3x1; out = Gemm<transA = 1, alpha = 0.5, beta = 2.0>(x, w, b)
matmul; x:2x3x4, w:4x5; out = MatMul(x, w)
matmul_stack; x:2x3x4x5, y:3x5x6; out = MatMul(x, y)
matmul_list; x:4, y:2x4x5; out = MatMul(x, y)
matmul_dot; x:4, y:4; out = MatMul(x, y)
reshape; x:2x3x4; s = Constant<value = int64[2] {0, -1}>() | a = Reshape(x, s) | out = Flatten<axis = 0>(a)
axes; x:2x1x4; s = Constant<value = int64[1] {1}>() | u = Constant<value = int64[2] {0, -1}>() | a = Squeeze(x, s) | b = Unsqueeze(a, u) | out = Transpose<perm = [3, 2, 1, 0]>(b)
concat; x:2x3, y:2x4; out = Concat<axis = -1>(x, y)
split; x:2x6; s = Constant<value = int64[3] {1, 2, 3}>() | a, b, c = Split<axis = 1>(x, s) | d, e = Split<axis = 1, num_outputs = 2>(x) | f = Concat<axis = 1>(c, a, b) | g = Concat<axis = 1>(e, d) | out = Add(f, g)
slice; x:5x6x7; s = Constant<value = int64[3] {4, -3, 1}>() | e = Constant<value = int64[3] {-9, 99, 6}>() | a = Constant<value = int64[3] {0, 1, 2}>() | t = Constant<value = int64[3] {-2, 1, 3}>() | out = Slice(x, s, e, a, t)
expand; x:3x1; s = Constant<value = int64[3] {2, 1, 4}>() | out = Expand(x, s)
tile; x:2x3; s = Constant<value = int64[2] {2, 3}>() | out = Tile(x, s)
pad; x:1x2x3x4; p = Constant<value = int64[8] {0, 0, 1, 2, 0, 0, 3, 0}>() | v = Constant<value = float {0.5}>() | out = Pad(x, p, v)
pad_all; x:2x3; p = Constant<value = int64[4] {1, 0, 2, 1}>() | out = Pad(x, p)
pad_edge; x:2x3x4; p = Constant<value = int64[6] {0, 0, 1, 0, 1, 2}>() | out = Pad<mode = "edge">(x, p)
pad_reflect; x:1x2x4x5; p = Constant<value = int64[8] {0, 0, 1, 2, 0, 0, 3, 1}>() | out = Pad<mode = "reflect">(x, p)
crop; x:1x2x4x5; p = Constant<value = int64[8] {0, 0, -1, 0, 0, 0, 0, -2}>() | out = Pad(x, p)
nearest; x:1x2x3x4; s = Constant<value = float[4] {1.0, 1.0, 2.0, 2.0}>() | out = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(x, , s)
nearest_odd; x:1x2x3x4; s = Constant<value = int64[4] {1, 2, 7, 5}>() | out = Resize<mode = "nearest">(x, , , s)
linear; x:1x2x3x4; s = Constant<value = int64[4] {1, 2, 7, 5}>() | out = Resize<mode = "linear">(x, , , s)
corners; x:1x2x3x4; s = Constant<value = float[4] {1.0, 1.0, 2.0, 2.5}>() | out = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , s)
cubic; x:1x2x3x4; s = Constant<value = int64[4] {1, 2, 6, 8}>() | out = Resize<mode = "cubic">(x, , , s)
space; x:1x8x2x3; a = DepthToSpace<blocksize = 2>(x) | out = SpaceToDepth<blocksize = 2>(a)
space_crd; x:1x8x2x3; out = DepthToSpace<blocksize = 2, mode = "CRD">(x)
trilu; x:2x3x4; k = Constant<value = int64 {1}>() | a = Trilu<upper = 0>(x) | b = Trilu(x, k) | out = Sub(a, b)
reduce; x:2x3x4; r = Constant<value = int64[2] {0, -1}>() | a = ReduceSum<keepdims = 0>(x, r) | b = ReduceMax<keepdims = 0>(x, r) | c = ReduceMin<keepdims = 0>(x, r) | d = ReduceProd<keepdims = 0>(x, r) | e = ReduceMean<keepdims = 0>(x, r) | out = Sum(a, b, c, d, e)
norms; x:2x3x4; r = Constant<value = int64[1] {1}>() | a = ReduceL1(x, r) | b = ReduceL2(x, r) | c = ReduceSumSquare(x, r) | d = ReduceLogSum(x, r) | e = ReduceLogSumExp(x, r) | out = Sum(a, b, c, d, e)
extremes; x:2x3x4; a = ArgMax<axis = 1, keepdims = 0>(x) | b = ArgMin<axis = -1, keepdims = 0>(x) | c = ReduceSum(b) | out = Add(a, c)
gather; x:5x4; k = Constant<value = int64[2,2] {0, -1, 2, 3}>() | out = Gather<axis = 1>(x, k)
gather_one; x:5x4; k = Constant<value = int64 {-2}>() | a = Gather<axis = 1>(x, k) | out = Gather(a, k)
gather_given; x:5x4, i:2x3i; out = Gather(x, i)
gather_each; x:3x4, i:3x2i; out = GatherElements<axis = 1>(x, i)
gather_nd; x:3x4x2; k = Constant<value = int64[2,2] {0, -1, 2, 3}>() | out = GatherND(x, k)
gather_nd_given; x:3x4, i:5x2i; out = GatherND(x, i)
scatter_nd; x:5x3, u:2x3; k = Constant<value = int64[2,1] {3, -5}>() | out = ScatterND(x, k, u)
scatter_each; x:4x3, u:2x3; k = Constant<value = int64[2,3] {0, 1, 2, 3, -2, 1}>() | out = ScatterElements(x, k, u)
one_hot; i:2x3i; d = Constant<value = int64 {3}>() | v = Constant<value = float[2] {0.2, 2.0}>() | out = OneHot<axis = 1>(i, d, v)
topk; x:2x7; k = Constant<value = int64[1] {3}>() | v, j = TopK(x, k) | w, l = TopK<largest = 0>(x, k) | a = Cast<to = 1>(j) | b = Cast<to = 1>(l) | out = Sum(v, a, w, b)
cumsum; x:2x5; k = Constant<value = int64 {1}>() | a = CumSum(x, k) | b = CumSum<reverse = 1>(x, k) | out = Sub(a, b)
quantize; x:2x3x4; s = Constant<value = float[3] {0.004, 0.02, 0.1}>() | z = Constant<value = uint8[3] {7, 0, 255}>() | q = QuantizeLinear<axis = 1>(x, s, z) | out = DequantizeLinear<axis = 1>(q, s, z)
lstm; x:5x2x3, w:2x16x3, r:2x16x4, b:2x32; y, h, c = LSTM<hidden_size = 4, direction = "bidirectional">(x, w, r, b) | s = Constant<value = int64[1] {0}>() | m = ReduceSum(h, s) | out = Add(y, m)
gru; x:5x2x3, w:1x12x3, r:1x12x4, b:1x24, h:1x2x4; y, l = GRU<hidden_size = 4, linear_before_reset = 1>(x, w, r, b, , h) | out = Add(y, l)
rnn; x:5x2x3, w:1x4x3, r:1x4x4; y, l = RNN<hidden_size = 4, direction = "reverse">(x, w, r) | out = Add(y, l)
attention; q:2x3x4, k:2x5x4, v:2x5x6; t = Transpose<perm = [0, 2, 1]>(k) | s = MatMul(q, t) | p = Softmax(s) | out = MatMul(p, v)
twice; x:2x3; out = Identity(x)
if_then; x:2x3, y:2x3; t = ReduceSum<keepdims = 0>(x) | u = ReduceSum<keepdims = 0>(y) | c = Less(t, u) | out = If<then_branch = a () => (float[2,3] p) { p = Add(x, y) }, else_branch = b () => (float[2,3] q) { r = Sub(x, y) q = Exp(r) }>(c)
if_outer; x:2x3, y:2x3, p:1b; f = Exp(x) | c = Squeeze(p) | d, out = If<then_branch = a () => (float[2,3] g, float[2,3] h) { g = Identity(f) h = Identity(y) }, else_branch = b () => (float[2,3] i, float[2,3] j) { i = Constant<value = float[2,3] {1, 2, 3, 4, 5, 6}>() j = Mul(i, f) }>(c)
scan; x:5x2x3, y:2x3, w:3; s, z = Scan<num_scan_inputs = 1, body = b (float[2,3] h, float[2,3] v) => (float[2,3] n, float[2,3] o) { k = Mul(h, w) n = Add(k, v) o = Exp(n) }>(y, x) | t = Constant<value = int64[1] {0}>() | a = ReduceMean<keepdims = 0>(z, t) | out = Add(a, s)
scan_axes; x:2x5x3, y:2x3; s, out = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1], scan_output_axes = [-1], scan_output_directions = [1], body = b (float[2,3] h, float[2,3] v) => (float[2,3] n, float[2,3] o) { n = Add(h, v) o = Tanh(n) }>(y, x)
scan_scalars; x:5, y:1; k = Squeeze(y) | s, z = Scan<num_scan_inputs = 1, body = b (float h, float v) => (float n, float o) { n = Add(h, v) o = Mul(n, n) }>(k, x) | out = Add(z, s)
loop_count; x:2x3, y:2x3; m = Constant<value = int64 {4}>() | v, out = Loop<body = b (int64 i, bool c, float[2,3] h) => (bool d, float[2,3] n, float[2,3] o) { d = Identity(c) f = Cast<to = 1>(i) g = Mul(h, f) n = Add(g, y) o = Mul(n, x) }>(m, , x)
loop_condition; x:2x3, y:2x3; m = Constant<value = int64 {9}>() | t = Constant<value = bool {1}>() | out = Loop<body = b (int64 i, bool c, float[2,3] h) => (bool d, float[2,3] n) { n = Add(h, y) s = ReduceSum<keepdims = 0>(n) k = Constant<value = float {9.0}>() d = Less(s, k) }>(m, t, x)
loop_limit; x:2x3, i:1i; m = Squeeze(i) | out = Loop<body = b (int64 j, bool c, float[2,3] h) => (bool d, float[2,3] n) { d = Identity(c) n = Add(h, h) }>(m, , x)
dft; x:2x6x5x2; a = Constant<value = int64 {1}>() | out = DFT(x, , a)
dft_real; x:2x7x1; out = DFT<onesided = 1>(x)
dft_cut; x:2x9x2; n = Constant<value = int64 {6}>() | a = Constant<value = int64 {1}>() | k = DFT(x, n, a) | m = Constant<value = int64 {8}>() | out = DFT<inverse = 1>(k, m, a)
dft_back; x:2x4x2; n = Constant<value = int64 {6}>() | out = DFT<inverse = 1>(x, n)
stft; x:2x20x1; s = Constant<value = int64 {3}>() | w = Constant<value = float[8] {0.1, 0.3, 0.7, 1.0, 1.0, 0.7, 0.3, 0.1}>() | out = STFT(x, s, w)
stft_whole; x:2x20x1; s = Constant<value = int64 {5}>() | n = Constant<value = int64 {7}>() | out = STFT<onesided = 0>(x, s, , n)
scatter_add; x:4x3, u:3x3; k = Constant<value = int64[3,3] {0, 1, 2, 0, -3, 1, 0, 1, 2}>() | a = ScatterElements<reduction = "add">(x, k, u) | l = Constant<value = int64[3,1] {3, -1, 0}>() | out = ScatterND<reduction = "add">(a, l, u)
scatter_add_given; x:3x3, i:2x3i, u:2x3; out = ScatterElements<reduction = "add">(x, i, u)
dynamic; x:5x7, w:7x4; q, s, z = DynamicQuantizeLinear(x) | r, t, y = DynamicQuantizeLinear(w) | m = MatMulInteger(q, r, z, y) | f = Cast<to = 1>(m) | k = Mul(s, t) | out = Mul(f, k)
halves16; x:1x4x7x8, w:6x4x3x3, b:6; x16 = Cast<to = 10>(x) | w16 = Cast<to = 10>(w) | b16 = Cast<to = 10>(b) | c = Conv(x16, w16, b16) | g = GlobalAveragePool(c) | r = Relu(g) | out = Cast<to = 1>(r)
loop_nested; x:2x3; m = Constant<value = int64 {3}>() | out = Loop<body = b (int64 i, bool c, float[2,3] h) => (bool d, float[2,3] n) { d = Identity(c) k = Constant<value = int64 {2}>() n = Loop<body = e (int64 j, bool p, float[2,3] q) => (bool r, float[2,3] s) { r = Identity(p) u = Add(q, x) s = Tanh(u) }>(k, , h) }>(m, , x)
"""
# Weights: inputs of these names, in graphs that have x too, are initializers.
_WEIGHTS = ("w", "r", "b", "s", "m", "v")
_KINDS = {"i": np.int64, "b": np.bool_}


def graphs() -> Iterator[tuple[str, onnx.ModelProto, dict[str, np.ndarray]]]:
    """Every graph by name, with its inputs."""
    for line in GRAPHS.strip().splitlines():
        name, signature, body = (part.strip() for part in line.split(";"))
        arrays = dict(_array(name, text.strip()) for text in signature.split(","))
        fixed = {k: v for k, v in arrays.items() if k in _WEIGHTS and "x" in arrays}
        yield name, _model(name, arrays, fixed, body), {k: v for k, v in arrays.items() if k not in fixed}


def _array(name: str, text: str) -> tuple[str, np.ndarray]:
    title, _, dims = text.partition(":")
    kind = _KINDS.get(dims[-1], np.float32)
    shape = tuple(int(d) for d in dims.rstrip("ib").split("x"))
    rng = np.random.default_rng(sum(f"{name}{title}".encode()))
    found = (
        rng.integers(0, 2 if kind is np.bool_ else 3, shape) if kind is not np.float32 else rng.random(shape)
    )
    return title, (found * 0.8 + 0.1 if kind is np.float32 else found).astype(kind)


def _model(name: str, arrays: dict, fixed: dict, body: str) -> onnx.ModelProto:
    model = onnx.ModelProto(ir_version=10)
    model.opset_import.add(domain="", version=24)
    graph = model.graph
    graph.name = name
    graph.node.extend(onnx.parser.parse_node(text.strip()) for text in body.split(" | "))
    for i, node in enumerate(graph.node):
        node.name = f"{node.op_type}_{i}"
    for title, array in arrays.items():
        tensor = onnx.numpy_helper.from_array(array, title)
        if title in fixed:
            graph.initializer.append(tensor)
            continue
        kind = graph.input.add(name=title).type.tensor_type
        kind.elem_type = tensor.data_type
        for size in array.shape:
            kind.shape.dim.add(dim_value=size)
    graph.output.add(name="out")
    return onnx.shape_inference.infer_shapes(model)
