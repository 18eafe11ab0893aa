"""GPT-NeoX YAML: both spellings, DeepSpeed's keys, the derived batch."""

from pathlib import Path

from tests.plan.importers.imported import imported, said

TEXT = """{
  "pipe-parallel-size": 4, "model_parallel_size": 2, "num_layers": 8, "hidden-size": 64, "num-attention-heads": 4,
  "seq-length": 32, "pos-emb": "rotary", "no-weight-tying": true, "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 8, "checkpoint-activations": true, "bf16": {"enabled": true, }, "zero_optimization":
  {"stage": 1, "reduce_bucket_size": 5e8, }, "train-iters": 100, "warmup": 0.1, "vocab-size": 1000, "data-path": "x",
  "hiden_dropout": 0, # a comment
}"""


def test_a_configuration(tmp_path: Path) -> None:
    """Keys in either spelling, comments and trailing commas; the global batch follows from the ranks."""
    result = imported(tmp_path, TEXT, "x.yml", cluster="dgx-a100-80gb", nodes=2)
    plan = result.run_dict["plan"]
    assert (plan["pipeline_parallel"], plan["tensor_parallel"], plan["recompute"]) == (4, 2, "full")
    assert plan["global_batch_size"] == 4 * 8 * 2
    assert result.run_dict["model"]["vocab"] == 1000
    assert said(result, "unknown GPT-NeoX key hiden_dropout", "hidden_dropout")
    assert said(result, "no effect on the forecast", "data_path")


def test_a_key_in_both_spellings(tmp_path: Path) -> None:
    """Two values of one key are a problem with both."""
    assert said(imported(tmp_path, TEXT[:-1] + '"hidden_size": 128}', "x.yml"), "hidden_size stands twice", "64", "128")


def test_every_wrong_number_is_said_at_once(tmp_path: Path) -> None:
    """Under its own key, and neither as missing nor as a batch that does not close."""
    text = TEXT.replace('"num_layers": 8', '"num_layers": 0').replace(
        '"model_parallel_size": 2', '"model_parallel_size": 0'
    )
    text = text.replace('"train-iters": 100', '"train-iters": -1').replace('"vocab-size": 1000', '"vocab-size": "many"')
    assert sorted(imported(tmp_path, text, "x.yml", cluster="dgx-a100-80gb", nodes=2).problems) == [
        "model_parallel_size is 0; it must be at least 1",
        "num_layers is 0; it must be at least 1",
        "train_iters is -1; it must be at least 1",
        "vocab_size is 'many', but must be a number",
    ]
