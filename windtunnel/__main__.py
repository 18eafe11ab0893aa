"""`python -m windtunnel`, and the `windtunnel` command: quiet about Ctrl-C from the first import on."""

import sys


def main() -> None:
    """Run the command line; exits the process."""
    try:
        from windtunnel.cli import main as run

        run()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
