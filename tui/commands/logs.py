"""`trainui logs`: what the ranks wrote, also of a finished run."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from engine.clock import SystemClock
from engine.errors import EXIT_OK, TrainUIError
from engine.logs.tail import LogTail, Pace, follow, start_of_last_lines
from engine.parse.lines import Line
from engine.rundir import RunPaths, explained
from tui.commands.common import (
    colour_wanted,
    command,
    found,
    is_terminal,
    run_argument,
    run_root_option,
    say,
)
from tui.log_files import LogFile, attempts, find_logs, parse_ranks, start_of_last_matches
from tui.pump import Feed, LogPump
from tui.render_text import Prefixes

BLOCK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Choice:
    """Which lines of which logs."""

    paths: RunPaths
    ranks: frozenset[int] | None
    nodes: frozenset[str] | None
    attempt: int | None
    lines: int | None
    pattern: re.Pattern[str] | None

    def files(self) -> list[LogFile]:
        """The logs that are there now, in order of rank."""
        return find_logs(self.paths.root, self.attempt, self.ranks, self.nodes)


@command("logs", "RUN: a run directory, an id, the beginning of one, or nothing for the newest.")
@run_argument
@click.option("--rank", "ranks", metavar="R ...", multiple=True, help="Only these ranks: 3, 0-3, 0,2.")
@click.option("--node", "nodes", metavar="N ...", multiple=True, help="Only these nodes, by number or name.")
@click.option("--attempt", type=click.IntRange(min=0), metavar="A", help="Default: the newest.")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the run is over.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    metavar="LINES",
    help="Only the last ones of each rank; with --grep, the last that match.",
)
@click.option("--grep", metavar="RE", help="Only lines in which this regular expression is found.")
@run_root_option
@click.option("--no-color", is_flag=True, help="No colours.")
def logs(
    run: str | None,
    ranks: tuple[str, ...],
    nodes: tuple[str, ...],
    attempt: int | None,
    following: bool,
    lines: int | None,
    grep: str | None,
    run_root: str | None,
    no_color: bool,
) -> int:
    """Print logs.

    One rank comes byte for byte as it wrote; several come line by line with `host:rank | ` in front.
    """
    paths = found(run, run_root)
    chosen = parse_ranks(ranks) if ranks else None
    choice = Choice(paths, chosen, frozenset(nodes) or None, attempt, lines, _pattern(grep))
    files = choice.files()
    _complain_of_missing(choice, files, following)
    color = colour_wanted(sys.stdout, no_color, os.environ)
    if following:
        return asyncio.run(_follow(choice, color))
    if _raw(choice, files):
        _copy(files[0], lines)
        return EXIT_OK
    prefixes = _prefixes(files, color)
    for file in files:
        _print_lines(choice, file, prefixes, color)
    return EXIT_OK


def _pattern(grep: str | None) -> re.Pattern[str] | None:
    try:
        return None if grep is None else re.compile(grep)
    except re.error as err:
        raise click.UsageError(f"--grep {grep!r}: {err}") from err


def _complain_of_missing(choice: Choice, files: Sequence[LogFile], following: bool) -> None:
    """Raises a fault where what was asked for is not there and will not come."""
    known = attempts(choice.paths.root)
    if choice.attempt is not None and choice.attempt not in known and not following:
        there = ", ".join(map(str, known)) or "none yet"
        raise TrainUIError(f"{choice.paths.root.name} has no attempt {choice.attempt}", f"there is: {there}")
    if files or following:
        return
    anything = find_logs(choice.paths.root, choice.attempt, None, None)
    if not anything:
        say(f"{choice.paths.root.name}: no rank has written anything")
        return
    there = f"ranks {anything[0].rank}-{anything[-1].rank} on {', '.join(sorted({f.host for f in anything}))}"
    raise TrainUIError(f"{choice.paths.root.name} has no log of that rank or node", f"there are {there}")


def _raw(choice: Choice, files: Sequence[LogFile]) -> bool:
    """One rank goes out as it is, unless to a terminal: escapes in it are a stranger's."""
    asked_for_one = choice.ranks is not None and len(choice.ranks) == 1
    return (
        len(files) == 1
        and (asked_for_one or len(find_logs(choice.paths.root, choice.attempt, None, None)) == 1)
        and (choice.pattern is None and not is_terminal(sys.stdout))
    )


def _copy(file: LogFile, lines: int | None) -> None:
    with explained(file.path):
        start, end = (0, file.path.stat().st_size) if lines is None else start_of_last_lines(file.path, lines)
    tail = LogTail(file.path, start)
    stdout = sys.stdout.buffer
    try:
        while tail.offset < end:
            with explained(file.path):
                data = tail.poll(min(BLOCK_BYTES, end - tail.offset))
            if not data:
                return
            stdout.write(data)
        stdout.flush()
    finally:
        tail.close()


