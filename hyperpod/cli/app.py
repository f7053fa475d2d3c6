"""The program ``hyperpod``: its commands, its errors and its exit status.

Owns ``main``, the only place that catches everything. Command modules are imported here; the ones which load the
specification's rules (and with them the cloud's model) only when they are called, so that everything else starts fast
and works on nodes, which lack those libraries.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hyperpod import __version__
from hyperpod.cli import (
    ask,
    cluster,
    doctor,
    health,
    hyperpod_only,
    inject,
    job,
    login,
    logs,
    node,
    prepare,
    rehearse,
    scripts,
    ssh_config,
    submit,
)
from hyperpod.cli.options import OutputOption, examples, place_of
from hyperpod.cli.place import Place
from hyperpod.cli.render import Output, print_json, say
from hyperpod.errors import HyperpodError

# Commands of modules that are slow to import: name, module, and the help that stands for them until then.
_LATE = {
    "validate": ("hyperpod.cli.spec", "Check a specification completely, and make nothing."),
    "checks": ("hyperpod.cli.checks", "Health checks: what there is, what each means, one run by hand."),
    "config": ("hyperpod.cli.spec", "Settings: what they are and where they come from."),
    "export": ("hyperpod.cli.export", "Write what makes the same HyperPod cluster with another tool."),
}
_MODULES = (
    cluster, node, login, submit, logs, job, health, doctor, inject, rehearse, scripts, prepare, ssh_config,
    hyperpod_only,
)  # fmt: skip
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
_INTERRUPTED = 130
_BROKEN_PIPE = 141

_ABOUT = """Slurm clusters that heal themselves.

Makes a cluster from a specification, watches its nodes, replaces broken ones, and has armed jobs training again from
their last checkpoint. The same program works on the machine where clusters are created and on their nodes.

\b
Exit status: 0 done, or nothing to do; 1 failed; 2 usage or configuration; 3 not found;
4 refused by the present state; 75 try again; 130 interrupted.
Results go to stdout, everything else to stderr. --output json is for programs.
"""


class _Interrupted(Exception):
    """Ctrl-C within a command."""


class _Group(TyperGroup):
    """Hands an interrupt on, which the library would otherwise turn into an error of its own."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _Interrupted from error


def create_app(wanted: str | None = None) -> typer.Typer:
    """Return the program.

    Args:
        wanted: The command about to run; only its late module is imported. None imports all of them.
    """
    # Plain help: greppable, quick, and equal with every version of the library.
    app = typer.Typer(
        name="hyperpod",
        cls=_Group,
        help=_ABOUT,
        rich_markup_mode=None,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        epilog=examples(
            "hyperpod create-cluster configs/laptop.yaml",
            "hyperpod status --watch",
            "hyperpod why worker-2",
            "hyperpod --install-completion",
        ),
    )
    app.callback()(_options)
    app.command("version", epilog=examples("hyperpod version", "hyperpod version --output json"))(version)
    for module in _MODULES:
        module.register(app)
    _register_late(app, wanted)
    return app


def _register_late(app: typer.Typer, wanted: str | None) -> None:
    modules = {_LATE[wanted][0]} if wanted in _LATE else set()
    if wanted is None:
        modules = {module for module, _ in _LATE.values()}
    for module in sorted(modules):
        try:
            register: Callable[[typer.Typer], None] = importlib.import_module(module).register
        except ModuleNotFoundError as error:
            # On a node the cloud's libraries are missing; the command says so when it is called.
            _register_missing(app, module, str(error.name))
        else:
            register(app)
    for name, (module, text) in _LATE.items():
        if module not in modules:
            # Only ever listed: whoever calls it gets the real one.
            app.command(name, help=text, epilog=examples(f"hyperpod {name} --help"))(_listed_only)


def _register_missing(app: typer.Typer, module: str, library: str) -> None:
    def missing(ctx: typer.Context) -> None:
        raise HyperpodError(
            f"hyperpod {ctx.info_name} needs the Python library {library}, which is not here",
            hint="run it on the machine where clusters are created",
        )

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    for name, (own, text) in _LATE.items():
        if own == module:
            app.command(name, help=text, context_settings=settings)(missing)


