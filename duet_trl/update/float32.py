# SPDX-License-Identifier: Apache-2.0
"""A forward pass in float32 of a model that is stored, or computes, in less.

Weights of a lower precision are widened module by module, so that no second copy of the model is in memory.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn


@contextmanager
def in_float32(model: nn.Module) -> Iterator[Callable[..., object]]:
    """While active, the model computes in float32, whatever its weights are stored in; the weights do not change.

    Weights of a lower precision are widened while the module that holds them computes, those of the output layer for
    as long as this lasts. The model is neither sharded nor quantised. Yields the forward pass without the autocast
    that accelerate wraps around it. On a GPU it is not TF32 either.
    """
    head = model.get_output_embeddings()
    narrow = [module for module in model.modules() if module is not head and _narrow(module)]
    before, training = torch.get_float32_matmul_precision(), model.training
    with ExitStack() as stack:
        stack.callback(torch.set_float32_matmul_precision, before)
        torch.set_float32_matmul_precision("highest")
        stack.callback(model.train, training)
        model.eval()
        if head is not None:
            stack.enter_context(_widened(head))
        for module in narrow:
            _widen_in_forward(module, stack)
        stack.enter_context(torch.autocast(next(model.parameters()).device.type, enabled=False))
        yield model.__dict__.get("_original_forward", model.forward)


def _narrow(module: nn.Module) -> dict[str, nn.Parameter]:
    """The module's own weights that are stored in less than float32."""
    own = {name: one for name, one in module._parameters.items() if one is not None}
    return {name: one for name, one in own.items() if one.is_floating_point() and one.dtype.itemsize < 4}


@contextmanager
def _widened(module: nn.Module) -> Iterator[None]:
    # Not by the data of the parameters: one whose type changes loses what DDP has attached to it.
    stored = _narrow(module)
    module._parameters.update({name: one.detach().float() for name, one in stored.items()})
    try:
        yield
    finally:
        module._parameters.update(stored)


def _widen_in_forward(module: nn.Module, stack: ExitStack) -> None:
    """Let a module compute with wide weights and inputs, until the stack closes."""
    inside = ExitStack()

    def before(_: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        inside.enter_context(_widened(module))
        return tuple(map(_wide, args)), {name: _wide(one) for name, one in kwargs.items()}

    def after(*_: object) -> None:
        inside.close()

    stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
    stack.callback(module.register_forward_hook(after, always_call=True).remove)


def _wide(value: object) -> object:
    narrow = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype.itemsize < 4
    return value.float() if narrow else value
