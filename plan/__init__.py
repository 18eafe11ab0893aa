"""What the user asks: a model, a cluster and a plan, and the rules that they obey.

| file | what is in it |
| --- | --- |
| `model`, `parallel`, `layout` | the numbers of a run that decide a program, frozen; which units a stage holds |
| `implementations/` | whose engine runs the step, and every choice it makes otherwise than ours |
| `run/` | a run file becomes a `Run`: its keys, its `auto`s, every rule, what is not forecast yet |
| `presets` | published models, GPUs and node types by name |
| `huggingface*`, `ledger`, `lenient_json` | a model given as a config.json, and what is said of other people's files |
| `flops`, `trainable` | the conventions of model FLOPs; what of a run our trainer executes |

Start at `plan.run.load`, which turns a run file into a `Run`. Nothing in this package imports torch.
"""
