"""The linear layer: whatever kernel serves it, the numbers are the exact ones, rounded."""

import pytest
import torch

from g2c_serving.forward.linear import ACTIVATIONS, Linear

PLACES = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-7}  # relative to the terms that are summed


@pytest.mark.parametrize("dtype", list(PLACES), ids=str)
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_kernel_gives_the_exact_result_rounded(dtype, rows, activation):
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((rows, 96), (96, 48), (48,))
    )
    layer = Linear(weight, bias, activation)
    activate = ACTIVATIONS[activation][0]
    exact = activate(x.double() @ weight.double() + bias.double())
    terms = x.double().abs() @ weight.double().abs() + bias.double().abs()
    off = (layer(x).double() - exact).abs()
    assert layer(x).dtype == dtype
    assert (off <= PLACES[dtype] * (exact.abs() + terms / 16)).all()


def test_a_kernel_that_disagrees_is_not_used(monkeypatch):
    weight, x = torch.randn(96, 48), torch.randn(4, 96)
    right = Linear(weight, None, pack=False)(x)
    if Linear(weight, None).packed is None:
        pytest.skip("this processor has no packed kernel")
    true = Linear._packed_linear
    monkeypatch.setattr(Linear, "_packed_linear", lambda self, x: true(self, x) + 0.01)
    layer = Linear(weight, None)
    assert layer.packed is None
    assert torch.allclose(layer(x), right)


def test_bfloat16_is_packed_only_where_the_processor_computes_in_it(monkeypatch):
    weight = torch.randn(96, 48).bfloat16()
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    layer = Linear(weight, None)
    assert layer.packed is None
    assert torch.equal(layer(weight.T), torch.nn.functional.linear(weight.T, weight.T))
