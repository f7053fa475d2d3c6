"""The command line. See ``app.main``."""

import sys

if "rich" not in sys.modules:
    # typer 0.15 imports rich's Markdown and syntax machinery for its help, which is printed plainly here: half of the
    # time that every command takes to start. Without rich it does the same, and escapes nothing in plain text.
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import typer as typer
    finally:
        del sys.modules["rich"]
