"""The command line: finds the command, and turns faults into sentences and exit statuses.

Nothing heavy is imported here: each command's module, and click with it, only once it is known which one is meant.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from engine.errors import EXIT_INTERRUPTED, EXIT_USAGE, ConfigError, TrainUIError

EXIT_BUG = 70  # EX_SOFTWARE of sysexits.h
EXIT_PIPE = 141  # what a shell reports of a command that died of SIGPIPE
EXIT_OS_ERROR = 74  # EX_IOERR of sysexits.h
COMMANDS = ("attach", "status", "stop", "restart", "logs", "ls", "init")
NOT_YET = ("diagnose",)
# Options of a run whose value is the next word.
VALUE_OPTIONS = ("--run-root", "--name", "--log-level")
# Options that take several values: `--rank 0 1 2`.
SPREAD_OPTIONS = ("--rank", "--node")
# A run id's beginning can be all digits too, but hardly one so short.
MAX_RANK_DIGITS = 6

HELP = """\
trainui launches training on many GPUs and watches it.

  trainui CFG [KEY=VALUE ...]   check the config, launch the job, open the console
  trainui attach [RUN]          open the console on a running or finished run
  trainui status [RUN]          one snapshot: nodes, ranks, exit codes, verdict
  trainui stop [RUN]            stop a run; returns when nothing of it is left
  trainui restart [RUN]         stop, then start the next attempt of the same run
  trainui logs [RUN]            print logs, also of a finished run
  trainui ls                    the runs below the run root, newest first
  trainui init [PATH]           write a commented starter config

CFG is a YAML file, or - for stdin. RUN is a run directory, a run id, the beginning of one, or nothing for the newest.

Options of a run, before or after CFG:
  --dry-run          render everything into the run directory, print the plan, start nothing
  --check            preflight only: a table of findings, exit status 0 or 69
  --no-ui            no screen: log lines on stdout, life-cycle lines on stderr, a summary last
  --json             JSON Lines on stdout and nothing else; implies --no-ui
  --quiet            no screen and no log lines: life-cycle lines and the summary
  --read-only        the console and Ctrl-C cannot stop the job
  --run-root DIR     where runs are kept (default: $TRAINUI_RUN_ROOT, else ./runs)
  --name NAME        the run's name (default: the config's)
  --no-color         no colours (also: NO_COLOR, TERM=dumb)
  --log-level LEVEL  debug, info, warning or error: the least of our own lines that is shown
  --yes              never ask
  --version, --help

`trainui COMMAND --help` tells the options of a command.

Exit status of a run, and of attach: 0 when every rank exited 0, or "detached" on stderr; the code of the rank that
failed first, 128+N where signal N ended it; 2 for a usage or config error; 69 where a host cannot be used or was lost;
130 and 143 for a job that was stopped.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    _open_standard_streams()
    try:
        status = _main(words)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return EXIT_PIPE
    except ConfigError as fault:
        return _fault("\n".join(fault.lines), fault.exit_status)
    except TrainUIError as fault:
        return _fault(str(fault), fault.exit_status)
    except OSError as err:
        if _is_bug(err):
            return _bug(err, words)
        _forget_stdout()
        return _fault(_os_error_text(err), EXIT_OS_ERROR)
    except Exception as err:  # noqa: BLE001 (the last resort: a user must never be shown a traceback)
        return _bug(err, words)


def _main(words: list[str]) -> int:
    if words[:1] in (["--version"], ["-V"]):
        sys.stdout.write(f"trainui {version()}\n")
        return 0
    if words[:1] in (["--help"], ["-h"]):
        sys.stdout.write(HELP)
        return 0
    if not words:
        return _fault("name a config to run, or a command; `trainui --help` tells what there is", EXIT_USAGE)
    name, rest = split_command(words)
    _refuse_typos(name, rest)
    return _call(name, rest)


