# ruff: noqa: E501  (a message and what provokes it belong on one line)
"""Bad input: the error names the argument, what it is and what is accepted.

Or a correct slower path, never a silent wrong result.
"""

import re
import subprocess
import sys

import pytest
import torch

from kernels import (
    activations,
    adamw,
    checksum,
    crossentropy,
    crossentropy_columns,
    delta,
    norms,
    onebit,
    rotary,
)
from kernels.launch import KernelArgumentError
from kernels.random import Dropout
from program.errors import InputError

X, W, I64 = torch.zeros(3, 8), torch.zeros(8), torch.zeros(3, dtype=torch.int64)
Q, COS = torch.zeros(1, 3, 2, 8), torch.zeros(3, 4)
FLAT, BITS = torch.zeros(16), torch.zeros(1, 2, dtype=torch.uint8)
STEP = adamw.AdamWStep(0.1, 1)

CASES = {
    "x has dtype int64; accepted: float32": lambda: norms.norm_forward("rms", X.long(), W, eps=1e-5),
    "weight has shape (7,); accepted: (8)": lambda: norms.norm_forward("rms", X, W[:7], eps=1e-5),
    "weight has dtype int32; accepted: float32, bfloat16, float16": lambda: norms.norm_forward("rms", X, W.int(), eps=1e-5),
    "residual has shape (2, 8); accepted: (3, 8)": lambda: norms.norm_forward("rms", X, W, eps=1e-5, residual=X[:2]),
    "weight is on meta; accepted: cpu": lambda: norms.norm_forward("rms", X, W.to("meta"), eps=1e-5),
    "mean is None; the backward of LayerNorm needs": lambda: norms.norm_backward("layer", X, X, W, W[:3]),
    "weight_grad has dtype bfloat16; accepted: float32": lambda: norms.norm_backward("rms", X, X, W, W[:3], weight_grad=W.bfloat16()),
    "dropout p is 1.0; accepted: 0 <= p < 1": lambda: Dropout(1.0),
    "up has shape (2, 8); accepted: (3, 8)": lambda: activations.swiglu_forward(X, X[:2]),
    "up has dtype bfloat16; accepted: float32": lambda: activations.swiglu_forward(X, X.bfloat16()),
    "approximate is 'erf'; accepted: 'none', 'tanh'": lambda: activations.gelu_forward(X, approximate="erf"),
    "bias has shape (3,); accepted: (8)": lambda: activations.gelu_forward(X, W[:3]),
    "q has shape (1, 3, 2, 7); accepted: (batch, length, heads, head_dim) with an even head_dim": lambda: rotary.rotary_forward(
        Q[..., :7], Q[..., :7], COS, COS
    ),
    "cos has shape (2, 4); accepted: (3, 4)": lambda: rotary.rotary_forward(Q, Q, COS[:2], COS),
    "k has dtype bfloat16; accepted: float32": lambda: rotary.rotary_forward(Q, Q.bfloat16(), COS, COS),
    "target has dtype float32; accepted: int64, int32": lambda: crossentropy.cross_entropy(X, W[:3]),
    "target has shape (2,); accepted: (3)": lambda: crossentropy.cross_entropy(X, I64[:2]),
    "logits has strides (1, 3); accepted: (rows, width) with unit stride": lambda: crossentropy.cross_entropy(torch.zeros(8, 3).t(), I64),
    "target has stride 2; accepted: contiguous": lambda: crossentropy.cross_entropy(X, torch.zeros(6, dtype=torch.int64)[::2]),
    "vocab_first is 8 and stats is None": lambda: crossentropy.cross_entropy(X, I64, vocab_first=8),
    "vocab_size is 9 of 8 words; accepted: 1 … 8, or None": lambda: crossentropy_columns.cross_entropy_columns(X.t().contiguous(), I64, vocab_size=9),
    "vocab_size is -1 of 8 words; accepted: 1 … 8, or None": lambda: crossentropy_columns.cross_entropy_columns(X.t().contiguous(), I64, vocab_size=-1),
    "logits has strides (1, 1); accepted: words that do not overlap": lambda: crossentropy_columns.cross_entropy_columns(FLAT.as_strided((8, 3), (1, 1)), I64),
    "decay.mask has strides (2,); accepted: contiguous": lambda: adamw.adamw_step(
        FLAT, FLAT, FLAT, FLAT, STEP, decay=adamw.DecayMask(torch.zeros(32, dtype=torch.uint8)[::2], BITS[0, :1])
    ),
    "dtype is torch.int32; accepted: floating-point types": lambda: onebit.onebit_unpack(BITS, FLAT[None, :1], dtype=torch.int32),
    "base is list; a torch.Tensor is needed": lambda: delta.delta_pack(FLAT, [1]),
    "tensor is list; a torch.Tensor is needed": lambda: checksum.checksum([1]),
    "step is 0; accepted: 1, 2": lambda: adamw.AdamWStep(0.1, 0),
    "m has dtype bfloat16; accepted: float32": lambda: adamw.adamw_step(FLAT, FLAT.bfloat16(), FLAT, FLAT, STEP),
    "g has shape (15,); accepted: (16)": lambda: adamw.adamw_step(FLAT, FLAT, FLAT, FLAT[:15], STEP),
    "grad_scale has shape (16,) on cpu; accepted: one element": lambda: adamw.adamw_step(FLAT, FLAT, FLAT, FLAT, STEP, grad_scale=FLAT),
    "v has stride (2,); accepted: a contiguous flat buffer": lambda: adamw.adamw_step(FLAT, FLAT, torch.zeros(32)[::2], FLAT, STEP),
    "x has 16 elements in chunks of 12; accepted: chunk a multiple of 8": lambda: onebit.onebit_pack(FLAT, FLAT, chunk=12),
    "error has dtype bfloat16; accepted: float32": lambda: onebit.onebit_pack(FLAT, FLAT.bfloat16()),
    "scale has shape (1, 2); accepted: (1, 1)": lambda: onebit.onebit_unpack(BITS, torch.zeros(1, 2)),
    "tensor has strides (1, 3); accepted: contiguous": lambda: checksum.checksum(torch.zeros(8, 3).t()),
    "new has dtype bfloat16; accepted: float32": lambda: delta.delta_pack(FLAT.bfloat16(), FLAT),
    "planes has shape (2, 16); accepted: (4, 16)": lambda: delta.delta_unpack(torch.zeros(2, 16, dtype=torch.uint8), FLAT),
}  # fmt: skip


