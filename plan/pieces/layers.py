"""A transformer layer as pieces: attention and feed-forward, forward and backward, with their collectives in place."""

from __future__ import annotations

from plan.pieces.attention import attention_backward, attention_forward
from plan.pieces.shapes import Extents
from plan.pieces.sheet import (
    Sheet,
    gemm,
    norm_backward,
    norm_forward,
    out_backward,
    out_forward,
    reduce_forward,
    regather,
    sum_beside,
    weight_products,
)
from plan.pieces.unit import TensorSpec, Unit, Work
from plan.program import DTYPE_BYTES, KernelCall


def _attention_tensors(sheet: Sheet) -> None:
    e = sheet.e
    sheet.act("qkv", e.tokens, e.qkv)
    sheet.act("o", e.tokens, e.q)
    if e.unfused:
        sheet.tensors["lse"] = TensorSpec((e.batch * e.heads, e.seq, e.seq), e.dtype)
        if e.megatron and e.attention_dropout:  # Megatron-LM keeps the mask and what it left, besides the softmax
            sheet.tensors["mask.p"] = TensorSpec((e.batch * e.heads, e.seq, e.seq), "uint8")
            sheet.tensors["dropped"] = TensorSpec((e.batch * e.heads, e.seq, e.seq), e.dtype)
    else:
        sheet.stat("lse", e.batch, e.heads, e.seq)
    sheet.act("z1", e.tokens, e.hidden)
    sheet.act("do", e.tokens, e.q, pool="stash")
    sheet.act("dqkv", e.tokens, e.qkv, pool="stash")
    sheet.act("dy1", e.tokens, e.hidden)


def _probabilities(sheet: Sheet) -> tuple[str, ...]:
    """What the attention itself leaves for its backward."""
    return ("o", "lse", *(n for n in ("mask.p", "dropped") if n in sheet.tensors))


def _attention_forward(sheet: Sheet, base: str, y: str, cut: bool) -> None:
    e = sheet.e
    calls, transient = attention_forward(e)
    bias = (f"w:{base}.qkv.bias",) if e.qkv_bias else ()
    weights, out = (f"w:{base}.qkv.weight", *bias), f"w:{base}.out.weight"
    project = (gemm(e, e.tokens, e.qkv, e.hidden, "nt+bias" if e.qkv_bias else "nt"),)
    merge = (gemm(e, e.tokens, e.hidden, e.q, "nt"),)
    if not cut:
        body = (*project, *calls, *merge)
        results = ("z1", "qkv", *_probabilities(sheet))
        sheet.forward.append(Work("F", "F", "attn.core", (y, *weights, out), results, body, transient))
        return
    rope, core = (calls[:1], calls[1:]) if e.rotary else ((), calls)
    sheet.forward += [
        Work("F", "F", "attn.qkv", (y, *weights), ("qkv",), (*project, *rope)),
        Work("F", "F", "attn.sdpa", ("qkv",), _probabilities(sheet), core, transient),
        Work("F", "F", "attn.proj", ("o", out), ("z1",), merge),
    ]


def _attention_input_gradient(sheet: Sheet, base: str, dz: str, cut: bool) -> None:
    e = sheet.e
    calls, transient = attention_backward(e)
    qkv, out = f"w:{base}.qkv.weight", f"w:{base}.out.weight"
    first = (gemm(e, e.tokens, e.q, e.hidden, "nn"),)
    last = (gemm(e, e.tokens, e.hidden, e.qkv, "nn"),)
    if not cut:
        body = (*first, *calls, *last)
        reads = (dz, out, qkv, "qkv", *_probabilities(sheet))
        sheet.backward.append(Work("B", "I", "attn.core", reads, ("dy1", "dqkv"), body, transient))
        return
    core, rope = (calls[:-1], calls[-1:]) if e.rotary else (calls, ())
    sheet.backward += [
        Work("B", "I", "attn.proj", (dz, out), ("do",), first),
        Work("B", "I", "attn.sdpa", ("do", "qkv", *_probabilities(sheet)), ("dqkv",), core, transient),
        Work("B", "I", "attn.qkv", ("dqkv", qkv), ("dy1",), (*rope, *last)),
    ]


def _attention_weight_gradient(e: Extents, base: str, names: tuple[str, str], cut: bool) -> tuple[Work, ...]:
    """names: gradient of the output product, input of the QKV product."""
    dz, y = names
    grads = (f"g:{base}.qkv.weight", *((f"g:{base}.qkv.bias",) if e.qkv_bias else ()))
    out = f"g:{base}.out.weight"
    merge, merged = weight_products(e, (e.hidden, e.q, e.tokens))
    project, projected = weight_products(e, (e.qkv, e.hidden, e.tokens))
    if e.qkv_bias:
        project = (*project, KernelCall("bias_grad", (e.tokens, e.qkv), e.dtype))
    if not cut:
        reads = (dz, "o", y, "dqkv", out, *grads)
        most = max(merged, projected)
        return (Work("W", "W", "attn.core", reads, (out, *grads), (*merge, *project), most),)
    return (
        Work("W", "W", "attn.proj", (dz, "o", out), (out,), merge, merged),
        Work("W", "W", "attn.qkv", ("dqkv", y, *grads), grads, project, projected),
    )


