"""Types and storage types that MXNet 1.9.1 infers for operators that are planned only. Runs in its environment.

    python planned.py FILE

Writes a line {"op", "symbol", "shapes", "types"} a sample, then what it infers of storage types where all operands
are dense, or one is row_sparse or csr, as `training_graphs.py` does. Imports nothing of ours.
"""

import json
import re
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from training_graphs import inference, logged

S = mx.sym
STORED = {"default": {}, "row_sparse": {"__storage_type__": "1"}, "csr": {"__storage_type__": "2"}}
DTYPES = {"h": 2, "i": 4}  # float16, int32
# Operator; shapes of its operands, with a letter of other types than float32; attributes.
SAMPLES = """
erfinv; 2x3
_shuffle; 4x3
_linalg_potrf; 2x3x3
_linalg_potri; 2x3x3
_linalg_inverse; 2x3x3
_linalg_trsm; 2x3x3, 2x3x4
_linalg_gelqf; 2x3x5
_linalg_syevd; 2x3x3
_linalg_det; 2x3x3
_linalg_slogdet; 2x3x3
_contrib_index_copy; 4x3, 2, 2x3
_random_uniform; ; shape=(2, 3)
_random_normal; ; shape=(2, 3), dtype=float64
_random_gamma; ; shape=(2, 3)
_random_exponential; ; shape=(2, 3)
_random_poisson; ; shape=(2, 3)
_random_negative_binomial; ; shape=(2, 3)
_random_generalized_negative_binomial; ; shape=(2, 3)
_random_randint; ; low=0, high=5, shape=(2, 3)
_random_uniform_like; 2x3
_random_normal_like; 2x3
_random_gamma_like; 2x3
_random_exponential_like; 2x3
_random_poisson_like; 2x3
_random_negative_binomial_like; 2x3
_random_generalized_negative_binomial_like; 2x3
_sample_uniform; 2x3, 2x3; shape=(4,)
_sample_normal; 2x3, 2x3; shape=(4, 5)
_sample_gamma; 2x3, 2x3; shape=(4,)
_sample_exponential; 2x3; shape=(4,)
_sample_poisson; 2x3; shape=(4,)
_sample_negative_binomial; 2x3, 2x3; shape=(4,)
_sample_generalized_negative_binomial; 2x3, 2x3; shape=(4,)
_sample_multinomial; 2x3; shape=(4,)
_sample_multinomial; 2x3; get_prob=True
_sample_unique_zipfian; ; range_max=50, shape=(2, 3)
_random_pdf_uniform; 2x5, 2, 2
_random_pdf_normal; 2x5, 2, 2
_random_pdf_gamma; 2x5, 2, 2
_random_pdf_exponential; 2x5, 2
_random_pdf_poisson; 2x5, 2
_random_pdf_negative_binomial; 2x5, 2, 2
_random_pdf_generalized_negative_binomial; 2x5, 2, 2
_random_pdf_dirichlet; 2x5x3, 2x3
ROIPooling; 2x3x8x8, 5x5; pooled_size=(2, 3), spatial_scale=1
_contrib_ROIAlign; 2x12x8x8, 5x5; pooled_size=(2, 3), spatial_scale=1
_contrib_ROIAlign; 2x12x8x8, 5x5; pooled_size=(2, 3), spatial_scale=1, position_sensitive=True
_contrib_RROIAlign; 2x12x8x8, 5x6; pooled_size=(2, 3), spatial_scale=1
_contrib_PSROIPooling; 2x18x8x8, 5x5; spatial_scale=1, output_dim=2, pooled_size=3
_contrib_DeformablePSROIPooling; 2x18x8x8, 5x5, 5x2x3x3; spatial_scale=1, output_dim=2, pooled_size=3, group_size=3
Correlation; 2x3x9x10, 2x3x9x10; kernel_size=3, max_displacement=2, stride1=2, stride2=1, pad_size=3
_contrib_CTCLoss; 6x2x5, 2x3
_contrib_box_nms; 2x7x6
_contrib_bipartite_matching; 2x4x5; threshold=0.1
_contrib_MultiBoxPrior; 1x3x4x5; sizes=(0.5, 0.25), ratios=(1, 2, 0.5)
_contrib_MultiBoxTarget; 1x7x4, 2x3x5, 2x4x7
_contrib_MultiBoxDetection; 2x4x7, 2x28, 1x7x4
_contrib_Proposal; 1x24x5x6, 1x48x5x6, 1x3; rpn_post_nms_top_n=9
_contrib_MultiProposal; 2x24x5x6, 2x48x5x6, 2x3; rpn_post_nms_top_n=9
_contrib_DeformableConvolution; 2x4x8x9, 2x18x6x7, 6x4x3x3, 6; kernel=(3, 3), num_filter=6
_contrib_ModulatedDeformableConvolution; 2x4x8x9, 2x18x6x7, 2x9x6x7, 6x4x3x3, 6; kernel=(3, 3), num_filter=6
im2col; 2x4x8x9; kernel=(3, 3), stride=(2, 1), pad=(1, 0)
col2im; 2x36x42; output_size=(8, 9), kernel=(3, 3)
_contrib_hawkesll; 2x3, 3, 3, 2x3, 2x5, 2x5i, 2, 2
multi_lars; 3, 3, 3, 3; eta=0.1, eps=0.1
multi_sum_sq; 2x3, 4; num_arrays=2
_image_resize; 2x8x9x3; size=(4, 5)
_image_random_brightness; 8x9x3; min_factor=1, max_factor=2
_image_random_contrast; 8x9x3; min_factor=1, max_factor=2
_image_random_saturation; 8x9x3; min_factor=1, max_factor=2
_image_random_hue; 8x9x3; min_factor=1, max_factor=2
_image_random_color_jitter; 8x9x3; brightness=0, contrast=0, saturation=0, hue=0
_image_random_lighting; 8x9x3
_image_adjust_lighting; 8x9x3; alpha=(0, 0, 0)
_image_random_flip_left_right; 8x9x3
_image_random_flip_top_bottom; 8x9x3
_histogram; 2x3; bin_cnt=5, range=(0, 1)
"""


