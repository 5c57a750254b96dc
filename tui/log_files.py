"""Which logs a run directory holds, by the names of its files alone (contract, section 6); where matches begin."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from engine.errors import TrainUIError
from engine.parse.lines import LineAssembler

_NODE = re.compile(r"(\d+)_(.+)")
_ATTEMPT = re.compile(r"attempt_(\d+)")
_RANK = re.compile(r"rank_(\d+)\.log")
_RANKS = re.compile(r"(\d+)(?:-(\d+))?")
# More ranks than any job has: `--rank 0-999999999` must not fill the memory.
MAX_RANKS = 1_000_000
BLOCK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogFile:
    """The log of one rank in one attempt."""

    path: Path
    node_rank: int
    host: str
    attempt: int
    rank: int


def parse_ranks(words: Iterable[str]) -> frozenset[int]:
    """The ranks in `3`, `0-3`, `0,2`.

    Raises:
        TrainUIError: a word is none of these.
    """
    ranks: set[int] = set()
    for word in words:
        for part in word.split(","):
            match = _RANKS.fullmatch(part.strip())
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if first > last or last > MAX_RANKS:
                raise TrainUIError(f'--rank {word}: "{part}" is no rank', "write 3, 0-3 or 0,2")
            ranks.update(range(first, last + 1))
    return frozenset(ranks)


def all_logs(run_dir: Path) -> list[LogFile]:
    """Every log below a run directory."""
    logs: list[LogFile] = []
    for path in run_dir.glob("nodes/*/attempt_*/rank_*.log"):
        node = _NODE.fullmatch(path.parent.parent.name)
        attempt = _ATTEMPT.fullmatch(path.parent.name)
        rank = _RANK.fullmatch(path.name)
        if node and attempt and rank:
            logs.append(LogFile(path, int(node[1]), node[2], int(attempt[1]), int(rank[1])))
    return logs


def attempts(run_dir: Path) -> list[int]:
    """The attempts that have logs, in order."""
    return sorted({log.attempt for log in all_logs(run_dir)})


def find_logs(
    run_dir: Path, attempt: int | None, ranks: frozenset[int] | None, nodes: frozenset[str] | None
) -> list[LogFile]:
    """The logs of one attempt (None: the newest), in order of rank.

    Args:
        run_dir: the run.
        attempt: which.
        ranks: only these; None is all.
        nodes: only these, by number or host name; None is all.
    """
    logs = all_logs(run_dir)
    wanted = max((log.attempt for log in logs), default=0) if attempt is None else attempt
    return sorted(
        (
            log
            for log in logs
            if log.attempt == wanted
            and (ranks is None or log.rank in ranks)
            and (nodes is None or str(log.node_rank) in nodes or log.host in nodes)
        ),
        key=lambda log: log.rank,
    )


def start_of_last_matches(path: Path, pattern: re.Pattern[str], count: int) -> int:
    """Where the last `count` lines begin in which `pattern` is found (an offset in bytes); the end if there are none.

    Reads the whole file: only a search tells which lines match.

    Raises:
        OSError: the file cannot be read.
    """
    last: deque[int] = deque(maxlen=count)
    lines = LineAssembler()
    # O_NONBLOCK: a fifo in the log's place must not hang us.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        while data := file.read(BLOCK_BYTES):
            last.extend(line.number for line in lines.feed(data) if pattern.search(line.text))
        rest = lines.flush()
        if rest is not None and pattern.search(rest.text):
            last.append(rest.number)
        if not last:
            return file.tell()
        return _offset_of(file, last[0])


def _offset_of(file: BinaryIO, number: int) -> int:
    """Where line `number` (from 1) begins."""
    file.seek(0)
    for _ in range(number - 1):
        file.readline()
    return file.tell()
