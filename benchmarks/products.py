"""Convolutions and products of published architectures as programs, one JSON line each, for benchmarks.regions.

    python -m benchmarks.products --out products.jsonl
    python -m benchmarks.regions --regions products.jsonl --variants 10 --out OUT

Shapes are those of ResNet, MobileNet, EfficientNet, ConvNeXt, U-Nets in two and three dimensions, GAN generators
and video networks, small and large batches. Convolutions may use TF32, as torch's default allows. The family of a
line (its `model`) is what families.py will report on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cudal1_fx_passes.program.canonical import canonicalise
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program

Tail = tuple[
    str, ...
]  # operations on t0 and what they make: {full} axes of the result, {rows} without the spatial
BIAS_RELU: Tail = ("add(t0, bias)", "relu(t1)")
BIAS_SIGMOID: Tail = ("add(t0, bias)", "sigmoid(t1)", "mul(t1, t2)")
GLOBAL_MEAN: Tail = ("add(t0, bias)", "relu(t1)", "mean(t2) over spatial")
CHANNEL_SOFTMAX: Tail = (
    *("add(t0, bias)", "amax(t1) over channels", "sub(t1, t2)", "exp(t3)", "sum(t4) over channels", "div(t4, t5)"),
)
INSTANCE_NORM: Tail = (
    *("add(t0, bias)", "mean(t1) over spatial", "var(t1, 0) over spatial", "add(t3, 1e-05)", "rsqrt(t4)"),
    *("sub(t1, t2)", "mul(t6, t5)"),
)


@dataclass(frozen=True)
class Convolution:
    """One layer. sizes: of the image; window, stride and padding alike in every dimension."""

    family: str
    batch: int
    channels: int
    sizes: tuple[int, ...]
    outputs: int
    window: int
    stride: int = 1
    padding: int = 0
    groups: int = 1
    transposed: bool = False
    tail: Tail = ()
    dtype: str = "f32"

    @property
    def made(self) -> tuple[int, ...]:
        reach = self.window - 1 - 2 * self.padding
        if self.transposed:
            return tuple((n - 1) * self.stride + reach + 1 for n in self.sizes)
        return tuple((n - reach - 1) // self.stride + 1 for n in self.sizes)

    def program(self) -> Program:
        rank, depthwise = len(self.sizes), self.groups == self.channels == self.outputs
        out = [f"d{6 + i}" for i in range(rank)]
        in_place = (self.window, self.stride, self.padding) == (1, 1, 0)
        read = out if in_place else [f"d{3 + i}" for i in range(rank)]
        windows = [f"k{i}" for i in range(rank)] if self.window > 1 else []
        sizes = {"d0": self.batch, "d1": self.channels // self.groups, "d2": self.outputs // self.groups}
        sizes |= dict(zip(read, self.sizes, strict=True)) | dict(zip(out, self.made, strict=True))
        sizes |= dict.fromkeys(windows, self.window) | ({"d9": self.groups} if self.groups > 1 else {})
        group = ["d9"] if self.groups > 1 else []
        inputs, outputs = ([], []) if depthwise else (["d1"], ["d2"])
        channels = [*group, *outputs]
        weight = [*group, *inputs, *outputs] if self.transposed else [*channels, *inputs]
        full = ["d0", *channels, *out]
        lines = [
            f"in0 {self.dtype}[{','.join(['d0', *group, *inputs, *read])}]",
            f"in1 {self.dtype}[{','.join([*weight, *windows])}]",
        ]
        lines += [f"in2 {self.dtype}[{','.join(channels)}]"] if self.tail else []
        access = ", ".join(
            self._access(i, *pair, bool(windows)) for i, pair in enumerate(zip(read, out, strict=True))
        )
        source = "in0" if in_place else f"in0[{access}]"
        over = ",".join([*inputs, *windows])
        fn = "dot_tf32" if self.dtype == "f32" else "dot"
        lines.append(f"t0 {self.dtype}[{_joined(full)}] = {fn}({source}, in1) over {over}")
        last, axes = self._tail(lines, full, channels, out)
        lines.append(f"out0 {self.dtype}[{','.join(axes)}] = {last}")
        used = " ".join(f"{a}={n}" for a, n in sizes.items() if any(a in _names(line) for line in lines))
        return canonicalise(parse_program("region v1\ndims " + used + "\n" + "\n".join(lines) + "\n"))

    def _access(self, i: int, read: str, out: str, windowed: bool) -> str:
        if self.transposed:
            return f"{read}=({out}-k{i}+{self.padding})/{self.stride}"
        step = out if self.stride == 1 else f"{self.stride}*{out}"
        return f"{read}={step}+k{i}-{self.padding}" if windowed else f"{read}={step}"

    def _tail(
        self, lines: list[str], full: list[str], channels: list[str], out: list[str]
    ) -> tuple[str, list[str]]:
        """Appends the operations behind the convolution; returns the last value and its axes in memory order."""
        held: dict[str, list[str]] = {"t0": full, "bias": channels}
        for i, text in enumerate(self.tail, 1):
            call, _, over = text.partition(" over ")
            axes = _union(full, [held[n] for n in _names(call) if n in held])
            removed = {"spatial": out, "channels": channels, "": []}[over]
            axes = [a for a in axes if a not in removed]
            held[f"t{i}"] = axes
            behind = f" over {_joined(removed)}" if removed else ""
            lines.append(f"t{i} {self.dtype}[{_joined(axes)}] = {call.replace('bias', 'in2')}{behind}")
        last = f"t{len(self.tail)}"
        return last, held[last]


@dataclass(frozen=True)
class Matrix:
    """A linear layer: rows x depth with a weight of columns x depth."""

    family: str
    rows: int
    depth: int
    columns: int
    tail: Tail = ()
    dtype: str = "f32"

    def program(self) -> Program:
        t = self.dtype
        lines = [f"dims d0={self.rows} d1={self.depth} d2={self.columns}", f"in0 {t}[d0,d1]", f"in1 {t}[d2,d1]"]
        lines += [f"in2 {t}[d2]"] if self.tail else []
        lines.append(f"t0 {t}[d0,d2] = dot(in0, in1) over d1")
        for i, call in enumerate(self.tail, 1):
            lines.append(f"t{i} {t}[d0,d2] = {call.replace('bias', 'in2')}")
        lines.append(f"out0 {t}[d0,d2] = t{len(self.tail)}")
        return canonicalise(parse_program("region v1\n" + "\n".join(lines) + "\n"))


@dataclass(frozen=True)
class WeightGradient:
    """Of a 3x3 convolution with stride and padding 1."""

    family: str
    batch: int
    channels: int
    size: int
    outputs: int

    def program(self) -> Program:
        n, c, s, k = self.batch, self.channels, self.size, self.outputs
        lines = [
            f"dims d0={n} d1={c} d2={s} d3={s} d4={k} d5={s} d6={s} k0=3 k1=3",
            "in0 f32[d0,d1,d2,d3]",
            "in1 f32[d0,d4,d5,d6]",
            "t0 f32[d1,d4,k0,k1] = dot_tf32(in0[d2=d5+k0-1, d3=d6+k1-1], in1) over d0,d5,d6",
            "out0 f32[d4,d1,k0,k1] = t0",
        ]
        return canonicalise(parse_program("region v1\n" + "\n".join(lines) + "\n"))


def _names(text: str) -> set[str]:
    for mark in "()[],=*+-/":
        text = text.replace(mark, " ")
    return set(text.split())


def _union(order: list[str], parts: list[list[str]]) -> list[str]:
    return [a for a in order if any(a in p for p in parts)]


def _joined(axes: list[str]) -> str:
    """In the order in which dims are declared."""
    return ",".join(sorted(axes, key=lambda a: (a[0] == "k", int(a[1:]))))


def table() -> Iterator[Convolution | Matrix | WeightGradient]:
    """About a dozen shapes a family."""
    yield from _convolutions()
    for rows, depth, columns in ((4096, 4096, 4096), (2048, 1024, 2048), (16384, 64, 256), (64, 8192, 512)):
        yield Matrix("product_f32", rows, depth, columns)
        yield Matrix("product_half", rows, depth, columns, BIAS_SIGMOID, "bf16")
    for shape in ((64, 64, 56, 64), (32, 3, 64, 64), (8, 256, 14, 256), (16, 32, 112, 32)):
        yield WeightGradient("conv_weight", *shape)


def _convolutions() -> Iterator[Convolution]:
    for batch in (8, 64):
        for c, n, k, w, s, p in ((3, 224, 64, 7, 2, 3), (64, 56, 64, 3, 1, 1), (128, 28, 128, 3, 1, 1)):
            yield Convolution("conv2d", batch, c, (n, n), k, w, s, p)
        for c, n, k, w, s, p in ((256, 14, 512, 3, 2, 1), (64, 56, 256, 1, 1, 0), (16, 64, 32, 5, 1, 2)):
            yield Convolution("conv2d", batch, c, (n, n), k, w, s, p, tail=BIAS_RELU)
        for c, n, k, w, s, p in ((256, 14, 256, 3, 1, 1), (512, 7, 512, 3, 1, 1), (1024, 14, 256, 1, 1, 0)):
            yield Convolution("conv2d", batch, c, (n, n), k, w, s, p, tail=BIAS_RELU)
    for batch, c, n, k, w, s, p in (
        *((2, 1, 64, 32, 3, 1, 1), (2, 32, 64, 32, 3, 1, 1), (2, 32, 32, 64, 3, 1, 1), (2, 64, 32, 64, 3, 2, 1)),
        *((8, 3, 32, 64, 3, 1, 1), (16, 8, 32, 16, 3, 1, 1), (1, 16, 96, 16, 3, 1, 1), (4, 128, 16, 128, 3, 1, 1)),
    ):
        yield Convolution("conv3d", batch, c, (n, n, n), k, w, s, p)
    for batch, c, n, k, rank in (
        *((64, 512, 4, 256, 2), (64, 256, 8, 128, 2), (64, 128, 16, 64, 2), (64, 64, 32, 3, 2)),
        *((16, 64, 64, 32, 2), (4, 64, 16, 32, 3), (2, 32, 32, 16, 3), (16, 64, 512, 32, 1)),
    ):
        yield Convolution("conv_transposed", batch, c, (n,) * rank, k, 4, 2, 1, transposed=True)
        if rank > 1:
            yield Convolution(
                "conv_transposed", batch, c, (n,) * rank, k, 2, 2, 0, transposed=True, tail=BIAS_RELU
            )
    for batch in (8, 64):
        for c, n, w, s in ((32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (240, 28, 5, 1), (672, 14, 5, 2)):
            yield Convolution("conv_depthwise", batch, c, (n, n), c, w, s, w // 2, groups=c)
        yield Convolution("conv_depthwise", batch, 96, (56, 56), 96, 7, 1, 3, groups=96, tail=BIAS_SIGMOID)
    for batch, c, size, k, w, tail in (
        *((16, 3, (64, 64), 16, 3, GLOBAL_MEAN), (64, 8, (64, 64), 16, 3, CHANNEL_SOFTMAX)),
        *((16, 3, (16, 32, 32), 16, 3, CHANNEL_SOFTMAX), (4, 8, (32, 32, 32), 16, 3, INSTANCE_NORM)),
        *((32, 64, (56, 56), 64, 3, INSTANCE_NORM), (16, 32, (128, 128), 32, 3, BIAS_SIGMOID)),
    ):
        yield Convolution("conv_chain", batch, c, size, k, w, 1, 1, tail=tail)
    for dtype in ("f16", "bf16"):
        yield Convolution("conv2d_half", 64, 64, (56, 56), 64, 3, 1, 1, tail=BIAS_RELU, dtype=dtype)
        yield Convolution("conv2d_half", 8, 3, (224, 224), 64, 7, 2, 3, dtype=dtype)
        yield Convolution("conv2d_half", 8, 256, (14, 14), 256, 3, 1, 1, tail=BIAS_RELU, dtype=dtype)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Writes convolutions of published architectures as programs.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--families", help="only these, by commas")
    arguments = parser.parse_args(argv)
    wanted = arguments.families.split(",") if arguments.families else [c.family for c in table()]
    lines = [
        json.dumps({"model": c.family, "direction": "inference", "text": print_program(c.program())})
        for c in table()
        if c.family in wanted
    ]
    arguments.out.write_text("".join(line + "\n" for line in lines))
    print(f"{len(lines)} programs in {arguments.out}")


if __name__ == "__main__":
    main()
