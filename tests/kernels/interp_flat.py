"""Kernels over flat buffers, and the random numbers (interpreter on a CPU, compiled on a GPU)."""

import pytest
import torch

from kernels import adamw, checksum, delta, norms, onebit
from kernels.random import Dropout, keep_mask, uniform_reference
from tests.kernels.fidelity import DEVICE, assert_faithful, randn


@pytest.mark.parametrize("n", [1, 1023, 2500])
@pytest.mark.parametrize("g_type", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("flags", ["", "mask", "scale", "copy", "mask scale copy inf"])
def test_adamw(n, g_type, flags):
    start = [randn(n), 0.1 * randn(n, seed=1), randn(n, seed=2).square(), randn(n, dtype=g_type, seed=3)]
    step = adamw.AdamWStep(1e-2, 3, weight_decay=0.3)
    mask = torch.ones(n, dtype=torch.bool, device=DEVICE)
    mask[n // 2 : n // 2 + 100] = False
    options = {
        "decay": adamw.DecayMask.of(mask) if "mask" in flags else None,
        "grad_scale": torch.tensor([0.37], device=DEVICE) if "scale" in flags else None,
        "found_inf": torch.zeros(1, device=DEVICE) if "inf" in flags else None,
    }
    copy = torch.zeros(n, dtype=torch.bfloat16, device=DEVICE) if "copy" in flags else None
    ours, low, exact = ([t.clone() for t in start], [t.clone() for t in start], [t.double() for t in start])
    adamw.adamw_step(*ours, step, copy=copy, **options)
    adamw.adamw_reference(*low, step, options["decay"], options["grad_scale"], None, None)
    adamw.adamw_reference(*exact, step, options["decay"], options["grad_scale"], None, None)
    for name, a, b, c in zip(("p", "m", "v"), ours, low, exact, strict=False):
        assert_faithful(a, b, c, name)
    assert torch.equal(ours[3], start[3])
    if copy is not None:
        assert_faithful(copy, low[0].to(torch.bfloat16), exact[0], "copy")


def test_adamw_leaves_everything_on_infinity():
    tensors = [randn(50, seed=i).abs() for i in range(4)]
    before = [t.clone() for t in tensors]
    adamw.adamw_step(*tensors, adamw.AdamWStep(1e-2, 1), found_inf=torch.ones(1, device=DEVICE))
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))


def test_one_bit_error_feedback():
    chunk, n, total, sent = 1200, 2400, 0, 0
    error = torch.zeros(n, device=DEVICE)
    for step in range(4):
        x, kept = randn(n, seed=step), error.clone()
        bits, scale = onebit.onebit_pack(x, error, chunk=chunk)
        reference = onebit.onebit_pack_reference(x, kept, chunk)
        assert torch.equal(bits, reference[0])
        torch.testing.assert_close(scale, reference[1])
        torch.testing.assert_close(error, kept)
        total, sent = total + x, sent + onebit.onebit_unpack(bits[None], scale[None], chunk=chunk)
    torch.testing.assert_close(
        sent + error, total, atol=1e-5, rtol=1e-5
    )  # what rounding lost is in the error, nothing else
    bits, scale = torch.stack([bits, bits.flip(0)]), torch.stack([scale, 2 * scale])
    torch.testing.assert_close(
        onebit.onebit_unpack(bits, scale, chunk=chunk), onebit.onebit_unpack_reference(bits, scale, chunk)
    )


def test_checksum():
    for tensor in (
        randn(5001),
        randn(5001, dtype=torch.bfloat16),
        torch.arange(7, dtype=torch.uint8, device=DEVICE),
        randn(0),
    ):
        raw = bytes(tensor.reshape(-1).view(torch.uint8).cpu().numpy())
        raw += bytes(-len(raw) % 4)
        words = [int.from_bytes(raw[i : i + 4], "little") for i in range(0, len(raw), 4)]
        for first in (0, 2**33 + 5):
            assert (
                checksum.checksum_int(tensor, word_first=first)
                == sum(w * (2 * (i + first) + 1) for i, w in enumerate(words)) % 2**64
            )
    x = randn(4096)
    whole = checksum.checksum_int(x)
    assert (
        checksum.checksum_int(x[:1000]) + checksum.checksum_int(x[1000:], word_first=1000)
    ) % 2**64 == whole  # shards add up
    swapped = x.clone()
    swapped[[3, 2000]] = x[[2000, 3]]
    flipped = x.clone()
    flipped.view(torch.int32)[17] ^= 1 << 31
    assert len({whole, checksum.checksum_int(swapped), checksum.checksum_int(flipped)}) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8])
def test_delta_is_exact(dtype):
    new, base = randn(4100).mul(50).to(dtype), randn(4100, seed=1).to(dtype)
    if dtype.is_floating_point:
        new[5] = float("nan")
    planes = delta.delta_pack(new, base)
    assert torch.equal(planes, delta.delta_pack_reference(new, base))
    bits = delta._WORD[dtype.itemsize]
    assert torch.equal(delta.delta_unpack(planes, base).view(bits), new.view(bits))
    assert torch.equal(delta.delta_unpack(planes, base, out=base).view(bits), new.view(bits))
    assert not bool(delta.delta_pack(new, new).any())


def test_random_numbers_agree_with_the_reference_and_with_history():
    """The kernel's mask is the reference's bit for bit, on every device.

    These values may never change (runs must resume).
    """
    dropout = Dropout.at(0.5, seed=42, step=7, layer=3, site=1, token_first=2**40 + 9, element_first=70_000)
    w = torch.ones(200, device=DEVICE)
    x = torch.ones(40, 200, device=DEVICE)
    stream = norms.norm_forward("rms", x, w, eps=1e-5, dropout=dropout)[1]
    assert torch.equal(stream != 0, keep_mask(dropout, 40, 200, DEVICE))
    values = uniform_reference(dropout, torch.tensor([[0], [2**40]]), torch.tensor([[0, 1, 2]]))
    known = [
        [0.7924237251281738, 0.9612805247306824, 0.3431222438812256],
        [0.1208239197731018, 0.7664107084274292, 0.3930295705795288],
    ]
    assert values.tolist() == known


def test_mask_differs_by_every_key_and_keeps_the_rate():
    base = {"seed": 1, "step": 1, "layer": 1, "site": 1, "token_first": 0, "element_first": 0}
    first = keep_mask(Dropout.at(0.25, **base), 200, 500)
    assert abs(float(first.float().mean()) - 0.75) < 4 * (0.25 * 0.75 / 100_000) ** 0.5
    for key in base:
        other = keep_mask(Dropout.at(0.25, **{**base, key: 1000}), 200, 500)
        agreement = float((first == other).float().mean())
        assert abs(agreement - (0.75**2 + 0.25**2)) < 0.01, key


def test_what_is_written_over_counts_as_another_version():  # bug 11
    p, m, v, g, copy, error = (randn(64, seed=seed) for seed in range(6))
    planes = delta.delta_pack(p, g)
    adamw.adamw_step(p, m, v, g, adamw.AdamWStep(0.1, 1), copy=copy)
    onebit.onebit_pack(g, error)
    for written in (p, m, v, copy, error, delta.delta_unpack(planes, g, out=torch.empty_like(g))):
        assert written._version > 0
    assert g._version == 0


def test_a_delta_of_nothing():
    nothing = randn(0)
    assert delta.delta_pack(nothing, nothing).shape == (4, 0)
    assert delta.delta_unpack(delta.delta_pack(nothing, nothing), nothing).shape == (0,)
