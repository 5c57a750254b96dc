"""What torchrun says about its workers when one of them failed. Pure."""

from __future__ import annotations

import re
import signal as signals

from engine.job.snapshot import Evidence

# The end of the table that torch.distributed.elastic.multiprocessing.errors prints (torch 1.9 and later).
_ROOT_CAUSE = "Root Cause (first observed failure):"
_RANK = re.compile(r"^\s*rank\s*: (\d+) \(local_rank: (\d+)\)")
_EXIT = re.compile(r"^\s*exitcode\s*: (-?\d+) \(pid: (\d+)\)")


def first_worker(tail: tuple[Evidence, ...]) -> tuple[str, tuple[Evidence, ...]] | None:
    """The worker that torchrun saw fail first, as half a sentence, and the lines that say so.

    Args:
        tail: the last lines of torchrun's output.
    """
    start = next((i for i in reversed(range(len(tail))) if _ROOT_CAUSE in tail[i].text), None)
    if start is None:
        return None
    rows = tail[start:]
    rank = next(((e, found) for e in rows if (found := _RANK.match(e.text))), None)
    end = next(((e, found) for e in rows if (found := _EXIT.match(e.text))), None)
    if rank is None or end is None:
        return None
    code = int(end[1][1])
    how = f"exit code {code}" if code >= 0 else _signal_text(-code)
    words = f"its rank {rank[1][1]} (local rank {rank[1][2]}, pid {end[1][2]}) failed first, with {how}"
    return words, (rank[0], end[0])


def _signal_text(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
