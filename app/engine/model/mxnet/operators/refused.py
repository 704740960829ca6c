"""Operators of MXNet 1.9.1 that are neither expressed in ONNX nor planned, by the reason."""

from collections.abc import Mapping

REASONS: Mapping[str, str] = {
    "it changes its operands in place, as an optimizer does; a graph of values does not say that": """
        _adamw_update _contrib_group_adagrad_update _mp_adamw_update _multi_adamw_update
        _multi_lamb_update _multi_mp_adamw_update _multi_mp_lamb_update _sparse_adagrad_update
        adam_update ftml_update ftrl_update lamb_update_phase1 lamb_update_phase2
        mp_lamb_update_phase1 mp_lamb_update_phase2 mp_nag_mom_update mp_sgd_mom_update
        mp_sgd_update multi_mp_sgd_mom_update multi_mp_sgd_update multi_sgd_mom_update
        multi_sgd_update nag_mom_update preloaded_multi_mp_sgd_mom_update
        preloaded_multi_mp_sgd_update preloaded_multi_sgd_mom_update preloaded_multi_sgd_update
        reset_arrays rmsprop_update rmspropalex_update sgd_mom_update sgd_update signsgd_update
        signum_update _npi_share_memory""",
    "the shape of its result depends on the data": """
        _contrib_boolean_mask _contrib_dgl_adjacency _contrib_dgl_csr_neighbor_non_uniform_sample
        _contrib_dgl_csr_neighbor_uniform_sample _contrib_dgl_graph_compact _contrib_dgl_subgraph
        _npi_delete _npi_unique _npx_nonzero _npi_bincount""",
    "it reads or writes images in files, on the host": """
        _cvcopyMakeBorder _cvimdecode _cvimread _cvimresize _imdecode""",
    "MXNet has it on GPUs only": "_contrib_fft _contrib_ifft _contrib_count_sketch",
    "it is made by programs, and is in no file": """
        _CachedOp _CachedOpThreadSafe _CustomFunction _NDArray _Native _NoGradient _copyto
        _set_value _onehot_encode _npx_constraint_check _zeros_without_dtype
        _contrib_calibrate_entropy fill_element_0index""",
    "it draws numbers of the NumPy interface; those of `_random_*` and `_sample_*` are planned": """
        _npi_bernoulli _npi_choice _npi_exponential _npi_gamma _npi_gumbel _npi_logistic
        _npi_multinomial _npi_normal _npi_normal_n _npi_pareto _npi_powerd _npi_rayleigh
        _npi_uniform _npi_uniform_n _npi_weibull""",
    "no row is written yet": """
        _contrib_box_decode _contrib_box_encode _contrib_edge_id _contrib_getnnz
        _contrib_quantize_asym _contrib_quantized_elemwise_mul _contrib_quantized_rnn
        _linalg_extracttrian _linalg_maketrian _np_atleast_3d _np_diagflat _np_diagonal
        _npi_average _npi_bitwise_and _npi_bitwise_and_scalar _npi_bitwise_not _npi_bitwise_or
        _npi_bitwise_or_scalar _npi_bitwise_xor _npi_bitwise_xor_scalar _npi_blackman
        _npi_boolean_mask_assign_scalar _npi_boolean_mask_assign_tensor _npi_cholesky
        _npi_column_stack _npi_diag_indices_from _npi_dsplit _npi_dstack _npi_ediff1d _npi_eig
        _npi_eigh _npi_eigvals _npi_eigvalsh _npi_hamming _npi_hanning _npi_hsplit _npi_indices
        _npi_insert_scalar _npi_insert_slice _npi_insert_tensor _npi_lcm _npi_lcm_scalar
        _npi_ldexp _npi_ldexp_scalar _npi_logspace _npi_percentile _npi_pinv
        _npi_pinv_scalar_rcond _npi_polyval _npi_rldexp_scalar _npi_rot90 _npi_solve _npi_svd
        _npi_tensorinv _npi_tensorsolve _npi_where_lscalar _npi_where_rscalar _npi_where_scalar2
        _npx_reshape _scatter_set_nd _sg_mkldnn_selfatt_qk _sg_mkldnn_selfatt_valatt""",
}
REFUSED: Mapping[str, str] = {name: reason for reason, names in REASONS.items() for name in names.split()}
