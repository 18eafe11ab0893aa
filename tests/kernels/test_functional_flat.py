"""The rest of the operators as torch.compile sees them: opcheck, gradients, compiled equal to eager."""

import pytest
import torch
from torch.library import opcheck

from kernels import functional_flat as ours
from kernels.random import Dropout, keep_mask

X, Z, B = (torch.randn(4, 16, generator=torch.Generator().manual_seed(s)) for s in range(3))
DROP = Dropout.at(0.3, seed=1, step=1, layer=1, site=1)
KEYS = (DROP.key_low, DROP.key_high, 0)
TOKENS = torch.arange(4)
PLANES = ours.delta_pack(Z, X)
SAMPLES = {
    "residual_add": (X, Z, B[0], TOKENS, 0.3, *KEYS),
    "residual_add plain": (X, Z, None, None, 0.0, 0, 0, 0),
    "residual_add_backward": (X, TOKENS, True, 0.3, *KEYS),
    "onebit_pack": (X.flatten(), torch.zeros(64), 32),
    "onebit_unpack": (*ours.onebit_pack(X.flatten(), torch.zeros(64), 32), 32),
    "checksum": (X, 0),
    "delta_pack": (Z, X),
    "delta_unpack": (PLANES, X),
}
SAMPLES["onebit_unpack"] = (*(t[None] for t in SAMPLES["onebit_unpack"][:2]), 32)


@pytest.mark.parametrize("name", SAMPLES)
def test_opcheck(name):
    operator = getattr(torch.ops.windtunnel, name.split()[0])
    assert set(opcheck(operator.default, SAMPLES[name]).values()) == {"SUCCESS"}


def test_gradients_and_the_mask_of_the_residual_add():
    leaves = [t.double().requires_grad_() for t in (X, Z, B[0])]

    def add(stream, z, bias):
        return ours.residual_add(stream, z, bias, dropout=DROP)

    assert torch.autograd.gradcheck(add, leaves)
    kept = keep_mask(DROP, 4, 16)
    torch.testing.assert_close(add(X, Z, B[0]), X + torch.where(kept, (Z + B[0]) * DROP.scale, 0.0))


def test_compiled_is_eager():
    def all_of_them(x, z, bias):
        stream = ours.residual_add(x, z, bias, dropout=DROP)
        return ours.delta_unpack(ours.delta_pack(stream, x), x), ours.checksum(stream)

    torch._dynamo.reset()
    compiled = torch.compile(all_of_them, fullgraph=True, backend="aot_eager")
    for a, b in zip(all_of_them(X, Z, B[0]), compiled(X, Z, B[0]), strict=True):
        assert torch.equal(a, b)
