"""Reads what a script or a configuration names, and only below the folder that it stands in.

    Confined(Path("jobs")).text("conf/ds.json")     # None: there is none; InputError: it is not read

Symbolic links are resolved first, and the way down to the file is opened without following one, so that a link put
there in between is not followed either. `allowed` are further folders, which the user names with `--allow-read DIR`.
Paths that the user types himself do not come through here.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from program.errors import InputError

MAXIMUM_BYTES = 1_000_000
KERNEL = ("/proc", "/sys", "/dev")
"""Folders whose files are no files: reading one asks the kernel or a device."""


@dataclass(frozen=True, slots=True)
class Confined:
    """The files below `folder`, and below those that are `allowed` besides. Without a folder there are none."""

    folder: Path | None = None
    allowed: tuple[Path, ...] = ()

    def text(self, name: str, most: int = MAXIMUM_BYTES) -> str | None:
        """The text of a file, looked for by its path from the folder and then by its name alone; None when there is
        none, or only outside. Raises `InputError` for a link that leads outside, for what is not a regular file or not
        UTF-8, and for more than `most` bytes.
        """
        place = self.place(name)
        if place is None:
            return None
        root, inner = place
        content = _read(root, inner, name, most)
        try:
            return None if content is None else content.decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError:
            raise InputError(f"{name} is not UTF-8 text, so it is not read") from None

    def place(self, name: str) -> tuple[str, str] | None:
        """The real folder that a name is below, and the way from there; None when nothing of that name is below one.
        Raises `InputError` for a link that leads outside.
        """
        if self.folder is None or not name or "\0" in name:
            return None
        roots = [os.path.realpath(each) for each in (self.folder, *self.allowed)]
        leads_out = False
        for given in dict.fromkeys((name, name.rstrip("/").rsplit("/", 1)[-1])):
            try:
                real = os.path.realpath(os.path.join(roots[0], given))
                exists = os.path.lexists(real)
            except ValueError:  # a name that no file system can hold
                return None
            root = next((each for each in roots if _below(real, each)), None)
            if root is not None and exists:
                return root, os.path.relpath(real, root)
            leads_out |= root is None and _below(os.path.normpath(os.path.join(roots[0], given)), roots[0])
        if leads_out:
            raise InputError(
                f"{name} is a link that leads outside the folder, so it is not read; --allow-read DIR permits"
            )
        return None


def _below(path: str, root: str) -> bool:
    return os.path.commonpath((path, root)) == root


def _read(root: str, inner: str, name: str, most: int) -> bytes | None:
    """The bytes of a regular file; None for a folder, or what vanished or may not be opened."""
    if any(_below(os.path.join(root, inner), each) for each in KERNEL):
        raise InputError(f"{name} is not a regular file, so it is not read")
    *folders, last = inner.split("/")
    try:
        at = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for folder in folders:
                inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
                os.close(at)
                at = inside
            kind = os.stat(last, dir_fd=at, follow_symlinks=False).st_mode
            if stat.S_ISDIR(kind):
                return None
            if not stat.S_ISREG(kind):  # opening a device or a FIFO may already do something, or wait for ever
                raise InputError(f"{name} is not a regular file, so it is not read")
            file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
        finally:
            os.close(at)
        with open(file, "rb") as stream:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise InputError(f"{name} is not a regular file, so it is not read")
            content = stream.read(most + 1)
    except OSError:
        return None
    if len(content) > most:
        raise InputError(f"{name} is larger than {most:,} bytes, the most that is read of it")
    return content
