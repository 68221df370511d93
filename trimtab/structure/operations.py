"""The vocabulary: which ATen operations commute with a scale, which normalise, which mix.

Everything else in the analysis is structure; this file is the only list of names. An operation that is not
here is opaque: no tail is looked for behind it, and a matrix used by it needs an override. The lists may
therefore be incomplete but never optimistic, and what they promise is checked by numbers in `tails`.
"""

from __future__ import annotations

# f(c x) = c f(x) for every c: a rearrangement, a selection or a linear reduction of one tensor.
LINEAR = frozenset(
    [
        "view",
        "_unsafe_view",
        "reshape",
        "_reshape_alias",
        "t",
        "transpose",
        "permute",
        "movedim",
        "expand",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
        "narrow",
        "split",
        "split_with_sizes",
        "unsafe_split",
        "unsafe_split_with_sizes",
        "chunk",
        "unbind",
        "clone",
        "contiguous",
        "_to_copy",
        "to",
        "detach",
        "alias",
        "lift",
        "lift_fresh",
        "lift_fresh_copy",
        "index",
        "index_select",
        "gather",
        "flip",
        "roll",
        "unfold",
        "im2col",
        "col2im",
        "as_strided",
        "repeat",
        "repeat_interleave",
        "diagonal",
        "flatten",
        "neg",
        "sum",
        "mean",
        "cumsum",
        "tril",
        "triu",
        "constant_pad_nd",
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool3d",
        "adaptive_avg_pool1d",
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "upsample_linear1d",
        "pixel_shuffle",
        "pixel_unshuffle",
        "reflection_pad1d",
        "reflection_pad2d",
        "replication_pad2d",
        "view_as_real",
        "view_as_complex",
        "_neg_view",
        "alias_copy",
        "resolve_conj",
        "resolve_neg",
    ]
)

# Of these, the ones that cut a tensor up.
CUTS = frozenset(
    ["slice", "narrow", "split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk"]
)

# f(c x) = c f(x) for c > 0, which is all a multiplier needs.
POSITIVE = frozenset(
    [
        "relu",
        "leaky_relu",
        "abs",
        "max_pool2d_with_indices",
        "max_pool3d_with_indices",
        "adaptive_max_pool2d",
        "max_pool1d",
        "amax",
        "amin",
        "max",
        "min",
        "sort",
        "topk",
        "linalg_vector_norm",
        "norm",
        "rrelu_with_noise",
    ]
)

# Several tensors side by side or summed: homogeneous when every part is scaled.
JOINT = frozenset(
    [
        "cat",
        "stack",
        "index_add",
        "scatter_add",
        "index_put",
        "scatter",
        "slice_scatter",
        "select_scatter",
        "as_strided_scatter",
        "index_copy",
        "where",
        "masked_scatter",
        "scatter_reduce",
    ]
)

# Normalisations with their own gain and bias: name -> positions of gain and bias among the arguments.
NORMS = {
    "native_layer_norm": (2, 3),
    "native_batch_norm": (1, 2),
    "_native_batch_norm_legit": (1, 2),
    "_native_batch_norm_legit_no_training": (1, 2),
    "_batch_norm_with_update": (1, 2),
    "cudnn_batch_norm": (1, 2),
    "batch_norm": (1, 2),
    "native_group_norm": (1, 2),
    "_fused_rms_norm": (2, 2),
}

# Products of matrices: (left, right), the last dimension of left against the last but one of right.
MATMULS = frozenset(["mm", "bmm", "mv", "dot", "_grouped_mm", "grouped_mm_fallback", "matmul"])

# A product of three tensors, summed over some dimensions (nn.Bilinear: input, weight, input).
TRILINEAR = "_trilinear"

CONVOLUTIONS = frozenset({"convolution", "_convolution"})

TABLES = frozenset({"embedding", "_embedding_bag", "_embedding_bag_forward_only"})
LOOKUPS = TABLES | frozenset({"index", "index_select", "gather"})

# Elementwise with a parameter, though torch does not tag them so; positively homogeneous in their input.
ACTIVATIONS = frozenset({"prelu", "_prelu_kernel"})

POOLS = frozenset(name for name in LINEAR | POSITIVE if "pool" in name)

# The same numbers in another shape, when none are left out.
REARRANGED = (
    LINEAR
    - POOLS
    - frozenset(
        {"mean", "sum", "cumsum", "constant_pad_nd", "tril", "triu", "index", "gather", "index_select", "neg"}
    )
)

# Mix positions without a parameter.
STIRRING = POOLS | frozenset({"_fft_c2c", "_fft_r2c", "_fft_c2r", "cumsum", "roll"})

# Their result has the shape of an argument but none of its data.
FACTORIES = frozenset(
    [
        "empty_like",
        "zeros_like",
        "ones_like",
        "full_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "new_empty",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty_strided",
        "bernoulli",
        "zeros",
        "ones",
        "full",
        "empty",
        "arange",
        "scalar_tensor",
        "fill",
        "zero",
        "uniform",
        "normal",
        "exponential",
        "random",
        "randn",
        "rand",
        "randint",
        "randperm",
        "eye",
        "linspace",
        "tril_indices",
        "triu_indices",
    ]
)
