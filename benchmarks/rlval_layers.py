"""The layers that `rlval` is cut from (rlval_cut.py): of models as published, other than the families'.

A row is a function over tensors and their shapes as in family_cases.py; B is the batch, `64B` is 64 batches.
What gets a gradient has a *, and then the backward graph is cut.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from benchmarks.family_cases import Row, bn_add_relu, bn_relu, conv, depthwise, linear, unbiased, up
from benchmarks.family_reductions import affine_instance_norm, avg_pool, channel_norm, group_norm, max_pool
from benchmarks.family_rows import capped, charbonnier, dice, distilled, focal, layer_norm, rms_norm, standardised

gelu = linear(F.gelu)
gated = lambda x, w, y: F.silu(F.linear(x, w)) * y  # noqa: E731
residual = linear(lambda x, skip: x + skip)
scores = lambda q, k: q @ k.mT * 0.125  # noqa: E731
relu_conv = conv(1, 1, then=lambda x: x.relu())
silu_conv = conv(1, 1, then=F.silu)
N64, N128 = (f" {n} {n} {n} {n}" for n in (64, 128))  # what a norm takes

LAYERS: dict[str, tuple[Row, ...]] = {
    "product_f32": (
        ("gpt2-medium queries", linear(), "128Bx1024 1024x1024 1024"),
        ("whisper-large up, gelu", gelu, "60Bx1280 5120x1280 5120"),
        ("vit-l/16 down, residual", residual, "197Bx4096 1024x4096 1024 197Bx1024"),
        ("gpt2-xl down", linear(), "64Bx6400 1600x6400 1600"),
        ("dlrm top", linear(lambda x: x.relu()), "512Bx480 1024x480 1024"),
        ("esm-2 3b queries", linear(), "64Bx2560 2560x2560 2560"),
        ("bert-large up, gradient of the weight", linear(), "128Bx1024 4096x1024*"),
        ("nerf trunk", linear(lambda x: x.relu()), "4096Bx256 256x256 256"),
    ),
    "product_tf32": (
        ("swin-l stage 3 up, gelu", gelu, "196Bx768 3072x768 3072"),
        ("dinov2-g down", linear(), "257Bx4096 1536x4096 1536"),
        ("deit3-h queries, keys, values", linear(), "197Bx1280 3840x1280 3840"),
        ("sam-h down, residual", residual, "1024Bx5120 1280x5120 1280 1024Bx1280"),
        ("mixer-b/16 channels, gelu", gelu, "196Bx768 3072x768 3072"),
        ("wav2vec2-large up, gelu", gelu, "249Bx1024 4096x1024 4096"),
        ("esm-2 650m up, gradient of the input", linear(), "128Bx1280* 5120x1280"),
        ("graph layer", torch.mm, "2048Bx500 500x256"),
    ),
    "product_half": (
        ("llama-2-13b gate", gated, "64Bx5120:bf16 13824x5120:bf16 64Bx13824:bf16"),
        ("mistral-7b down, residual", residual, "64Bx14336:bf16 4096x14336:bf16 4096:bf16 64Bx4096:bf16"),
        ("qwen2-7b queries", linear(), "128Bx3584:bf16 3584x3584:bf16 3584:bf16"),
        ("phi-3 output", linear(), "128Bx3072:bf16 3072x3072:bf16"),
        ("gemma-2b up, few tokens", linear(), "Bx2048:bf16 16384x2048:bf16"),
        ("opt-6.7b up, relu", linear(lambda x: x.relu()), "64Bx4096:f16 16384x4096:f16 16384:f16"),
        ("sdxl queries", linear(), "1024Bx640:f16 640x640:f16"),
        (
            "flux up, gelu",
            linear(lambda x: F.gelu(x, approximate="tanh")),
            "256Bx3072:bf16 12288x3072:bf16 12288:bf16",
        ),
        ("deberta-large down, gradient of the weight", linear(), "128Bx4096:bf16 1024x4096:bf16*"),
        ("clip-g queries", linear(), "257Bx1664:f16 1664x1664:f16 1664:f16"),
        ("mamba-2.8b in", linear(), "256Bx2560:bf16 10240x2560:bf16"),
    ),
    "batched": (
        ("bloom scores", scores, "16Bx1024x128:bf16 16Bx1024x128:bf16"),
        ("vit-l/16 scores", scores, "16Bx197x64 16Bx197x64"),
        ("whisper values", torch.bmm, "20Bx448x1500:f16 20Bx1500x64:f16"),
        ("t5 scores, bias", lambda q, k, b: q @ k.mT + b, "Bx12x384x64 Bx12x384x64 12x384x384"),
        ("experts of deepseek-moe", torch.bmm, "8x32Bx2048:bf16 8x2048x1408:bf16"),
        ("linear attention, keys by values", lambda k, v: k.mT @ v, "8Bx2048x64 8Bx2048x64"),
        ("monarch blocks", torch.bmm, "16x256Bx96 16x96x96"),
        ("dlrm interactions", lambda x: x @ x.mT * 1.0, "256Bx27x128:f16"),
        ("triangle update", torch.bmm, "Bx384x384:bf16 Bx384x384:bf16"),
    ),
    "conv1d": (
        ("wav2vec2 features 2", conv(2), "Bx512x3199 512x512x3"),
        ("whisper stem, gelu", conv(1, 1, then=F.gelu), "Bx80x3000 768x80x3 768"),
        (
            "tcn, dilation 4, relu",
            conv(1, 8, 4, then=lambda x: x[..., :-8].relu()),
            "Bx150x1024 150x150x3 150",
        ),
        ("hifi-gan block", conv(1, 3, 1), "Bx128x8192 128x128x7 128"),
        ("encodec encoder, stride 4", conv(4, 2), "Bx64x12000 128x64x8 128"),
        ("enformer tower", conv(1, 2), "Bx768x1536 896x768x5 896"),
    ),
    "conv2d": (
        ("wide resnet50 3x3", conv(1, 1), "Bx256x28x28 256x256x3x3"),
        ("vgg11 conv2", relu_conv, "Bx64x112x112 128x64x3x3 128"),
        ("resnet101 layer3 1x1", conv(), "Bx1024x14x14 256x1024x1x1"),
        ("resnet34 layer3, stride 2", conv(2, 1), "Bx128x28x28 256x128x3x3"),
        ("alexnet stem", conv(4, 2, then=lambda x: x.relu()), "Bx3x224x224 64x3x11x11 64"),
        ("darknet53 3x3, half", conv(1, 1), "Bx128x52x52:f16 256x128x3x3:f16"),
        ("regnety 3x3 groups", conv(1, 1, 1, 8), "Bx448x28x28 448x56x3x3"),
        ("sd vae decoder 3x3, half", conv(1, 1), "Bx256x128x128:bf16 256x256x3x3:bf16 256:bf16"),
        ("vit-b/16 patches", conv(16), "Bx3x224x224 768x3x16x16 768"),
        ("pspnet rate 4", conv(1, 4, 4), "Bx512x60x60 512x512x3x3"),
        ("googlenet 5x5", conv(1, 2), "Bx32x28x28 96x32x5x5 96"),
        ("edsr body", conv(1, 1), "Bx64x96x96 64x64x3x3 64"),
    ),
    "conv3d": (
        ("slow 1x3x3", conv(1, (0, 1, 1)), "Bx128x8x28x28 128x128x1x3x3"),
        ("r3d-18 layer1", conv(1, 1), "Bx64x16x56x56 64x64x3x3x3"),
        (
            "nnunet encoder 2, leaky relu",
            conv(2, 1, then=lambda x: F.leaky_relu(x, 0.01)),
            "Bx32x48x96x96 64x32x3x3x3 64",
        ),
        ("s3d temporal", conv(1, (1, 0, 0)), "Bx192x16x28x28 192x192x3x1x1"),
        ("video vae 3x3x3, half", conv(1, 1), "Bx128x9x64x64:bf16 128x128x3x3x3:bf16 128:bf16"),
        ("vivit tubelets", conv((2, 16, 16)), "Bx3x32x224x224 768x3x2x16x16 768"),
    ),
    "conv_transposed": (
        ("dcgan 32 to 64, tanh", up(2, 1, then=torch.tanh), "Bx64x32x32 64x3x4x4"),
        ("stylegan 64 to 128", up(2, 1, 1), "Bx256x64x64 256x128x3x3"),
        ("segnet up 2", up(2, 1), "Bx128x56x56 128x64x4x4 64"),
        ("simple baselines pose head", up(2, 1), "Bx256x16x12 256x256x4x4"),
        ("nnunet up 2", up(2), "Bx128x24x48x48 128x64x2x2x2"),
        ("encodec decoder, stride 5", up(5, 3, 1), "Bx256x1500 256x128x10 128"),
        ("mae-unet up, relu", up(2, then=lambda x: x.relu()), "Bx256x56x56 256x128x2x2 128"),
        ("fcn-8s last", up(8, 4), "Bx21x70x70 21x21x16x16"),
    ),
    "conv_depthwise": (
        ("mobilenet-v2 32 channels", depthwise(), "Bx32x112x112 32x1x3x3"),
        ("efficientnet-b3 5x5", depthwise(1, 2), "Bx576x19x19 576x1x5x5"),
        ("convnext-s stage 2 7x7", depthwise(1, 3), "Bx192x28x28 192x1x7x7 192"),
        ("mnasnet stride 2, half", depthwise(2), "Bx72x112x112:f16 72x1x3x3:f16"),
        ("conformer-l 31", depthwise(1, 15), "Bx512x750 512x1x31 512"),
        ("movinet 3x3x3", depthwise(), "Bx96x8x32x32 96x1x3x3x3"),
    ),
    "conv_chain": (
        ("resnet152 layer2, norm, relu", unbiased(1, 1, then=bn_relu), "Bx128x28x28 128x128x3x3" + N128),
        (
            "resnet34 layer1, norm, residual, relu",
            unbiased(1, 1, then=bn_add_relu),
            "Bx64x56x56 64x64x3x3 Bx64x56x56" + N64,
        ),
        ("densenet 1x1, norm, relu", unbiased(then=bn_relu), "Bx256x28x28 128x256x1x1" + N128),
        ("sd unet, silu, half", silu_conv, "Bx320x64x64:f16 320x320x3x3:f16 320:f16"),
        ("yolo-v5 block, silu", silu_conv, "Bx128x40x40 128x128x3x3 128"),
        (
            "esrgan, leaky relu, residual",
            conv(1, 1, then=lambda x, y: F.leaky_relu(x, 0.2) * 0.2 + y),
            "Bx64x128x128 64x64x3x3 64 Bx64x128x128",
        ),
        ("mask head, relu", relu_conv, "Bx256x14x14 256x256x3x3 256"),
        (
            "unet++ norm, relu, half",
            unbiased(1, 1, then=bn_relu),
            "Bx64x128x128:f16 64x64x3x3:f16" + N64.replace("64", "64:f16"),
        ),
        ("c3d relu", relu_conv, "Bx256x4x28x28 256x256x3x3x3 256"),
    ),
    "conv_gradient": (
        ("resnet50 layer2 1x1, weight", conv(), "Bx512x28x28 128x512x1x1*"),
        ("resnet34 layer2, input", conv(1, 1), "Bx128x28x28* 128x128x3x3"),
        ("vgg19 conv4, weight", conv(1, 1), "Bx256x28x28 512x256x3x3*"),
        ("unet encoder 2, input", conv(1, 1), "Bx64x128x128* 128x64x3x3"),
    ),
    "norm": (
        ("llama-2-13b rms norm", rms_norm, "128Bx5120:bf16 5120:bf16"),
        ("vit-l layer norm", layer_norm, "197Bx1024 1024 1024"),
        ("convnext-l channels", channel_norm, "Bx192x56x56 192 192"),
        ("sdxl group norm, silu", group_norm(32, True), "Bx640x64x64 640 640"),
        ("pix2pix instance norm", affine_instance_norm, "Bx128x128x128 128 128"),
        ("wave standardised", standardised, "4Bx16000"),
    ),
    "softmax": (
        ("bart vocabulary", lambda x: x.log_softmax(-1), "16Bx50265"),
        ("vit-l/16 attention", lambda x: (x * 0.125).softmax(-1), "Bx16x197x197"),
        ("gemma-2 cap", capped, "Bx8x512x512 1x1x512x512"),
        ("segmentation classes", lambda x: x.softmax(1), "Bx150x128x128"),
    ),
    "pool": (
        ("vgg16 pool 2", max_pool(2), "Bx128x112x112"),
        ("googlenet branch", max_pool(3, 1, 1), "Bx480x14x14"),
        ("densenet transition 2", avg_pool(2), "Bx256x28x28"),
        ("r3d pool", max_pool((1, 3, 3), (1, 2, 2), (0, 1, 1)), "Bx64x8x112x112"),
    ),
    "scan": (
        ("mamba decay", lambda x: (-F.softplus(x)).cumsum(-1), "16Bx2048"),
        ("nerf transmittance", lambda s: torch.exp(-(s.relu().cumsum(-1) - s.relu())), "1024Bx96"),
        ("durations", lambda d: d.cumsum(1), "Bx512x64"),
    ),
    "reduction": (
        ("global mean of efficientnet", lambda x: x.mean((2, 3)), "Bx112x56x56"),
        ("bias gradient of t5", lambda g: g.sum(0), "512Bx3072"),
        ("int8 scales of mistral", lambda w: w.abs().amax(-1) / 127, "512Bx4096"),
    ),
    "pointwise": (
        ("swiglu of llama-2-13b", lambda x, y: F.silu(x) * y, "64Bx13824:bf16 64Bx13824:bf16"),
        ("bert embeddings", lambda a, b, c: F.gelu(a + b) * c, "128Bx1024 128Bx1024 1024"),
        ("ddim step", lambda x, e: 0.98 * (x - 0.2 * e).clamp(-1, 1) + 0.1 * e, "16Bx4x64x64 16Bx4x64x64"),
    ),
    "loss": (
        ("bart tokens", F.cross_entropy, "16Bx50265 16B:i64"),
        ("detr focal", focal, "16Bx900x91 16Bx900x91"),
        ("brats dice", dice, "Bx4x64x64x64 Bx4x64x64x64"),
        ("distilled vit", distilled, "512Bx1000 512Bx1000"),
        ("esrgan charbonnier", charbonnier, "Bx3x256x256 Bx3x256x256"),
    ),
}
