"""The arithmetic of a small Llama for the fast sampler: whole prompts once, then one token a row and step.

Rows of one prompt attend to one shared prefix cache and to their own columns, under one softmax. What a decode
step reads and writes lies in the fixed buffers of Rows, so that a step can be captured in a CUDA graph. Texts that
are known are read at once, as a tree.

Legend of shape suffixes: P prompts, N rows of a prompt, R = P * N rows, L prefix, C columns generated, or a tree's
nodes, D hidden, V vocabulary, H query heads, K key/value heads, G queries a key/value head, E size of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from cudal1_compile.generate.llama_weights import LayerWeights, LlamaWeights

DEAD = -1  # the row number of a place that is filled only to keep the batch rectangular


@dataclass
class Rows:
    """The rows of one stage. Everything a captured graph touches lies in these fixed buffers."""

    prefix: list[tuple[Tensor, Tensor]]  # a layer: keys and values, [P, K, L, E]
    prefix_mask_PL: Tensor  # float32, 0 or -inf beyond the prompt's own length
    length_R: Tensor  # tokens of each row's prompt
    suffix: list[tuple[Tensor, Tensor]]  # a layer: keys and values, [R, K, C, E]
    column: Tensor  # int64 [1], the column that this step writes
    token_R: Tensor  # what this step reads
    logits_RV: Tensor  # float32, what this step writes
    temperature_R: Tensor
    number: list[list[int]] = field(default_factory=list)  # [P][N], place in the caller's list, or DEAD

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.number), len(self.number[0])


def prefill(w: LlamaWeights, ids_PL: Tensor, caches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Reads whole prompts, fills their keys and values, returns the hidden states before the last norm.

    Prompts are padded on the right: a causal mask alone keeps the padding out of everything that counts.
    """
    turn = _rotation(w, torch.arange(ids_PL.shape[1], device=ids_PL.device))
    x_PLD = w.embed_VD[ids_PL]
    for layer, (keys, values) in zip(w.layers, caches, strict=True):
        q, k, v = _split_heads(w, layer, _norm(x_PLD, layer.input_norm_D, w.eps), turn)
        keys.copy_(k.transpose(1, 2))
        values.copy_(v.transpose(1, 2))
        x_PLD = _finish_layer(w, layer, x_PLD, q, keys, values, None)
    return x_PLD


