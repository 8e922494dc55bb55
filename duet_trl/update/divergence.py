# SPDX-License-Identifier: Apache-2.0
"""How far updates moved a policy: KL divergence per token, measured where bf16 would only measure its own rounding.

Log-probs of one policy, computed twice in bf16 with almost equal weights, differ by 0.03 to 0.04 nats a token:
whatever the change, the estimator reads the truth plus 1e-3 nats per token. So they are computed in float32, from
float32 weights or from weights of a lower precision that are widened module by module. Where neither is possible
(sharded or quantised weights), the rounding is measured, with a change of the weights too small to matter, and
subtracted.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

NUDGE = 1e-6
"""Change of a weight, relative to the root mean square of its tensor, whose own divergence does not matter."""


def divergence_sums(moved: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Summed divergence of the policy before from the policy now, and number of tokens, shape (2,), float64.

    Each token adds exp(moved) - 1 - moved, whose mean over tokens that the policy before drew is the divergence (k3 of
    Schulman, "Approximating KL divergence", 2020). `moved`: log-prob now minus before, shape (B, T), nats; `mask`
    (B, T): which tokens count.
    """
    moved = moved.double()
    tokens = torch.where(mask.bool(), torch.expm1(moved) - moved, 0.0)
    return torch.stack([tokens.sum(), mask.bool().sum().double()])


@contextmanager
def in_float32(model: nn.Module, precision: str = "high") -> Iterator[Callable[..., object]]:
    """While active, the model computes in float32, whatever its weights are stored in; the weights do not change.

    Weights of a lower precision are widened while the module that holds them computes, those of the output layer for
    as long as this lasts. The model is neither sharded nor quantised. Yields the forward pass without the autocast
    that accelerate wraps around it.

    `precision` is that of `torch.set_float32_matmul_precision`: "high" is TF32 on a GPU, with an eighth of the
    rounding of bf16, a hundredth of its error.
    """
    head = model.get_output_embeddings()
    narrow = [module for module in model.modules() if module is not head and _narrow(module)]
    before, training = torch.get_float32_matmul_precision(), model.training
    with ExitStack() as stack:
        stack.callback(torch.set_float32_matmul_precision, before)
        torch.set_float32_matmul_precision(precision)
        stack.callback(model.train, training)
        model.eval()
        if head is not None:
            stack.enter_context(_widened(head))
        for module in narrow:
            _widen_in_forward(module, stack)
        stack.enter_context(torch.autocast(next(model.parameters()).device.type, enabled=False))
        yield model.__dict__.get("_original_forward", model.forward)


@contextmanager
def nudged(weights: Sequence[torch.Tensor], seed: int) -> Iterator[None]:
    """While active, weights differ at random by `NUDGE` of their size: the difference of the output is rounding."""
    kept = [one.clone() for one in weights]
    with torch.no_grad():
        for place, one in enumerate(weights):
            generator = torch.Generator(one.device).manual_seed(seed + place)
            noise = torch.randn(one.shape, generator=generator, device=one.device, dtype=torch.float32)
            size = one.float().square().mean().sqrt() if one.numel() else 0.0
            one.add_((NUDGE * size * noise).to(one.dtype))
    try:
        yield
    finally:
        with torch.no_grad():
            for one, before in zip(weights, kept, strict=True):
                one.copy_(before)


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
