"""Whatever value stands at whatever key: a run, or problems; never a traceback."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from importers import deepspeed, neox, torchtitan
from plan import huggingface
from plan.ledger import Ledger
from program.errors import InputError
from tests.importers.test_huggingface import GPT2, LLAMA

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**70)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["auto", "5e8", "cpu"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["enabled", "stage", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)
DEEPSPEED = {
    "train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "fp16": {"enabled": True, "loss_scale": 1},
    "optimizer": {"type": "Adam", "params": {"lr": 1, "betas": [0.9, 0.95]}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1}},
    "zero_optimization": {
        "stage": 3,
        "offload_param": {"device": "cpu"},
        "reduce_bucket_size": 1,
        "zero_hpz_partition_size": 1,
    },
    "activation_checkpointing": {"partition_activations": True},
    "data_types": {"grad_accum_dtype": "fp32"},
}
NEOX = {
    "num_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "seq_length": 4,
    "pipe_parallel_size": 1,
    "warmup": 0.1,
    **DEEPSPEED,
}
TITAN = {
    "model": {"name": "llama3", "flavor": "8B"},
    "training": {"seq_len": 8, "local_batch_size": 1, "steps": 3},
    "parallelism": {"tensor_parallel_degree": 1, "pipeline_parallel_degree": 1},
    "optimizer": {"lr": 1},
    "checkpoint": {"interval": 1},
}
HF = LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 2}}


def changed(base: dict[str, Any], draw: Any) -> dict[str, Any]:
    """A copy of `base` with one value replaced."""
    copy: dict[str, Any] = json.loads(json.dumps(base))
    here = copy
    while True:
        key = draw(st.sampled_from(sorted(here)))
        if isinstance(here[key], dict) and here[key] and draw(st.booleans()):
            here = here[key]
            continue
        here[key] = draw(VALUES)
        return copy


READERS = {
    "deepspeed": (DEEPSPEED, lambda config, ledger: deepspeed.translate(config, deepspeed.Setting(ranks=8), ledger)),
    "neox": (NEOX, lambda config, ledger: neox.translate(config, deepspeed.Setting(), 8, ledger)),
    "torchtitan": (TITAN, lambda config, ledger: torchtitan.translate(config, ledger, 8)),
    "llama": (HF, huggingface.model_section),
    "gpt2": (GPT2, huggingface.model_section),
}


@pytest.mark.parametrize("reader", sorted(READERS))
@given(data=st.data())
def test_one_wrong_value(soak_count: Callable[..., None], reader: str, data: Any) -> None:
    """The reader returns, or raises an InputError."""
    soak_count("fuzzed inputs")
    base, read = READERS[reader]
    ledger = Ledger()
    try:
        read(changed(base, data.draw), ledger)
        ledger.refuse()
    except InputError as error:
        assert str(error)
