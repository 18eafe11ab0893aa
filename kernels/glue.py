"""An operator of `torch.ops.windtunnel`, and the short way to it.

The dispatcher is what lets a compiler, fake tensors and `opcheck` see an operator; in eager PyTorch nobody looks, and
the way through it takes the host several times as long as the kernel's launch. So an `Operator` that is called where
no compiler and no mode listens, with plain tensors, runs its function at once, under an `autograd.Function` where a
gradient is wanted. Both ways share the function, its setup and its backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.library import custom_op, triton_op, wrap_triton

from kernels.direct import Launcher, direct
from kernels.launch import KernelArgumentError

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None), bool, int, float))
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.peek_interpreter_stack


def listened() -> bool:
    """Whether a compiler, a dispatch mode (fake tensors, tracing) or a transform (vmap, grad) sees what is called."""
    return torch.compiler.is_compiling() or _modes() > 0 or _transforms() is not None


def launcher() -> Launcher:
    """How the function of an operator launches: traced where somebody listens."""
    return wrap_triton if listened() else direct


def _has_tangent(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor) and forward_ad.unpack_dual(argument).tangent is not None


class _Refused(torch.autograd.Function):
    """Results of a backward, tied to what they depend on; what comes back through it is a second derivative."""

    @staticmethod
    def forward(ctx: Any, results: list[torch.Tensor], *depended: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise KernelArgumentError("a second derivative of a fused kernel is asked for; accepted: first derivatives")


def first_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """`backward(ctx, kept, *gradients)` as autograd calls it, without `kept`, which it reads once: a checkpoint gives a
    tensor away, and an offloaded one travels, each time. Where a graph of the results is wanted, they refuse to be
    differentiated again, rather than pass for constants."""

    def once(ctx: Any, *gradients: Any) -> Any:
        kept = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return backward(ctx, kept, *gradients)
        depended = [t for t in (*gradients, *kept) if t is not None and t.requires_grad]
        with torch.no_grad():
            results = backward(ctx, kept, *gradients)
        depended = depended or [torch.empty(0, requires_grad=True)]  # what was kept hides what it was made of
        results = list(results) if isinstance(results, tuple) else [results]
        made = [i for i, r in enumerate(results) if r is not None]
        for i, refused in zip(made, _Refused.apply([results[i] for i in made], *depended), strict=True):
            results[i] = refused
        return tuple(results)

    return once


class Operator:
    """`torch.ops.windtunnel.NAME`, registered from a function on tensors and numbers whose annotations are its
    schema."""

    def __init__(self, name: str, function: Callable[..., Any], *, opaque: bool = False) -> None:
        """opaque: a compiler does not look into it (`custom_op`), and needs `registered.register_fake`."""
        self.function = function
        register: Any = custom_op if opaque else triton_op
        self.registered = register(f"windtunnel::{name}", function, mutates_args={})
        self._overload = getattr(torch.ops.windtunnel, name).default
        self._straight: Any = None

    def differentiable(self, setup: Callable[..., None], backward: Callable[..., Any]) -> None:
        """Links `backward(ctx, kept, *gradients)` to the tensors that `setup(ctx, inputs, output)` keeps. A gradient is
        a tensor or None in the order of the inputs; second derivatives are refused."""
        function, backward = self.function, first_only(backward)
        self.registered.register_autograd(backward, setup_context=setup)

        class Straight(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Any) -> Any:
                output = function(*inputs)
                setup(ctx, inputs, output)
                return output

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                return backward(ctx, *gradients)

        self._straight = Straight

    def __call__(self, *arguments: Any) -> Any:
        if forward_ad._current_level >= 0 and any(map(_has_tangent, arguments)):
            raise KernelArgumentError("a forward-mode derivative of a fused kernel is asked for; accepted: backward")
        if listened() or not _PLAIN.issuperset(map(type, arguments)):
            return self._overload(*arguments)
        if self._straight is not None and torch.is_grad_enabled():
            return self._straight.apply(*arguments)
        return self.function(*arguments)


def operator(name: str, *, opaque: bool = False) -> Callable[[Callable[..., Any]], Operator]:
    """Decorator: the function as an `Operator`."""
    return lambda function: Operator(name, function, opaque=opaque)
