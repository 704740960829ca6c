"""One symbol an operator that `cases.py` has no family for, of a table. Runs in MXNet's environment.

An operand is its shape with a letter: none for numbers of (0.1, 0.9), n normal, i whole numbers below 3, l these in float32, w normal
with some that are no number, b boxes of two corners, s from -2.9 to 2.9 away from whole numbers, u bytes, h
float64. Widths of flipped images are even: MXNet leaves the middle of odd ones as the memory was.
"""

import json
import re

import mxnet as mx
import numpy as np

SAMPLES = """
gamma_positive; gamma; 2x30
gamma_any; gamma; 5x30s
gammaln_positive; gammaln; 2x30
gammaln_any; gammaln; 5x30s
nansum; nansum; 2x3x4w; axis=1
nansum_all; nansum; 2x3x4w
nanprod; nanprod; 2x3x4w; axis=(0, 2), keepdims=True
moments; moments; 2x3x4; axes=(0, 2)
moments_kept; moments; 2x3x4; axes=(1,), keepdims=True
quadratic; _contrib_quadratic; 2x3; a=2, b=0.5, c=-1
all_finite; all_finite; 2x3
all_finite_not; all_finite; 4x5w
multi_all_finite; multi_all_finite; 2x3, 4; num_arrays=2
khatri_rao; khatri_rao; 2x3, 4x3, 5x3; num_args=3
cross_entropy; softmax_cross_entropy; 4x3, 4l
square_sum; _square_sum; 4x3r; axis=1
multiplier; _contrib_gradientmultiplier; 2x3; scalar=0.5
svm; SVMOutput; 4x3, 4l; margin=0.5
sign_ste; _contrib_sign_ste; 2x3n
round_ste; _contrib_round_ste; 2x3n
linalg_gemm; _linalg_gemm; 2x3x4, 2x5x4, 2x3x5; transpose_b=True, alpha=0.5, beta=2
linalg_syrk; _linalg_syrk; 2x3x4; alpha=0.5
linalg_syrk_turned; _linalg_syrk; 2x3x4; transpose=True
linalg_trmm; _linalg_trmm; 2x3x3, 2x3x4
linalg_trmm_right; _linalg_trmm; 2x4x4, 2x3x4; rightside=True, transpose=True, alpha=2
linalg_trmm_upper; _linalg_trmm; 3x3, 3x4; lower=False
linalg_extractdiag; _linalg_extractdiag; 2x4x4; offset=1
linalg_extractdiag_below; _linalg_extractdiag; 4x4; offset=-2
linalg_makediag; _linalg_makediag; 2x3
linalg_makediag_above; _linalg_makediag; 2x3; offset=2
linalg_makediag_below; _linalg_makediag; 2x3; offset=-1
linalg_sumlogdiag; _linalg_sumlogdiag; 2x3x3
linalg_sumlogdiag_one; _linalg_sumlogdiag; 3x3
diag_made; diag; 3; k=1
diag_taken; diag; 4x5; k=-1
diag_axes; diag; 2x3x4; axis1=0, axis2=2
grid_affine; GridGenerator; 2x6n; transform_type=affine, target_shape=(3, 4)
grid_warp; GridGenerator; 2x2x3x4n; transform_type=warp
sampler; BilinearSampler; 2x3x5x6, 2x2x4x3n
transformer; SpatialTransformer; 2x3x5x6, 2x6n; target_shape=(4, 7), transform_type=bilinear, transform_type=affine, sampler_type=bilinear
crop_like; Crop; 1x2x7x8, 1x2x3x4; num_args=2, offset=(1, 2)
crop_center; Crop; 1x2x7x8; num_args=1, h_w=(3, 4), center_crop=True
image_left_right; _image_flip_left_right; 4x6x3
image_top_bottom; _image_flip_top_bottom; 4x5x3
image_tensor; _image_to_tensor; 4x5x3u
image_tensor_batch; _image_to_tensor; 2x4x5x3u
image_normalize; _image_normalize; 3x4x5; mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)
image_normalize_one; _image_normalize; 2x3x4x5; mean=(0.1,), std=(0.5,)
image_crop; _image_crop; 6x7x3; x=1, y=2, width=4, height=3
box_iou; _contrib_box_iou; 5x4b, 3x4b
box_iou_center; _contrib_box_iou; 2x5x4, 3x4; format=center
eye; _eye; ; N=3, M=4, k=1
linspace; _linspace; ; start=0.5, stop=2, num=7
linspace_open; _linspace; ; start=0.5, stop=2, num=7, endpoint=False
ravel; _ravel_multi_index; 2x5i; shape=(3, 4)
unravel; _unravel_index; 5i; shape=(3, 4)
scatter_plus; _scatter_plus_scalar; 2x3; scalar=2
scatter_minus; _scatter_minus_scalar; 2x3; scalar=2
slice_assign; _slice_assign; 4x5, 2x5; begin=(1,), end=(3,)
slice_assign_step; _slice_assign; 4x6, 2x3; begin=(0, 0), end=(4, 6), step=(2, 2)
slice_assign_scalar; _slice_assign_scalar; 4x5; scalar=7, begin=(1, None), end=(3, 2)
index_array; _contrib_index_array; 2x3
index_array_axes; _contrib_index_array; 2x3x4; axes=(2, 0)
allclose; _contrib_allclose; 2x3, 2x3
batch_norm_relu; _contrib_BatchNormWithReLU; 2x3x4x5n, 3, 3n, 3, 3; fix_gamma=False
nan_to_num; _npi_nan_to_num; 4x5w; copy=True, nan=0.5
amp_multicast; amp_multicast; 2x3, 2x3; num_outputs=2
"""
NUMPY = """
add; 2x3, 3
subtract; 2x3, 2x1
multiply; 2x3, 3
true_divide; 2x3, 3
mod; 2x3, 3
power; 2x3, 3
hypot; 2x3, 3
copysign; 2x3, 3n
arctan2; 2x3, 3
equal; 2x3, 2x3
not_equal; 2x3, 2x3
greater; 2x3, 2x3
greater_equal; 2x3, 2x3
less; 2x3, 2x3
less_equal; 2x3, 2x3
subtract_scalar; 2x3; scalar=0.4
rsubtract_scalar; 2x3; scalar=0.4
multiply_scalar; 2x3; scalar=0.4
true_divide_scalar; 2x3; scalar=0.4
rtrue_divide_scalar; 2x3; scalar=0.4
rmod_scalar; 2x3; scalar=0.4
rpower_scalar; 2x3; scalar=0.4
add_scalar; 2x3; scalar=0.4
mod_scalar; 2x3; scalar=0.4
power_scalar; 2x3; scalar=1.4
maximum_scalar; 2x3; scalar=0.4
minimum_scalar; 2x3; scalar=0.4
less_scalar; 2x3; scalar=0.4
less_equal_scalar; 2x3; scalar=0.4
greater_scalar; 2x3; scalar=0.4
greater_equal_scalar; 2x3; scalar=0.4
equal_scalar; 2x3i; scalar=1
not_equal_scalar; 2x3i; scalar=1
absolute; 2x3n
negative; 2x3n
reciprocal; 2x3
sign; 2x3n
rint; 2x9n
around; 2x9n; decimals=1
ceil; 2x3n
floor; 2x3n
trunc; 2x3n
fix; 2x3n
square; 2x3n
sqrt; 2x3
cbrt; 2x3
exp; 2x3
expm1; 2x3
log; 2x3
log10; 2x3
log2; 2x3
log1p; 2x3
logical_not; 2x3i
sin; 2x3
cos; 2x3
tan; 2x3
arcsin; 2x3
arccos; 2x3
arctan; 2x3
sinh; 2x3
cosh; 2x3
tanh; 2x3
arcsinh; 2x3
arctanh; 2x3
degrees; 2x3
radians; 2x3
isnan; 4x5w
isfinite; 4x5w
mean; 2x3x4; axis=(0, 2)
mean_all; 2x3x4
std; 2x3x4; axis=1
var; 2x3x4; axis=1, ddof=1, keepdims=True
argmax; 2x3x4; axis=1
argmin; 2x3x4; axis=1, keepdims=True
concatenate; 2x3, 2x4; num_args=2, axis=1
stack; 2x3, 2x3; num_args=2, axis=1
vstack; 2x3, 4x3; num_args=2
hstack; 2x3, 2x4; num_args=2
broadcast_to; 2x1; shape=(4, 2, 3)
where; 2x3i, 2x3, 3
matmul; 2x3x4, 4x5
zeros; ; shape=(2, 3)
ones; ; shape=(2, 3)
arange; ; start=1, stop=7, step=2
full_like; 2x3; fill_value=2.5
eye; ; N=3, M=4, k=-1
identity; ; shape=(3, 3)
tril; 3x4; k=1
flip; 2x3x4; axis=(1,)
einsum; 2x3, 3x4; num_args=2, subscripts=ij\\,jk->ik
tensordot; 2x3x4, 4x3x5; a_axes_summed=(1, 2), b_axes_summed=(1, 0)
tensordot_int_axes; 2x3x4, 4x5; axes=1
pad; 2x3; pad_width=((1, 0), (2, 1)), mode=constant, constant_value=0.5
norm; 2x3x4; ord=2, axis=(1,)
diff; 2x5; n=1, axis=1
nan_to_num; 4x5w; copy=True, nan=0.5
"""
PLAIN = """
_np_sum; 2x3x4; axis=(0, 2)
_np_sum; 2x3x4
_np_max; 2x3x4; axis=(1,), keepdims=True
_np_min; 2x3x4; axis=(1,)
_np_prod; 2x3x4; axis=(2,)
_np_all; 2x3i; axis=(1,)
_np_any; 2x3i; axis=(1,)
_np_copy; 2x3
_np_transpose; 2x3x4; axes=(2, 0, 1)
_np_transpose; 2x3x4
_np_reshape; 2x3x4; newshape=(4, -1)
_np_squeeze; 2x1x4; axis=(1,)
_np_moveaxis; 2x3x4; source=(0,), destination=(2,)
_np_roll; 2x5; shift=(2,), axis=(1,)
_np_dot; 2x3, 3x4
_np_atleast_2d; 3; num_args=1
_np_diag; 3; k=1
_np_diag; 4x5; k=-1
_np_trace; 4x5; offset=1
_npx_relu; 2x3n
_npx_sigmoid; 2x3n
"""
DTYPES = {"i": "int32", "u": "uint8", "h": "float64"}
NUMBERS = {"float32": "0", "float64": "1", "uint8": "3", "int32": "4"}


