"""Attention that never writes its scores: softmax(scale · q k' + mask) v by online softmax.

Three kernels share `attention_problem`: tensor cores for 16-bit floats (`attention_mma`), float32
arithmetic for all else (`attention_exact`), and for a few query rows a kernel that splits the keys
(`attention_decode`).

Source: Milakov and Gimelshein, 2018, arXiv:1805.02867 (online softmax); Dao, 2023, arXiv:2307.08691
(FlashAttention-2: loop order, deferred division); Dao et al., 2023, Flash-Decoding (split keys).
"""

from app.kernels.cuda.attention_exact import attention_exact
from app.kernels.cuda.attention_mma import attention_mma, has_tensor_cores
from app.kernels.cuda.attention_problem import Attention
from app.kernels.cuda.kernel import Launches


def attention(a: Attention) -> Launches:
    """The kernel for many query rows.

    y may be q where both lie alike: a block reads its query rows before it writes them, and no other
    block does. Tensor cores multiply float16 and bfloat16 of rows at multiples of 16 bytes, of a depth
    and width that is a multiple of 8 up to 160, with a mask up to 128; scores and sums are float32,
    probabilities are rounded to dtype. All else is computed in float32.

    Raises:
        ValueError: heads too wide for shared memory.
    """
    if not a.batch * a.rows * a.width:
        return Launches(())
    return attention_mma(a) if has_tensor_cores(a) else attention_exact(a)
