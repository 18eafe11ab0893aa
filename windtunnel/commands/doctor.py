"""`windtunnel doctor`: what this machine has, and what would not work."""

from windtunnel.commands import options as o


def doctor(as_json: o.Json = False) -> int:
    """What this machine has, and what would not work. Exit 1: something must be mended first."""
    from windtunnel import doctor, output

    diagnosis = doctor.examine()
    if as_json:
        output.emit_json(diagnosis)
    else:
        output.emit(doctor.text(diagnosis, output.width(), output.colour()))
    return 0 if diagnosis.ok else 1