def version() -> str:
    """The installed version."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trainui")
    except PackageNotFoundError:
        return "0 (not installed)"


def split_command(words: Sequence[str]) -> tuple[str, list[str]]:
    """The command and its words: the first word that is no option, where it names a command; else `run`."""
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            break
        if word in VALUE_OPTIONS:
            index += 2
        elif word.startswith("-") and word != "-":
            index += 1
        elif word in COMMANDS:
            rest = [*words[:index], *words[index + 1 :]]
            return word, spread(rest) if word == "logs" else rest
        else:
            break
    return "run", list(words)


def spread(words: Sequence[str]) -> list[str]:
    """`--rank 0 1 2` as `--rank 0 --rank 1 --rank 2`."""
    out: list[str] = []
    option = ""
    fresh = False  # the option's own value comes now
    for word in words:
        if word in SPREAD_OPTIONS:
            option, fresh = word, True
        elif fresh:
            fresh = False
        elif option and _is_number(word):
            out.append(option)
        else:
            option = ""
        out.append(word)
    return out


def _is_number(word: str) -> bool:
    parts = word.replace(",", "-").split("-")
    return all(part.isdigit() and len(part) <= MAX_RANK_DIGITS for part in parts)


def _refuse_typos(name: str, rest: Sequence[str]) -> None:
    """A config that is not there and is spelt nearly like a command was meant as one.

    Raises:
        TrainUIError: it was.
    """
    if name != "run":
        return
    config = first_positional(rest)
    if config is None or config == "-" or os.path.exists(config) or any(c in config for c in "/.="):  # noqa: PTH110
        return
    if config in NOT_YET:
        raise TrainUIError(f"{config}: not yet in this release")
    from difflib import get_close_matches

    close = get_close_matches(config, COMMANDS, n=1)
    if close:
        raise TrainUIError(f"{config}: no such command, and no such config", f'did you mean "trainui {close[0]}"?')


def first_positional(words: Sequence[str]) -> str | None:
    """The first word that is no option and no option's value."""
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in VALUE_OPTIONS:
            skip = True
        elif not word.startswith("-") or word == "-":
            return word
    return None


def _call(name: str, rest: list[str]) -> int:
    from importlib import import_module

    import click

    declared: click.Command = getattr(import_module(f"tui.commands.{name}"), name)
    program = "trainui" if name == "run" else f"trainui {name}"
    try:
        # Not `main`: it has its own ideas about Ctrl-C and a closed stdout.
        with declared.make_context(program, rest) as context:
            result: object = declared.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    except click.ClickException as fault:
        return _fault(f"{_lower(fault.format_message())} (`{program} --help` tells what there is)", EXIT_USAGE)
    return result if isinstance(result, int) else 0


def _lower(text: str) -> str:
    text = text.rstrip(".")
    return text[:1].lower() + text[1:]


def _forget_stdout() -> None:
    """Nobody takes what is left in its buffer (a reader that left, a full disk): Python must not try again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fault(text: str, status: int) -> int:
    """Say what is wrong, each line of it with our name in front."""
    from tui.render_text import clean

    try:
        for line in text.split("\n"):
            sys.stderr.write(f"trainui: {clean(line)}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # stderr is gone; the status tells
    return status


def _is_bug(err: OSError) -> bool:
    """A system's refusal is told as such; a programming fault that is an OSError by accident has no errno."""
    return err.errno is None


def _os_error_text(err: OSError) -> str:
    from engine.rundir import os_error_hint, os_error_text

    where = f"{err.filename}: " if err.filename else ""
    hint = os_error_hint(err) if err.filename else ""
    return f"{where}{os_error_text(err)}" + (f" ({hint})" if hint else "")


def _bug(err: Exception, words: Sequence[str]) -> int:
    import traceback

    what = f"this is a bug in trainui: {type(err).__name__}: {err}".split("\n")[0]
    told = "".join(traceback.format_exception(err))
    if "debug" in words or "--log-level=debug" in words:
        return _fault(f"{what}\n{told}", EXIT_BUG)
    import tempfile

    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="replace", prefix="trainui-bug-", suffix=".txt", delete=False
        ) as file:
            file.write(f"trainui {version()}, Python {sys.version}\nwords: {list(words)}\n{told}")
    except OSError:
        return _fault(f"{what}\n{told}", EXIT_BUG)
    return _fault(f"{what}; please report it with {file.name}", EXIT_BUG)


def _open_standard_streams() -> None:
    """Where 0, 1 or 2 is closed, a file that we open would get its number, and what we print would go into it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
