"""Other names that MXNet 1.9.1 has for its operators: files of older releases and of programs hold them."""

from collections.abc import Mapping

# (prefix of the other name, prefix of the operator, what follows both).
_PREFIXED = (
    (
        "_sparse_",
        "",
        """Embedding FullyConnected LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput
_contrib_round_ste _contrib_sign_ste abs adam_update add_n arccos arccosh arcsin arcsinh arctan
arctanh broadcast_add broadcast_div broadcast_mul broadcast_sub cast_storage cbrt ceil clip cos
cosh degrees dot elemwise_add elemwise_div elemwise_mul elemwise_sub exp expm1 fix floor
ftrl_update gamma gammaln log log10 log1p log2 make_loss mean negative norm radians relu rint
round rsqrt sgd_mom_update sgd_update sigmoid sign sin sinh slice sqrt square sum tan tanh trunc
where zeros_like""",
    ),
    (
        "linalg_",
        "_linalg_",
        """det extracttrian gelqf inverse maketrian potrf potri slogdet trsm""",
    ),
    (
        "random_",
        "_random_",
        """exponential gamma generalized_negative_binomial negative_binomial normal pdf_dirichlet
pdf_exponential pdf_gamma pdf_generalized_negative_binomial pdf_negative_binomial pdf_normal
pdf_poisson pdf_uniform poisson randint uniform""",
    ),
    (
        "sample_",
        "_sample_",
        """exponential gamma generalized_negative_binomial multinomial negative_binomial normal poisson
uniform""",
    ),
    (
        "_npx__image_",
        "_image_",
        """adjust_lighting crop flip_left_right flip_top_bottom normalize random_brightness
random_color_jitter random_contrast random_flip_left_right random_flip_top_bottom random_hue
random_lighting random_saturation resize to_tensor""",
    ),
    (
        "_npx_",
        "",
        """batch_dot erf erfinv gamma gammaln gather_nd log_softmax one_hot pick reshape_like shape_array
slice smooth_l1 softmax topk""",
    ),
    (
        "_npi_",
        "",
        """Custom argsort clip expand_dims gather_nd slice sort take tile""",
    ),
)
_OTHERS: Mapping[str, str] = {
    "Activation": "_npx_activation",
    "BatchNorm": "_npx_batch_norm",
    "BlockGrad": "_sparse_stop_gradient",
    "CTCLoss": "_contrib_ctc_loss ctc_loss",
    "Cast": "_npi_cast _npx_cast",
    "Concat": "_sparse_concat",
    "Convolution": "_npx_convolution",
    "Deconvolution": "_npx_deconvolution",
    "Dropout": "_npx_dropout",
    "Embedding": "_npx_embedding",
    "Flatten": "_npx_batch_flatten",
    "FullyConnected": "_npx_fully_connected",
    "LayerNorm": "_npx_layer_norm",
    "LeakyReLU": "_npx_leaky_relu",
    "Pooling": "_npx_pooling",
    "RNN": "_npx_rnn",
    "ROIPooling": "_npx_roi_pooling",
    "SequenceMask": "_npx_sequence_mask",
    "SwapAxis": "_npi_swapaxes",
    "_contrib_MultiBoxDetection": "_npx_multibox_detection",
    "_contrib_MultiBoxPrior": "_npx_multibox_prior",
    "_contrib_MultiBoxTarget": "_npx_multibox_target",
    "_contrib_arange_like": "_npx_arange_like",
    "_contrib_boolean_mask": "_npi_boolean_mask",
    "_contrib_box_nms": "_contrib_box_non_maximum_suppression",
    "_copyto": "_npi_copyto",
    "_cvimdecode": "_npi_cvimdecode",
    "_cvimread": "_npi_cvimread",
    "_cvimresize": "_npi_cvimresize",
    "_full": "_npi_full",
    "_histogram": "_npi_histogram",
    "_linalg_det": "_npi_det",
    "_linalg_inverse": "_npi_inv",
    "_linalg_slogdet": "_npi_slogdet",
    "_linspace": "_npi_linspace",
    "_np_any": "_np_sometrue",
    "_np_max": "_np_amax",
    "_np_min": "_np_amin",
    "_np_prod": "_np_product",
    "_npi_absolute": "_npi_abs",
    "_npx_nonzero": "_npi_nonzero",
    "_npx_reshape": "_npi_reshape",
    "_random_normal": "normal",
    "_random_randint": "_npi_random_randint",
    "_random_uniform": "uniform",
    "_ravel_multi_index": "ravel_multi_index",
    "_rnn_param_concat": "_npi_rnn_param_concat",
    "_scatter_set_nd": "_npi_scatter_set_nd",
    "_shuffle": "_npi_shuffle shuffle",
    "_slice_assign": "_crop_assign _npi_slice_assign",
    "_slice_assign_scalar": "_crop_assign_scalar _npi_slice_assign_scalar",
    "_split_v2": "_npi_split",
    "_unravel_index": "unravel_index",
    "add_n": "_sparse_ElementWiseSum",
    "broadcast_add": "_sparse_broadcast_plus",
    "broadcast_sub": "_sparse_broadcast_minus",
    "pick": "choose_element_0index",
    "repeat": "_np_repeat",
}
# Operators by the other names.
ALIASES: Mapping[str, str] = {
    **{other: op for op, names in _OTHERS.items() for other in names.split()},
    **{f"{other}{name}": f"{own}{name}" for other, own, names in _PREFIXED for name in names.split()},
}
