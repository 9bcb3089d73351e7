"""Family, size and bound of each task, fixed before the first measurement, and the quotas that they meet.

size: `small` is under SMALL_BYTES of inputs, parameters and outputs together, `large` is LARGE_BYTES of them.
bound: of `product` the products take longer than the bytes by the roofline (roofline.py) at NOMINAL rates;
`memory` is the contrary; `launch` is small work, or short steps one after the other, where the host or latency
decides. A test holds every task against this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.speed.roofline import Peaks

LEAST_TASKS = 80
LEAST_PRODUCT_SHARE = 0.4
LEAST_NETWORKS = 12
LEAST_RECURRENT = 6
SMALL_BYTES = 16e6
LARGE_BYTES = (0.1 * 2**30, 4.0 * 2**30)
# of an H100, from its data sheet: bytes and operations a microsecond
NOMINAL = Peaks(3.35e6, {"float32": 67e6, "tf32": 494.7e6, "bfloat16": 989.4e6, "float16": 989.4e6})


@dataclass(frozen=True, slots=True)
class Quota:
    """One task's place."""

    family: str
    size: Literal["small", "large", ""]
    bound: Literal["product", "memory", "launch", ""]


FOREIGN = Quota("foreign", "", "")  # of another folder's tasks

QUOTAS: dict[str, Quota] = {
    "product_square_f32": Quota("product_f32", "large", "product"),
    "product_tall_f32": Quota("product_f32", "large", "product"),
    "product_both_transposed": Quota("product_f32", "large", "product"),
    "gram_matrix": Quota("product_f32", "small", "product"),
    "product_triple": Quota("product_f32", "small", "product"),
    "product_odd_sides": Quota("product_f32", "small", "product"),
    "matrix_vector": Quota("product_f32", "large", "memory"),
    "product_square_bf16": Quota("product_half", "large", "product"),
    "product_wide_bf16": Quota("product_half", "large", "product"),
    "decode_linear_bf16": Quota("product_half", "large", "memory"),
    "product_small_f16": Quota("product_half", "small", "product"),
    "batched_product": Quota("batched", "large", "product"),
    "grouped_einsum": Quota("batched", "large", "product"),
    "batched_outer": Quota("batched", "small", "launch"),
    "conv1d_wide_kernel": Quota("conv1d", "large", "product"),
    "conv1d_dilated_causal": Quota("conv1d", "small", "product"),
    "conv2d_three": Quota("conv2d", "large", "product"),
    "conv2d_five_strided": Quota("conv2d", "large", "product"),
    "conv2d_pointwise": Quota("conv2d", "large", "memory"),
    "conv2d_stem_channels_last": Quota("conv2d", "large", "memory"),
    "conv2d_three_small": Quota("conv2d", "small", "product"),
    "conv2d_grouped_dilated": Quota("conv2d", "small", "launch"),
    "conv3d_volume": Quota("conv3d", "large", "product"),
    "conv3d_clip_kernels": Quota("conv3d", "large", "product"),
    "conv3d_small": Quota("conv3d", "small", "product"),
    "upsample_conv2d": Quota("transposed", "large", "product"),
    "upsample_conv3d": Quota("transposed", "large", "memory"),
    "upsample_conv1d": Quota("transposed", "small", "launch"),
    "depthwise_five": Quota("depthwise", "large", "memory"),
    "separable_conv": Quota("depthwise", "large", "memory"),
    "depthwise_short_filter": Quota("depthwise", "small", "launch"),
    "layer_norm_wide": Quota("norm", "large", "memory"),
    "rms_norm_residual_bf16": Quota("norm", "large", "memory"),
    "batch_norm_images": Quota("norm", "large", "memory"),
    "group_norm_small": Quota("norm", "small", "launch"),
    "weight_standardised": Quota("norm", "small", "launch"),
    "max_pool_images": Quota("pool", "large", "memory"),
    "avg_pool_volumes": Quota("pool", "large", "memory"),
    "pyramid_pool": Quota("pool", "small", "launch"),
    "power_pool_signals": Quota("pool", "small", "launch"),
    "cumsum_rows": Quota("scan", "large", "memory"),
    "discounted_returns": Quota("scan", "large", "memory"),
    "cumulative_product": Quota("scan", "small", "launch"),
    "running_maximum": Quota("scan", "small", "launch"),
    "softmax_vocabulary": Quota("softmax", "large", "memory"),
    "softmax_channels": Quota("softmax", "large", "memory"),
    "softmax_masked_small": Quota("softmax", "small", "launch"),
    "loss_cross_entropy": Quota("loss", "large", "memory"),
    "loss_dice_focal": Quota("loss", "large", "memory"),
    "loss_distillation": Quota("loss", "large", "memory"),
    "loss_contrastive": Quota("loss", "small", "product"),
    "loss_quantiles": Quota("loss", "small", "launch"),
    "reduce_columns": Quota("reduction", "large", "memory"),
    "reduce_middle_moments": Quota("reduction", "large", "memory"),
    "reduce_nearest": Quota("reduction", "small", "product"),
    "reduce_logsumexp_small": Quota("reduction", "small", "launch"),
    "activation_gated": Quota("activation", "large", "memory"),
    "activation_mish_bf16": Quota("activation", "large", "memory"),
    "activation_fake_quantised": Quota("activation", "small", "launch"),
    "rotate_queries": Quota("position", "large", "memory"),
    "embed_tokens": Quota("position", "small", "launch"),
    "linear_gelu_residual": Quota("chain_product", "large", "product"),
    "gated_mlp_bf16": Quota("chain_product", "large", "product"),
    "product_softmax_rows": Quota("chain_product", "large", "product"),
    "product_scale_sum": Quota("chain_product", "large", "product"),
    "low_rank_adapter": Quota("chain_product", "small", "product"),
    "linear_norm_tanh": Quota("chain_product", "small", "product"),
    "conv_norm_relu_pool": Quota("chain_conv", "large", "product"),
    "conv_residual_block": Quota("chain_conv", "large", "product"),
    "conv3d_softplus_mean": Quota("chain_conv", "large", "product"),
    "upsample_bias_tanh": Quota("chain_conv", "large", "product"),
    "conv_minimum_small": Quota("chain_conv", "small", "product"),
    "squeeze_excite_small": Quota("chain_conv", "small", "product"),
    "attention_causal_bf16": Quota("attention", "large", "product"),
    "attention_by_hand": Quota("attention", "large", "product"),
    "attention_linear": Quota("attention", "large", "memory"),
    "attention_biased_small": Quota("attention", "small", "product"),
    "attention_shared_keys": Quota("attention", "small", "product"),
    "residual_network": Quota("network", "large", "product"),
    "plain_conv_network": Quota("network", "large", "product"),
    "inverted_residual_network": Quota("network", "large", "product"),
    "deep_mlp": Quota("network", "large", "product"),
    "token_mixer": Quota("network", "large", "product"),
    "segmentation_network": Quota("network", "large", "product"),
    "decoder_block_bf16": Quota("network", "large", "product"),
    "image_transformer": Quota("network", "large", "product"),
    "speech_encoder": Quota("network", "large", "product"),
    "super_resolution": Quota("network", "large", "product"),
    "dense_autoencoder": Quota("network", "small", "product"),
    "digit_network": Quota("network", "small", "launch"),
    "dense_connections": Quota("network", "small", "product"),
    "point_cloud_network": Quota("network", "small", "product"),
    "graph_network": Quota("network", "small", "product"),
    "state_space_block": Quota("network", "small", "launch"),
    "lstm_two_layers": Quota("recurrent", "large", "product"),
    "gru_wide": Quota("recurrent", "large", "product"),
    "lstm_language_model": Quota("recurrent", "large", "product"),
    "rnn_tanh": Quota("recurrent", "small", "launch"),
    "gru_both_directions": Quota("recurrent", "small", "launch"),
    "gated_unit_by_hand": Quota("recurrent", "small", "launch"),
    "lstm_cells_in_turn": Quota("recurrent", "small", "launch"),
    "conv_lstm_tagger": Quota("recurrent", "small", "launch"),
}