def _mlp_core(sheet: Sheet, base: str, y: str) -> None:
    e = sheet.e
    sheet.act("u", e.tokens, e.up)
    sheet.act("z2", e.tokens, e.hidden)
    act = KernelCall("swiglu_forward" if e.gated else "gelu_forward", (e.tokens, e.ffn), e.dtype)
    bias = (f"w:{base}.up.bias",) if e.bias else ()
    body = (
        gemm(e, e.tokens, e.up, e.hidden, "nt+bias" if e.bias else "nt"),
        act,
        gemm(e, e.tokens, e.hidden, e.ffn, "nt"),
    )
    reads = (y, f"w:{base}.up.weight", *bias, f"w:{base}.down.weight")
    transient = e.tokens * e.ffn * DTYPE_BYTES[e.dtype]
    kept = (sheet.act("a", e.tokens, e.ffn),) if e.megatron else ()  # Megatron-LM keeps the activation's output
    sheet.forward.append(Work("F", "F", "mlp.core", reads, ("z2", "u", *kept), body, 0 if kept else transient))


def _mlp_input_gradient(sheet: Sheet, base: str, dz: str) -> None:
    e = sheet.e
    sheet.act("dy2", e.tokens, e.hidden)
    made = () if e.megatron else (sheet.act("a", e.tokens, e.ffn, pool="stash"),)
    sheet.act("du", e.tokens, e.up, pool="stash")
    body = (
        gemm(e, e.tokens, e.ffn, e.hidden, "nn"),
        KernelCall("swiglu_backward" if e.gated else "gelu_backward", (e.tokens, e.ffn), e.dtype),
        gemm(e, e.tokens, e.hidden, e.up, "nn"),
    )
    reads = (dz, f"w:{base}.down.weight", "u", f"w:{base}.up.weight")
    transient = e.tokens * e.ffn * DTYPE_BYTES[e.dtype]
    sheet.backward.append(Work("B", "I", "mlp.core", reads, ("dy2", *made, "du"), body, transient))


def _mlp_weight_gradient(e: Extents, base: str, dz: str, y: str) -> Work:
    body, transient = weight_products(e, (e.hidden, e.ffn, e.tokens), (e.up, e.hidden, e.tokens))
    grads = [f"g:{base}.down.weight", f"g:{base}.up.weight"]
    if e.bias:
        grads.append(f"g:{base}.up.bias")
        body = (*body, KernelCall("bias_grad", (e.tokens, e.up), e.dtype))
    return Work("W", "W", "mlp.core", (dz, "a", y, "du", *grads), tuple(grads), body, transient)


def layer(e: Extents, number: int, cut: bool = False) -> Unit:
    """A transformer layer as unit `number` (1…L); `cut` splits `attn.core` for selective recompute."""
    sheet, base = Sheet(e), f"layers.{number - 1}"
    sheet.act("x", e.local_tokens, e.hidden)
    sheet.act("d2", e.local_tokens, e.hidden)
    _attention_tensors(sheet)
    y = norm_forward(sheet, "attn.in", f"{base}.attn.norm", "x", "1")
    _attention_forward(sheet, f"{base}.attn", y, cut)
    z = reduce_forward(sheet, "attn.out", "z1")
    out_forward(sheet, "attn.out", f"{base}.attn.out.bias", ("x", z, "x1"))
    y = norm_forward(sheet, "mlp.in", f"{base}.mlp.norm", "x1", "2")
    _mlp_core(sheet, f"{base}.mlp", y)
    z = reduce_forward(sheet, "mlp.out", "z2")
    out_forward(sheet, "mlp.out", f"{base}.mlp.down.bias", ("x1", z, "x2"))

    dz = out_backward(sheet, "mlp.out", f"{base}.mlp.down.bias", "d2", "dz2")
    y = regather(sheet, "mlp.in", "2")
    _mlp_input_gradient(sheet, f"{base}.mlp", dz)
    dy = sum_beside(sheet, ("mlp.in", "dy2"), _mlp_weight_gradient(e, f"{base}.mlp", dz, y))
    norm_backward(sheet, "mlp.in", f"{base}.mlp.norm", "2", (dy, "x1", "d2", "d1"))
    dz = out_backward(sheet, "attn.out", f"{base}.attn.out.bias", "d1", "dz1")
    y = regather(sheet, "attn.in", "1")
    _attention_input_gradient(sheet, f"{base}.attn", dz, cut)
    dy = sum_beside(sheet, ("attn.in", "dy1"), *_attention_weight_gradient(e, f"{base}.attn", (dz, y), cut))
    norm_backward(sheet, "attn.in", f"{base}.attn.norm", "1", (dy, "x", "d1", "d0"))
    return Unit(number, tuple(sheet.forward), tuple(sheet.backward), sheet.tensors)