def read_tree(
    w: LlamaWeights, ids_C: Tensor, depth_C: Tensor, sees_CC: Tensor, prefix: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """Logits behind each node of a tree of texts that follow one prompt: [C, V].

    depth_C: tokens between prompt and node. sees_CC: whether the second is the first or lies on its way from the
    root. prefix: the prompt's, as `prefill` fills it.
    """
    length = prefix[0][0].shape[2]
    mask_CX = torch.cat((sees_CC.new_ones(len(ids_C), length), sees_CC), 1)
    turn = _rotation(w, length + depth_C)
    x_1CD = w.embed_VD[ids_C][None]
    for layer, caches in zip(w.layers, prefix, strict=True):
        q, k, v = _split_heads(w, layer, _norm(x_1CD, layer.input_norm_D, w.eps), turn)
        keys, values = (torch.cat((c, y.transpose(1, 2)), 2) for c, y in zip(caches, (k, v), strict=True))
        x_1CD = _finish_layer(w, layer, x_1CD, q, keys, values, mask_CX)
    return project(w, x_1CD)[0]


def _finish_layer(
    w: LlamaWeights,
    layer: LayerWeights,
    x_PLD: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """From queries, keys and values on. mask: which keys a query sees; None: the causal one."""
    group = w.heads // w.kv_heads
    mixed = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        keys.repeat_interleave(group, 1),
        values.repeat_interleave(group, 1),
        mask,
        is_causal=mask is None,
    )
    x_PLD = x_PLD + layer.out(mixed.transpose(1, 2).reshape(x_PLD.shape[0], x_PLD.shape[1], -1))
    return x_PLD + _mlp(layer, x_PLD, w.eps)


def decode_step(w: LlamaWeights, r: Rows) -> None:
    """Reads token_R at `column`, writes logits_RV and moves on by one column; allocates but never waits."""
    columns = torch.arange(r.suffix[0][0].shape[2], device=r.column.device)
    # filled, not selected: a scalar that has to reach the device first cannot be captured
    suffix_mask_C = torch.zeros(columns.shape[0], dtype=torch.float32, device=columns.device)
    suffix_mask_C.masked_fill_(columns > r.column, float("-inf"))
    turn = _rotation(w, r.length_R + r.column)
    x_RD = w.embed_VD[r.token_R]
    for layer, prefix, suffix in zip(w.layers, r.prefix, r.suffix, strict=True):
        q_RHE, k_RKE, v_RKE = _split_heads(w, layer, _norm(x_RD, layer.input_norm_D, w.eps), turn)
        suffix[0].index_copy_(2, r.column, k_RKE[:, :, None])
        suffix[1].index_copy_(2, r.column, v_RKE[:, :, None])
        mixed_RX = _attend(q_RHE, prefix, suffix, r.prefix_mask_PL, suffix_mask_C)
        x_RD = x_RD + layer.out(mixed_RX)
        x_RD = x_RD + _mlp(layer, x_RD, w.eps)
    r.logits_RV.copy_(project(w, x_RD))
    r.column.add_(1)


def project(w: LlamaWeights, x_RD: Tensor) -> Tensor:
    """Logits in float32."""
    return w.head(_norm(x_RD, w.norm_D, w.eps)).float()


def _attend(
    q_RHE: Tensor,
    prefix: tuple[Tensor, Tensor],
    suffix: tuple[Tensor, Tensor],
    prefix_mask_PL: Tensor,
    suffix_mask_C: Tensor,
) -> Tensor:
    """One softmax over the shared prefix and the row's own columns."""
    p, kv, length, e = prefix[0].shape
    rows = q_RHE.shape[0]
    n, g = rows // p, q_RHE.shape[1] // kv
    scale = e**-0.5
    q_PKNGE = q_RHE.view(p, n, kv, g, e).transpose(1, 2).reshape(p, kv, n * g, e)
    before = (q_PKNGE @ prefix[0].transpose(2, 3)).float() * scale + prefix_mask_PL[:, None, None]
    before_RKGL = before.view(p, kv, n, g, length).transpose(1, 2).reshape(rows, kv, g, length)
    own_RKGC = (q_RHE.view(rows, kv, g, e) @ suffix[0].transpose(2, 3)).float() * scale + suffix_mask_C
    weight = torch.cat((before_RKGL, own_RKGC), -1).softmax(-1).to(q_RHE.dtype)
    on_prefix = weight[..., :length].reshape(p, n, kv, g, length).transpose(1, 2).reshape(p, kv, n * g, length)
    from_prefix = (on_prefix @ prefix[1]).view(p, kv, n, g, e).transpose(1, 2).reshape(rows, kv, g, e)
    return (from_prefix + weight[..., length:] @ suffix[1]).reshape(rows, -1)


def _split_heads(
    w: LlamaWeights, layer: LayerWeights, x: Tensor, turn: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries and keys, and values: [..., heads, E]."""
    every = layer.qkv(x).view(*x.shape[:-1], -1, w.head_dim)
    turned = _rotate(every[..., : w.heads + w.kv_heads, :], turn)
    return turned[..., : w.heads, :], turned[..., w.heads :, :], every[..., w.heads + w.kv_heads :, :]


def _rotation(w: LlamaWeights, position: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine for each position: [..., 1, E]."""
    angle = position.float()[..., None] * w.inverse_frequency_E2
    angle = torch.cat((angle, angle), -1)[..., None, :]
    return angle.cos().to(w.dtype), angle.sin().to(w.dtype)


def _rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    half = x.shape[-1] // 2
    swapped = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * turn[0] + swapped * turn[1]


def _norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return weight_D * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def _mlp(layer: LayerWeights, x: Tensor, eps: float) -> Tensor:
    gate, up = layer.gate_up(_norm(x, layer.mlp_norm_D, eps)).chunk(2, -1)
    return layer.down(F.silu(gate) * up)
