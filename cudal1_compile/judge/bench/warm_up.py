"""What Inductor does once a process, done before it forks: a fork's first compile takes as long as its next.

    fork server: imports -> STEPS, between which it may fork -> forks compile

Nothing here asks CUDA, starts a thread or holds on to a folder of the environment: forks have a device and folders
of their own. A step that fails, or that this torch does not know, costs a fork the time that it would have saved.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import patch

import torch

from cudal1_compile.judge.bench.worker import import_all

COMPILING = (  # imports of what is not found in a cache
    "torch._functorch._activation_checkpointing.remat_using_tags_for_fwd_loss_bwd_graph_pass",
    *("torch._functorch._aot_autograd.subclass_codegen", "torch._higher_order_ops.passes.inline_invoke_subgraph"),
    *("torch._inductor.choices", "torch._inductor.bounds", "torch._inductor.extern_node_serializer"),
    *("torch._inductor.codegen.segmented_tree", "torch._inductor.codegen.triton_split_scan"),
    *("torch._inductor.tiling_utils", "sympy.tensor.tensor"),
    *("triton.compiler.code_generator", "triton.tools.tensor_descriptor"),
)


class _AsksCuda(BaseException):
    """No `except Exception` of torch's may take it for an answer, and remember that."""


def _refuse() -> None:
    raise _AsksCuda


def _keep_to_one_thread() -> None:
    """tqdm, in torch's interpreter of graphs, starts a thread, and its lock would be one for all forks: whoever is
    killed with it would stop the others.
    """
    tqdm = importlib.import_module("tqdm").tqdm
    tqdm.monitor_interval = 0
    tqdm.set_lock(threading.RLock())


def _register_patterns() -> None:
    """Of the matchers that rewrite graphs: 150, as a compile for this machine's first device registers them."""
    from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad

    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    pre_grad.lazy_init()
    joint_graph.lazy_init(device)
    post_grad.lazy_init()


def _build_driver() -> None:
    """Triton's, by a C compiler: forks have it loaded. Were Triton to choose, newer ones would ask CUDA."""
    from triton.backends import backends
    from triton.runtime.driver import driver

    if torch.cuda.is_available():
        driver.set_active(backends["nvidia"].driver())


STEPS: tuple[Callable[[], None], ...] = (
    _keep_to_one_thread,
    *(partial(import_all, [name]) for name in COMPILING),
    _register_patterns,
    _build_driver,
)


def attempt(step: Callable[[], None]) -> None:
    """As far as it goes."""
    with contextlib.suppress(Exception, _AsksCuda), _off_the_device():
        step()


@contextlib.contextmanager
def _off_the_device() -> Iterator[None]:
    """Fake tensors make no CUDA context, as on a machine without a device; what else asks CUDA is refused."""
    from torch._subclasses import fake_tensor

    with contextlib.ExitStack() as instead:
        instead.enter_context(patch.object(fake_tensor, "init_gpu_context", lambda *_: None))
        instead.enter_context(patch.object(fake_tensor.FakeTensorMode, "avoid_device_init", True))
        instead.enter_context(patch.object(torch.cuda, "_lazy_init", _refuse))
        if torch.cuda._is_compiled():  # asked where NVML does not know whether there is a device
            instead.enter_context(patch.object(torch._C, "_cuda_getDeviceCount", _refuse))
        yield