@pytest.mark.parametrize("message", CASES)
def test_message(message):
    with pytest.raises(KernelArgumentError, match=re.escape(message)) as caught:
        CASES[message]()
    assert isinstance(caught.value, InputError)
    assert caught.value.exit_code == 2


def test_odd_layouts_take_a_correct_slower_path():
    x = torch.randn(8, 3, 6).transpose(0, 2)
    y, stream, *_ = norms.norm_forward("rms", x, torch.ones(8), eps=1e-5)
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (8,), eps=1e-5))
    assert stream is x
    torch.testing.assert_close(activations.gelu_forward(x), torch.nn.functional.gelu(x, approximate="tanh"))


def test_the_package_works_without_triton():
    """Imports, and runs its references, with triton hidden."""
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from kernels import launch, norms, activations, rotary, crossentropy, crossentropy_columns, adamw, onebit, checksum, delta\n"
        "import kernels.random, tools.bench, tools.tune\n"
        "assert not launch.HAS_TRITON\n"
        "y = norms.norm_forward('rms', torch.ones(2, 4), torch.ones(4), eps=0.0)[0]\n"
        "assert torch.equal(y, torch.ones(2, 4))\n"
        "assert activations.swiglu_backward(y, y, y)[0].isfinite().all()\n"
        "assert tools.bench.main([]) == tools.tune.main([]) == tools.tune.main(['speed']) == 2\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "tools.bench needs a CUDA device and triton" in done.stderr
    assert "tools.tune needs a CUDA device and triton" in done.stderr
    assert "unknown sweep speed; accepted: norm-forward" in done.stderr