def _prefixes(files: Sequence[LogFile], color: bool) -> Prefixes:
    return Prefixes.of([(f.host, f.rank) for f in files], color)


def _print_lines(choice: Choice, file: LogFile, prefixes: Prefixes, color: bool) -> None:
    """All of a log that is there now."""
    show = _shower(choice, prefixes, color)
    feed = _feed(choice, file)
    try:
        while True:
            with explained(file.path):
                data = feed.tail.poll(BLOCK_BYTES)
            if not data:
                break
            show(feed, feed.lines.feed(data))
        last = feed.lines.flush()
        if last is not None:
            show(feed, (last,))
        sys.stdout.buffer.flush()
    finally:
        feed.tail.close()


def _feed(choice: Choice, file: LogFile) -> Feed:
    with explained(file.path):
        if choice.lines is None:
            start = 0
        elif choice.pattern is None:
            start = start_of_last_lines(file.path, choice.lines)[0]
        else:
            start = start_of_last_matches(file.path, choice.pattern, choice.lines)
    return Feed(file.rank, file.host, file.attempt, LogTail(file.path, start))


def _shower(choice: Choice, prefixes: Prefixes, color: bool) -> Callable[[Feed, Sequence[Line]], None]:
    """Writes lines where they are wanted; whoever calls it flushes."""
    from tui.sgr import coloured

    stdout = sys.stdout.buffer

    def show(feed: Feed, lines: Sequence[Line]) -> None:
        prefix = prefixes.text(feed.host, feed.rank)
        for line in lines:
            text = line.text
            if choice.pattern is None or choice.pattern.search(text):
                shown = coloured(line.raw) if color else text
                stdout.write(f"{prefix}{shown}\n".encode("utf-8", "surrogateescape"))

    return show


async def _follow(choice: Choice, color: bool) -> int:
    """Print what is there, then what comes, until the run is over."""
    from engine.client import attach

    session = await attach(choice.paths, start=False)
    if not session.live and not session.snapshot.over:
        say("\n".join(session.snapshot.findings))
    ended = asyncio.Event()

    async def watch() -> None:
        try:
            async for update in session.updates():
                if update.snapshot.over:
                    return
        except TrainUIError as err:
            say(str(err))
        finally:
            ended.set()

    watcher = asyncio.create_task(watch())
    try:
        if await _one_rank(choice, ended):
            await _follow_raw(choice, ended)
        else:
            await _follow_lines(choice, color, ended)
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        await session.close()
    return EXIT_OK


async def _one_rank(choice: Choice, ended: asyncio.Event) -> bool:
    """Whether bytes go out as they are; waits for a single rank that was asked for and has not begun yet."""
    pace = Pace()
    while choice.ranks is not None and len(choice.ranks) == 1 and not choice.files() and not ended.is_set():  # noqa: ASYNC110 (a file tells nobody that it came)
        await asyncio.sleep(pace.next(False))
    return _raw(choice, choice.files())


async def _follow_raw(choice: Choice, ended: asyncio.Event) -> None:
    """The bytes of one rank, over all attempts that begin meanwhile."""
    file: LogFile | None = choice.files()[0]
    lines = choice.lines
    while file is not None:
        with explained(file.path):
            start = 0 if lines is None else start_of_last_lines(file.path, lines)[0]
        tail = LogTail(file.path, start)
        try:
            async for data in follow(tail, lambda this=file: ended.is_set() or _next_file(choice, this) is not None):
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
        finally:
            tail.close()
        file, lines = _next_file(choice, file), None


def _next_file(choice: Choice, file: LogFile) -> LogFile | None:
    """The same rank's log of a newer attempt, where there is one."""
    return next((f for f in choice.files() if f.attempt > file.attempt and f.rank == file.rank), None)


async def _follow_lines(choice: Choice, color: bool, ended: asyncio.Event) -> None:
    prefixes = _prefixes(choice.files(), color)
    show = _shower(choice, prefixes, color)
    pump = LogPump(
        choice.paths.root, show, SystemClock(), bars=choice.pattern is None and is_terminal(sys.stdout), complain=say
    )
    known: set[str] = set()

    async def room() -> bool:
        await asyncio.sleep(0)
        return True

    pace = Pace()
    while True:
        last_look = ended.is_set()  # asked before looking: what is written after it would be missed
        for file in choice.files():
            if str(file.path) not in known:
                known.add(str(file.path))
                pump.add(_feed(choice, file))
        got_some = await pump.step(room)
        if last_look and not got_some:
            pump.finish()
        sys.stdout.buffer.flush()
        if last_look and not got_some:
            return
        await asyncio.sleep(pace.next(got_some))
