"""Values of a script that cannot be known without running something: markers inside strings, each with its reason."""

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["undefined", "positional", "command", "condition", "unsupported"]
OPAQUE = re.compile("\ue000(\\d+)\ue001")


@dataclass(frozen=True, slots=True)
class Opaque:
    """Why a value is unknown: `detail` names the variable, command or condition."""

    kind: Kind
    detail: str
    beside: str = ""
    """What else to know: the sourced file that may define it."""

    def sentence(self) -> str:
        """The reason, to follow "… is unknown: "."""
        return {
            "undefined": f"the variable {self.detail} is not defined in the script"
            + (f" ({self.beside})" if self.beside else ""),
            "positional": f"it comes from the script's argument {self.detail}",
            "command": f"it is the output of the command {self.detail}, which is not executed",
            "condition": f"it depends on {self.detail}",
            "unsupported": f"the expansion {self.detail} is not supported",
        }[self.kind]


def shown(entry: Opaque) -> str:
    """An unknown value as a user may read it: `$NAME` or `<command>`."""
    return entry.detail if entry.kind in ("undefined", "positional") else f"<{entry.detail}>"
