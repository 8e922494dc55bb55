# SPDX-License-Identifier: Apache-2.0
"""Adam's epsilon against what Adam itself remembers."""

import pytest
import torch

from duet_trl.update.relative_epsilon import RelativeEpsilon


def adam(*shapes: int) -> torch.optim.AdamW:
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes], lr=0.1, betas=(0.9, 0.95))


def test_it_is_the_root_mean_square_of_what_adam_divides_by():
    torch.manual_seed(0)
    optimizer, epsilon = adam(30, 7), RelativeEpsilon()
    weights = optimizer.param_groups[0]["params"]
    for step in range(1, 6):
        for one in weights:
            one.grad = torch.randn_like(one) * step
        epsilon.set(optimizer, torch.cat([one.grad for one in weights]).norm().item())
        optimizer.step()
        squares = torch.cat([optimizer.state[one]["exp_avg_sq"] for one in weights]) / (1 - 0.95**step)
        assert optimizer.param_groups[0]["eps"] == pytest.approx(squares.mean().sqrt().item(), rel=1e-5)
    restored = RelativeEpsilon()
    restored.load_state_dict(epsilon.state_dict())
    before = optimizer.param_groups[0]["eps"]
    restored.set(optimizer, 3.0)
    epsilon.set(optimizer, 3.0)
    assert restored.state_dict() == epsilon.state_dict() and optimizer.param_groups[0]["eps"] != before


@pytest.mark.parametrize("norm", [0.0, float("nan"), float("inf")])
def test_a_gradient_without_a_size_leaves_it_as_it_is(norm):
    optimizer = adam(3)
    RelativeEpsilon().set(optimizer, norm)
    assert optimizer.param_groups[0]["eps"] == 1e-8


def test_other_optimizers_are_left_alone():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    RelativeEpsilon().set(optimizer, 1.0)
    assert "eps" not in optimizer.param_groups[0]
