"""A training step as plain PyTorch has it, to stand beside ours: torch.compile per block, SDPA, fused AdamW on fp32
weights under bf16 autocast, gradients clipped at norm 1. `table` trains each line by both in turn on one GPU.

    python tests/benchmarks/peer_plain_torch.py peer L        # one JSON line: median and middle half, ms; peak, GiB
    python tests/benchmarks/peer_plain_torch.py table S M L --turns 2 --record results.jsonl
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOT = Path(__file__).parents[2]
WARM, TIMED = 10, 25
THETA = 10000.0


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: a Llama's shape, its sequence length and micro-batch."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int
    micro: int

    @property
    def model(self) -> dict[str, Any]:
        """The same shape as the `model` section of a run file."""
        return {
            "layers": self.layers, "hidden": self.hidden, "heads": self.heads, "kv_heads": self.kv_heads,
            "ffn": self.ffn, "vocab": self.vocab, "seq_length": self.seq, "activation": "swiglu", "norm": "rmsnorm",
            "positions": "rotary", "tied_embeddings": False, "bias": False,
        }  # fmt: skip


LINES = {
    "S": Line(12, 768, 12, 12, 3072, 50304, 1024, 32),
    "M": Line(24, 2048, 16, 16, 8192, 50304, 2048, 8),
    "L": Line(16, 2048, 32, 8, 8192, 128256, 4096, 2),
    "tiny": Line(2, 64, 4, 2, 128, 256, 32, 2),
}


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on [batch, heads, sequence, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Block(nn.Module):
    """A layer of Llama: RMSNorm, grouped-query attention with rotary positions, RMSNorm, SwiGLU."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self.line, head = line, line.hidden // line.heads
        self.first, self.second = nn.RMSNorm(line.hidden), nn.RMSNorm(line.hidden)
        self.qkv = nn.Linear(line.hidden, head * (line.heads + 2 * line.kv_heads), bias=False)
        self.out = nn.Linear(line.hidden, line.hidden, bias=False)
        self.up = nn.Linear(line.hidden, 2 * line.ffn, bias=False)
        self.down = nn.Linear(line.ffn, line.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        line, (batch, length, _) = self.line, x.shape
        widths = [line.heads, line.kv_heads, line.kv_heads]
        parts = self.qkv(self.first(x)).view(batch, length, sum(widths), -1).transpose(1, 2).split(widths, dim=1)
        q, k, v = rotate(parts[0], cos, sin), rotate(parts[1], cos, sin), parts[2]
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=line.heads != line.kv_heads)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, -1))
        gate, up = self.up(self.second(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Head(nn.Module):
    """Final norm, projection to the vocabulary and mean cross entropy."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self.norm, self.linear = nn.RMSNorm(line.hidden), nn.Linear(line.hidden, line.vocab, bias=False)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        logits = self.linear(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class Model(nn.Module):
    """The whole model; each block and the head are compiled on their own."""

    def __init__(self, line: Line, device: torch.device) -> None:
        super().__init__()
        self.embedding = nn.Embedding(line.vocab, line.hidden, device=device)
        with device:
            self.blocks = nn.ModuleList(Block(line) for _ in range(line.layers))
            self.head = Head(line)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
        half = torch.arange(0, line.hidden // line.heads, 2, device=device)
        angles = torch.arange(line.seq, device=device)[:, None] * THETA ** (-half / (line.hidden // line.heads))
        self.cos, self.sin = angles.cos(), angles.sin()

    def compiled(self) -> "Model":
        """Compile in place, as torchtitan does: a graph for each block."""
        for block in (*self.blocks, self.head):
            block.compile()
        return self

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(tokens).to(torch.bfloat16)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        loss: Tensor = self.head(x, labels)
        return loss


def peer(line: Line, device: torch.device) -> dict[str, float]:
    """Train the line for WARM + TIMED steps; medians in ms, the peak in GiB."""
    torch.manual_seed(0)
    model = Model(line, device)
    model = model.compiled() if device.type == "cuda" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(line.vocab, (WARM + TIMED, line.micro, line.seq + 1), device=device)

    def step(number: int) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(tokens[number, :, :-1], tokens[number, :, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()  # a loop that logs its loss, as ours does

    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
        return timed(step, device)


def timed(step: Callable[[int], None], device: torch.device) -> dict[str, float]:
    """Run the steps and say how long the last TIMED of them took."""
    times = []
    for number in range(WARM + TIMED):
        if number == WARM and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        step(number)
        times.append((time.perf_counter() - began) * 1e3)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    return spread(times[WARM:]) | {"peak_gib": peak}


def spread(times: list[float]) -> dict[str, float]:
    """Median and middle half of times in ms."""
    low, middle, high = statistics.quantiles(times, n=4)
    return {"median_ms": middle, "low_ms": low, "high_ms": high}


def ours(line: Line, kernels: str, graph: bool) -> dict[str, float]:
    """The same line by `windtunnel train` on one GPU, from its steps.jsonl."""
    run = {
        "model": line.model,
        "cluster": {"preset": "dgx-h200", "gpus": 1},
        "plan": {
            "precision": "bf16", "attention": "cudnn", "zero_stage": 0, "micro_batch_size": line.micro,
            "global_batch_size": line.micro, "kernels": kernels, "cuda_graph": graph,
        },
        "train": {"steps": WARM + TIMED, "record_every": 1000},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_text(json.dumps(run))
        command = [sys.executable, "-m", "windtunnel", "train", str(path), "--output", f"{folder}/run", "--json"]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with exit code {done.returncode}: {done.stderr[-2000:]}")
        steps = [json.loads(row) for row in (Path(folder) / "run" / "steps.jsonl").read_text().splitlines()]
    times = [step["step_time_s"] * 1e3 for step in steps if step["step"] >= WARM and not step["recorded"]]
    return spread(times) | {"peak_gib": max(step["peak_allocated_gib"] for step in steps)}


def table(names: list[str], turns: int, record: Path) -> None:
    """Train each line by the peer and by ours in turn; every result is a line of `record` as soon as it is there."""
    for turn in range(turns):
        for name in names:
            for who, kernels, graph in (("peer", "", False), ("ours", "triton", False), ("ours", "triton", True)):
                if who == "peer":
                    command = [sys.executable, __file__, "peer", name]
                    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                else:
                    found = ours(LINES[name], kernels, graph)
                row = {"line": name, "who": who, "kernels": kernels, "graph": graph, "turn": turn, **found}
                print(json.dumps(row), flush=True)
                with record.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def main() -> None:
    """`peer LINE`, or `table LINE …`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["peer", "table"])
    parser.add_argument("lines", nargs="+", choices=LINES)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--record", type=Path, default=Path("results.jsonl"))
    options = parser.parse_args()
    if options.what == "table":
        table(options.lines, options.turns, options.record)
    else:
        for name in options.lines:
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            print(json.dumps(peer(LINES[name], device)))


if __name__ == "__main__":
    main()
