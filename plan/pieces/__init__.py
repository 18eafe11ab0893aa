"""The pieces of a layer: each one's kernel calls, arguments, results, saved tensors and collectives, listed once.

The compiler walks these lists to emit instructions; the trainer registers one function for each (kind, piece) and is
handed the tensors in the order of `reads`, returning new tensors in the order of `writes`. Names are local to a unit:

* plain names are activations (`x` the unit's input, `x2` its output, `d2` and `d0` the gradients of output and input);
* `w:NAME` is a parameter, `g:NAME` its main gradient, `s:loss` the rank's running loss. A name in `writes` that is also
  in `reads` (all `g:` and `s:` names, and tensors updated in place) is updated in place and not returned.

What backward reads of forward's names is what is saved. A name read by backward that forward left in a gather slot is
gathered again (`W AG`), never kept. Optional arguments (a bias, a LayerNorm's mean) are simply absent.
The layers of `implementation: megatron` (forecast only) and `deepspeed` also keep what Megatron-LM keeps: dropout masks
(`mask.*`), dropped probabilities, the activation's output `a`, fp32 logits; their bodies hold the extra passes of its
unfused kernels. Under `deepspeed` (`plan.deepspeed`) `g:NAME` is the gradient that a backward makes, which ACC adds to
the main one.

| (kind, piece) | arguments | results |
| --- | --- | --- |
| F embed | tokens, w:table | x0 (T,h): rows outside the local vocabulary are zero |
| F embed.out | x0 [w:positions] [w:norm, b:norm] | x2 [, rstd, mean, xn: the norm's input]; x2 is never x0 itself |
| B embed.out | d2 [xn, rstd, mean, w:norm, g:norm, g:norm bias] [g:positions] | dx0 (norm, dropout) |
| W embed | dx0, tokens, g:table | |
| F attn.in, mlp.in, head.in | x, w [, b] | y, rstd [, mean] |
| B attn.in, mlp.in | dy, x, rstd [, mean], w, residual gradient, g:w [, g:b] | dx |
| B head.in | dy, x, rstd [, mean], w, g:w [, g:b] | dx |
| F attn.core | y, w:qkv [, b:qkv], w:out | z, qkv, o, lse (or the probabilities when unfused) |
| I attn.core | dz, w:out, w:qkv, qkv, o, lse | dy, dqkv |
| W attn.core | dz, o, y, dqkv, g:out, g:qkv [, g:qkv bias] | |
| F attn.qkv / attn.sdpa / attn.proj | (y, w:qkv [, b]) / (qkv) / (o, w:out) | qkv / o, lse / z |
| I attn.proj / attn.sdpa / attn.qkv | (dz, w:out) / (do, qkv, o, lse) / (dqkv, w:qkv) | do / dqkv / dy |
| W attn.proj / attn.qkv | (dz, o, g:out) / (dqkv, y, g:qkv [, g:b]) | |
| F attn.out, mlp.out | residual, z [, b] | x' |
| B attn.out, mlp.out | d [, g:b] | dz when there is dropout, else nothing |
| F mlp.core | y, w:up [, b:up], w:down | z, u (before the activation, bias added) |
| I mlp.core | dz, w:down, u, w:up | dy, a, du |
| W mlp.core | dz, a, y, du, g:down, g:up [, g:up bias] | |
| F head.logits | y, w:head | logits, rowmax |
| F head.exp | logits, rowmax, targets | sums (2,T): Σ exp(logit − rowmax) but the target's; the target's logit |
| PART edge.y, edge.d / JOIN edge.x, edge.y, edge.d | what is sent / was gathered | this rank's rows / all |
| F head.loss | logits, rowmax, sums, targets, s:loss | (logits become their gradient; s:loss += loss) |
| I head.logits | logits, w:head | dy |
| W head.logits | logits, y, g:head | |
| B head.fused | y, w:head, targets, s:loss, g:head (loss_chunks > 1: head.logits to W head.logits by chunks) | dy |
"""

from plan.pieces.ends import embedding, head
from plan.pieces.layers import layer
from plan.pieces.unit import Move, Step, TensorSpec, Unit, Work, saved_names

__all__ = ["Move", "Step", "TensorSpec", "Unit", "Work", "embedding", "head", "layer", "saved_names"]
