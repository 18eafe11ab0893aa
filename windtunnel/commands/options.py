"""Arguments and options that several commands share, named once so that they read the same everywhere."""

from typing import Annotated

import typer

RunFile = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Run file (YAML), Megatron script, DeepSpeed JSON, torchtitan TOML, Hugging Face config.json, GPT-NeoX,"
        " NeMo, llm-foundry, axolotl or LLaMA-Factory YAML; - reads a run file from stdin.",
        show_default=False,
    ),
]
Set = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key, such as plan.tensor_parallel=4. Repeat it.",
        show_default=False,
    ),
]
Cluster = Annotated[
    str, typer.Option(metavar="PRESET", help="Cluster preset, for a RUN that names none.", show_default=False)
]
Nodes = Annotated[int | None, typer.Option(metavar="N", help="Nodes of that cluster.", show_default=False)]
Model = Annotated[
    str, typer.Option(metavar="PRESET", help="Model preset, for a RUN that names none.", show_default=False)
]
Profile = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Profile to price with: a shipped name or a file. Default: the cluster's.",
        show_default=False,
    ),
]
MaxInput = Annotated[
    float,
    typer.Option("--max-input-gib", metavar="GIB", help="Read a timeline or log up to this size, unpacked."),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object with documented keys (schemas ship with the package).")
]
Var = Annotated[
    list[str],
    typer.Option("--var", metavar="NAME=VALUE", help="Define a shell variable of a launch script.", show_default=False),
]
AllowRead = Annotated[
    list[str],
    typer.Option(
        "--allow-read",
        metavar="DIR",
        help="Also read what a launch script names below DIR, not only below the script's own folder. Repeat it.",
        show_default=False,
    ),
]
AcceptUnknown = Annotated[
    bool,
    typer.Option("--accept-unknown", help="Leave out unknown flags that may change the model, instead of refusing."),
]
Output = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE", help="Write there, not to stdout.", show_default=False)
]
