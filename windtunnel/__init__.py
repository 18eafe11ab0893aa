"""Windtunnel: the front door: the command line, and what composes the simulator with the trainer.

    import windtunnel
    forecast = windtunnel.forecast("examples/llama-3-8b.yaml", ["plan.tensor_parallel=4"])
    print(forecast.step_time_s, forecast.mfu, forecast.memory.fits)

The functions of `windtunnel.api` are the public API and are imported when first used, so that `import windtunnel`
costs nothing.
"""

from typing import Any

__version__ = "0.1.0"

__all__ = ["calibrate", "check", "compare", "compile_run", "forecast", "load", "simulate", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'windtunnel' has no attribute {name!r}")
    from windtunnel import api

    return getattr(api, name)
