"""Where the program begins: a question for the version is answered before any library is loaded."""

from __future__ import annotations

import sys

from hyperpod import __version__


def main() -> int:
    """Run ``hyperpod`` with the process's arguments; returns its exit status."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"hyperpod {__version__}\n")
        return 0
    from hyperpod.cli.app import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
