"""A safe evaluator of launch scripts: it learns what a script would run, and runs nothing.

    script = read_script(text)
    script.commands            # every command line the script would start, expanded to words
    script.files               # what heredocs wrote: {"ds.json": "..."}
    script.expander.why(word)  # why a value is unknown: an undefined variable, a command's output, an argument of the
    script

Variables, defaults, arrays, arithmetic and tests are evaluated; commands are only recorded. When a condition cannot be
known, both branches are followed and what they leave different becomes unknown, with the condition as the reason. A
sourced file is read where it stands beside the script; after one that is not, undefined variables may have any value.
"""

from importers.shell.evaluate import PRINTERS, read_script
from importers.shell.script import Command, Script

__all__ = ["PRINTERS", "Command", "Script", "read_script"]