def _listed_only() -> None:
    raise typer.Exit(2)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        sys.stdout.write(f"hyperpod {__version__}\n")
        raise typer.Exit(0)


def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and what is being done.")] = False,
    version_: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Options of the program itself; ``main`` has acted on ``--debug`` already."""


def version(ctx: typer.Context, output: OutputOption = Output.TABLE) -> None:
    """Show the version of this program, and where it runs."""
    place = place_of(ctx)
    python = ".".join(map(str, sys.version_info[:3]))
    if output is Output.JSON:
        print_json({"version": __version__, "python": python, "is_node": place.is_node})
    else:
        sys.stdout.write(f"hyperpod {__version__} (Python {python})\n")


def main(argv: Sequence[str] | None = None, place: Place | None = None) -> int:
    """Run the program and return its exit status.

    Args:
        argv: Arguments; by default those of the process.
        place: Where it runs; by default found out.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_debug = _take_debug(arguments)
    place = place or Place()
    try:
        if arguments[:1] == ["ask"]:
            return ask.main(arguments[1:], place.agent_config)
        _set_up_logging(is_debug)
        app = create_app(_wanted(arguments))
        status = app(args=arguments, prog_name="hyperpod", standalone_mode=False, obj=place)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except HyperpodError as error:
        _say_error(error.message, error.hint)
        if is_debug:
            _say_traceback()
        return error.exit_code
    except _UsageError as error:
        return _say_usage(error)
    except (KeyboardInterrupt, _Interrupted, typer.Abort):
        say("interrupted: nothing is lost, it is safe to run the same command again")
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough; the interpreter must not complain about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the last resort: whatever it is, one line and a status
        if is_debug:
            _say_traceback()
        _say_error(*_unexpected(error, is_debug))
        return 1


def _unexpected(error: Exception, is_debug: bool) -> tuple[str, str]:
    """Return message and hint for an error that no adapter has translated."""
    if isinstance(error, OSError) and error.errno in (28, 122):
        return f"no disk space: {error}", "free some space, then run the same command again"
    if isinstance(error, PermissionError):
        return f"no right to use {error.filename}", "put sudo before the command"
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'}: {error.strerror or error}", ""
    hint = "" if is_debug else "this is a mistake in hyperpod; --debug shows where"
    return f"{type(error).__name__}: {error}", hint


def _take_debug(arguments: list[str]) -> bool:
    """Take ``--debug`` out, wherever it stands before ``--``, and say whether it was there."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if "--debug" not in arguments[:end]:
        return False
    arguments[:end] = [word for word in arguments[:end] if word != "--debug"]
    return True


def _wanted(arguments: Sequence[str]) -> str | None:
    """Return the command that is called; None when all must be known (completion)."""
    if "_HYPERPOD_COMPLETE" in os.environ:
        return None
    return next((word for word in arguments if not word.startswith("-")), "")


def _set_up_logging(is_debug: bool) -> None:
    import logging

    level = logging.DEBUG if is_debug else logging.WARNING
    logging.basicConfig(level=level, format="%(levelname)s %(name)s %(message)s", stream=sys.stderr)


def _say_error(message: str, hint: str) -> None:
    first, *rest = message.splitlines() or ["failed"]
    say(f"error: {first}")
    for line in rest:
        say(f"       {line}")
    if hint:
        say(f"hint: {hint}")


def _say_usage(error: Exception) -> int:
    """Print the library's own complaint about arguments in our form."""
    text = str(getattr(error, "format_message", error.__str__)())
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "hyperpod"
    if type(error).__name__ == "NoArgsIsHelpError":
        say(text)
        return 2
    names = {name for one in context.command.params for name in one.opts} if context is not None else set()
    # What stands there is most of the time a cluster's name, as other commands take it.
    hint = "--cluster NAME names the cluster; " if "unexpected extra" in text and "--cluster" in names else ""
    _say_error(" ".join(text.split()).rstrip("."), f"{hint}{path} --help")
    return 2


def _say_traceback() -> None:
    import traceback

    say(traceback.format_exc().rstrip())


if __name__ == "__main__":
    sys.exit(main())