def operand(text, random):
    """An array, and whether it is row_sparse."""
    kind = text[-1] if text[-1].isalpha() else ""
    shape = tuple(int(n) for n in text.rstrip("nilwbsuhr").split("x"))
    if kind == "n":
        found = random.standard_normal(shape)
    elif kind in ("i", "l"):
        found = random.integers(0, 3, shape)
    elif kind == "u":
        found = random.integers(0, 256, shape)
    elif kind == "w":
        found = random.random(shape)
        found[random.random(shape) < 0.3] = np.nan
    elif kind == "b":
        found = np.sort(random.random((*shape[:-1], 2, 2)), axis=-2).reshape(shape)
    elif kind == "s":
        found = random.integers(-3, 3, shape) + 0.1 + 0.8 * random.random(shape)
    else:
        found = random.random(shape) * 0.8 + 0.1
    return found.astype(DTYPES.get(kind, "float32")), kind == "r"


def made(op, arrays, attributes):
    """A symbol of one operator; any has a name only in a file."""
    nodes = []
    for i, (array, is_sparse) in enumerate(arrays):
        told = {"__shape__": str(array.shape), "__dtype__": NUMBERS[array.dtype.name]}
        if is_sparse:
            told["__storage_type__"] = "1"
        nodes.append({"op": "null", "name": f"x{i}", "inputs": [], "attrs": told})
    given = [[i, 0, 0] for i in range(len(nodes))]
    nodes.append({"op": op, "name": "op", "inputs": given, "attrs": attributes})
    return mx.sym.load_json(
        json.dumps({"nodes": nodes, "arg_nodes": list(range(len(given))), "heads": [[len(given), 0, 0]]})
    )


def rows():
    """(name, operator, operands, attributes) of all tables."""
    for line in SAMPLES.strip().splitlines():
        name, *rest = (p.strip() for p in line.split(";"))
        yield name, *rest
    for line in NUMPY.strip().splitlines():
        op, *rest = (p.strip() for p in line.split(";"))
        yield f"npi_{op}", f"_npi_{op.removesuffix('_all')}", *rest
    for i, line in enumerate(PLAIN.strip().splitlines()):
        op, *rest = (p.strip() for p in line.split(";"))
        yield f"{op.strip('_')}_{i}", op, *rest


def operators():
    """(name, symbol, inputs, parameters) of every sample."""
    for name, op, operands, *rest in rows():
        random = np.random.default_rng(sum(name.encode()))
        arrays = [operand(p.strip(), random) for p in operands.split(",") if p.strip()]
        found = re.findall(r"(\w+)=(\(\(.*?\)\)|\([^)]*\)|(?:\\,|[^,\s])+)", rest[0] if rest else "")
        symbol = made(op, arrays, {k: v.replace("\\,", ",") for k, v in found})
        yield name, symbol, {f"x{i}": array for i, (array, _) in enumerate(arrays)}, {}
