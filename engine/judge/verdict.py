"""Who failed first, and one sentence about it, from exit codes, signals and the log's last words."""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Mapping

from engine.job.snapshot import Evidence, NodeView, RankView, RootCause
from engine.judge.torchrun import first_worker
from engine.model import RankState

# `ValueError: boom`, `torch.cuda.OutOfMemoryError: ...`, `KeyboardInterrupt`: the last line of a traceback.
_EXCEPTION = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Warning|Iteration)\b(?::|$)")
# A traceback's first line, or one of its frames where the first line is further up than the tail reaches.
_TRACEBACK = re.compile(r'Traceback \(most recent call last\)|^ +File ".*", line \d+, in ')
# torch writes it before every line of a traceback once there is a process group.
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_MEANINGS = {
    126: "the command could not be executed",
    127: "the command was not found",
}


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 64` for one without a name."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_exception(tail: tuple[Evidence, ...]) -> Evidence | None:
    """The line that ends the last traceback in `tail`, where there is one."""
    texts = [_bare(e) for e in tail]
    start = max((i for i, text in enumerate(texts) if _TRACEBACK.search(text)), default=None)
    if start is None:
        return None
    found = [e for e, text in zip(tail[start:], texts[start:], strict=True) if _EXCEPTION.match(text)]
    return found[-1] if found else None


def last_said(tail: tuple[Evidence, ...]) -> Evidence | None:
    """The last line, rather one that says something: a rule of dashes does not."""
    return next((e for e in reversed(tail) if any(c.isalnum() for c in e.text)), tail[-1] if tail else None)


def _bare(line: Evidence) -> str:
    return _RANK_PREFIX.sub("", line.text)


def rank_cause(rank: RankView, tail: tuple[Evidence, ...], error: str | None) -> RootCause:
    """The verdict on one rank that failed by itself.

    Args:
        rank: a rank that ended with a non-zero code or a signal.
        tail: the last lines of its log.
        error: why it could not be started, where it could not.
    """
    who = f"rank {rank.rank} on {rank.host}"
    after = "" if rank.started_at is None or rank.ended_at is None else _after(rank.ended_at - rank.started_at)
    exception = last_exception(tail)
    worker = first_worker(tail)
    last = last_said(tail)
    proof = (exception,) if exception and not error else (last,) if last else ()
    if error:
        kind, reason = "unknown", f"{who} could not be started: {error}"
    elif rank.state is RankState.SIGNALLED:
        number = rank.signal or 0
        fault = number in (signals.SIGSEGV, signals.SIGILL, signals.SIGFPE, signals.SIGBUS)
        kind = "segfault" if fault else "interrupted" if number == signals.SIGINT else "killed_by_signal"
        reason = f"{who} was ended by {signal_name(number)}{after}; trainui did not send it"
    elif worker:
        kind, reason = "unknown", f"{who}, torchrun, exited with code {rank.exit_code}{after}: {worker[0]}"
        proof = worker[1]
    elif exception:
        kind, reason = "python_exception", f"{who} exited with code {rank.exit_code}{after}: {_bare(exception)}"
    elif rank.exit_code in _MEANINGS:
        said = f": {last.text}" if last else ""
        kind, reason = "unknown", f"{who}: {_MEANINGS[rank.exit_code]} (code {rank.exit_code}){said}"
    else:
        said = f"; its last line: {last.text}" if last else "; it printed nothing"
        kind, reason = "unknown", f"{who} exited with code {rank.exit_code}{after}{said}"
    return RootCause(rank.rank, rank.node_rank, rank.host, kind, rank.exit_code, rank.signal, reason, proof)


def node_cause(node: NodeView, kind: str = "node_failed") -> RootCause:
    """The verdict where a node could not take part, or vanished."""
    reason = f"node {node.node_rank} ({node.host}): {node.error or 'it could not take part'}"
    return RootCause(None, node.node_rank, node.host, kind, None, None, reason)


def lost_cause(ranks: list[RankView]) -> RootCause:
    """The verdict where nobody saw how ranks ended."""
    first = ranks[0]
    more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    reason = (
        f"rank {first.rank}{more} on {first.host} ended while its agent was gone, so its exit code is not known; "
        "its log says how far it came"
    )
    return RootCause(first.rank, first.node_rank, first.host, "peer_lost", None, None, reason)


def find_cause(
    failed: list[RankView], tails: Mapping[int, tuple[Evidence, ...]], errors: Mapping[int, str]
) -> RootCause | None:
    """The verdict on the first of `failed` (in order of time), or None where nobody failed."""
    if not failed:
        return None
    first = failed[0]
    return rank_cause(first, tails.get(first.rank, ()), errors.get(first.rank))


def exit_status(cause: RootCause | None, failed: list[RankView]) -> int:
    """The status of a job that failed (contract, section 2): never 0.

    The code of the cause; where it has none, the first non-zero one of a rank that we did not signal.
    """
    ends = [(r.exit_code, r.signal) for r in failed]
    if cause is not None:
        ends.insert(0, (cause.code, cause.signal))
    for code, signal in ends:
        if signal:
            return 128 + signal
        if code:
            return code
    return 1


def _after(seconds: float) -> str:
    return f" after {seconds:.1f} s" if seconds < 120 else f" after {seconds / 60:.0f} min"
