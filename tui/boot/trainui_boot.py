"""The first module of ours in every process: repairs `sys.path`, then goes on to the CLI or the engine.

`engine` and `tui` are everyday names, and people who train models set `PYTHONPATH=.` with an `engine.py`
(or a `signal.py`) of their own there. So until the path is repaired, nothing but `sys` and `os` may be
imported here: both are in memory before any path is searched.
"""

from __future__ import annotations

import os
import sys

EXIT_INTERRUPTED = 130  # engine.errors has it too, but cannot be imported yet


def main() -> int:
    """The console script `trainui`."""
    try:
        repair_path()
        from tui.cli import main as run

        return run()
    except KeyboardInterrupt:
        # Ctrl-C before the CLI has its own handler: it is no fault, so no traceback.
        return EXIT_INTERRUPTED


def engine_main(argv: list[str]) -> int:
    """`python -P trainui_boot.py --engine RUN_DIR ...`: the engine process of one run."""
    repair_path()
    from engine.serve import main as serve

    return serve(argv)


def repair_path() -> None:
    """Let nothing from PYTHONPATH come before the standard library and our own packages.

    Foreign folders go to the end of `sys.path`, in their order; `os.environ` is not touched, because the
    ranks inherit it.
    """
    root = find_root(__file__)
    stdlib = os.path.dirname(os.path.realpath(os.__file__))
    trusted = {os.path.realpath(path) for path in (root, stdlib, *_site_packages())}
    foreign = [path for path in _foreign_folders() if os.path.realpath(path) not in trusted]
    _forget_shadows(foreign)
    rest = [path for path in sys.path if path not in foreign and os.path.realpath(path) != os.path.realpath(root)]
    # Behind the standard library and not before it: in a wheel, root is site-packages, where a forgotten
    # backport (enum34, typing) would otherwise replace a module of the standard library.
    ends = [i + 1 for i, path in enumerate(rest) if _is_stdlib(path, stdlib)]
    rest.insert(max(ends, default=0), root)
    sys.path[:] = rest + [path for path in sys.path if path in foreign]


def find_root(boot_file: str) -> str:
    """The folder that holds `engine` and `tui`: beside this file in a wheel, two up in a checkout."""
    here = os.path.dirname(os.path.abspath(boot_file))
    two_up = os.path.dirname(os.path.dirname(here))
    for candidate in (here, two_up):
        if os.path.isfile(os.path.join(candidate, "engine", "errors.py")):
            return candidate
    return here


def _foreign_folders() -> list[str]:
    """Entries of `sys.path` that are there because of PYTHONPATH or of where the command was started from."""
    folders: list[str] = []
    if not sys.flags.ignore_environment and "PYTHONPATH" in os.environ:
        folders += os.environ["PYTHONPATH"].split(os.pathsep)
    if not sys.flags.safe_path:
        # The folder of the script (`~/.local/bin`), which Python puts first.
        folders += sys.path[:1]
    # `site` has made the entries absolute, an empty one to the working directory; where it could not, they
    # are as they were written.
    return [path for path in sys.path if path in folders or path in map(_absolute, folders)]


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except OSError:  # the working directory is gone
        return path


def _site_packages() -> list[str]:
    site = sys.modules.get("site")
    return list(site.getsitepackages()) if site is not None else []


def _is_stdlib(path: str, stdlib: str) -> bool:
    return os.path.realpath(path) == stdlib or os.path.basename(path) == "lib-dynload"


def _forget_shadows(foreign: list[str]) -> None:
    """Drop what was imported from foreign folders under a name of ours or of the standard library."""
    folders = tuple(os.path.join(_absolute(path), "") for path in foreign)
    for name, module in list(sys.modules.items()):
        top = name.partition(".")[0]
        if top not in ("engine", "tui") and top not in sys.stdlib_module_names:
            continue
        file = getattr(module, "__file__", None)
        if folders and file and _absolute(file).startswith(folders):
            del sys.modules[name]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--engine"]:
        sys.exit(engine_main(sys.argv[2:]))
    sys.exit(main())