def made(op, shapes, attributes, kinds, dtypes):
    """A symbol of one operator on variables of these storage types; any operator has a name only in a file."""
    nodes = [
        {
            "op": "null",
            "name": f"x{i}",
            "inputs": [],
            "attrs": {"__shape__": str(tuple(shape)), "__dtype__": str(dtype), **STORED[kind]},
        }
        for i, (shape, kind, dtype) in enumerate(zip(shapes, kinds, dtypes))
    ]
    given = [[i, 0, 0] for i in range(len(nodes))]
    nodes.append({"op": op, "name": "op", "inputs": given, "attrs": attributes})
    return S.load_json(
        json.dumps({"nodes": nodes, "arg_nodes": list(range(len(given))), "heads": [[len(given), 0, 0]]})
    )


def samples():
    for line in SAMPLES.strip().splitlines():
        op, shapes, attributes = ([*(p.strip() for p in line.split(";")), "", ""])[:3]
        parts = [s.strip() for s in shapes.split(",") if s.strip()]
        found = [tuple(int(n) for n in s.rstrip("hi").split("x")) for s in parts]
        yield (
            op,
            found,
            [DTYPES.get(s[-1], 0) for s in parts],
            dict(re.findall(r"(\w+)=(\([^)]*\)|[^,\s]+)", attributes)),
        )


def main(file):
    with Path(file).open("w") as out:
        for op, shapes, dtypes, attributes in samples():
            symbol = made(op, shapes, attributes, ["default"] * len(shapes), dtypes)
            _, given, _ = symbol.infer_shape()
            _, types, _ = symbol.infer_type_partial()
            row = {"op": op, "symbol": json.loads(symbol.tojson()), "shapes": given}
            out.write(json.dumps({**row, "types": [np.dtype(t).name for t in types]}) + "\n")
            plain = ["default"] * len(shapes)
            others = [(i, k) for i, s in enumerate(shapes) for k in STORED if k != "csr" or len(s) == 2]
            every = [plain, *([*plain[:i], k, *plain[i + 1 :]] for i, k in others if k != "default")]
            for kinds in every:
                symbol = made(op, shapes, attributes, kinds, dtypes)
                executor, error, text = logged(symbol, grad_req="null")
                row = {"seed": f"{op} {kinds}", "symbol": json.loads(symbol.tojson())}
                if executor is None:
                    row |= {"refused": "op", "error": error[:300]}
                else:
                    nodes = inference(text)
                    row["nodes"] = [[n[1], n[3], n[4]] if n[0] else None for n in nodes]
                if executor is not None and len(row["nodes"]) != len(row["symbol"]["nodes"]):
                    continue  # nothing is logged of a graph without operands
                out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
