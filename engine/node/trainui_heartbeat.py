"""Heartbeats from a training script: `import trainui_heartbeat`, then `step(i)` in the loop.

    import trainui_heartbeat

    for i in range(steps):
        train(i)
        trainui_heartbeat.step(i)
        if i % 1000 == 0:
            with trainui_heartbeat.checkpoint(i):
                save(i)

Standard library only, Python 3.8 or newer. It must never harm the training: nothing here raises, nothing waits for a
disk (a daemon thread writes), and without `TRAINUI_HEARTBEAT_DIR` in the environment nothing happens at all. A forked
child publishes nothing until it calls one of these functions itself, and then under its own pid.
"""

from __future__ import annotations

import atexit
import collections
import json
import os
import threading
import time

__all__ = ["checkpoint", "phase", "step"]

_DEFAULT_INTERVAL_S = 5.0
_MIN_GAP_S = 1.0  # between two records that only say that steps advance
_LAST_WORDS_S = 1.0  # how long the end of the process may wait for the last record
_MAX_WAITING = 256  # records kept while a disk does not take them


class _Publisher:
    """The state of this process, and the thread that writes it down."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._run_id = os.environ.get("TRAINUI_RUN_ID", "")
        self._rank = int(_number(os.environ.get("RANK", os.environ.get("GROUP_RANK", "0")), 0))
        self._interval = max(0.05, _number(os.environ.get("TRAINUI_HEARTBEAT_INTERVAL_S"), _DEFAULT_INTERVAL_S, float))
        self._pid = os.getpid()
        self._fd = -1
        self._torn = False
        self._iteration: int | None = None
        self._sequence = 0
        self._phase = "init"
        self._checkpoints: list[str | None] = []
        self._waiting: collections.deque[dict[str, object]] = collections.deque(maxlen=_MAX_WAITING)
        self._moved = False
        self._ending = False
        self._wake = threading.Event()
        self.say("process_start")
        self._thread = threading.Thread(target=self._run, name="trainui-heartbeat", daemon=True)
        self._thread.start()

    def say(self, event: str) -> None:
        """Have a record of the present state written soon."""
        self._waiting.append(self._record(event))
        self._wake.set()

    def step(self, iteration: int | None) -> None:
        self._iteration = self._iteration_after(iteration)
        self._sequence += 1
        if self._phase == "init":
            self._phase = "training"
        if not self._moved:
            self._moved = True
            self._wake.set()

    def _iteration_after(self, iteration: int | None) -> int:
        if iteration is not None:
            return int(iteration)
        return 0 if self._iteration is None else self._iteration + 1

    def set_phase(self, name: str) -> None:
        self._phase = str(name)
        self.say("heartbeat")

    def begin_checkpoint(self, identity: str | None) -> None:
        self._checkpoints.append(identity)
        self.say("checkpoint_start")

    def end_checkpoint(self, identity: str | None) -> None:
        self.say("checkpoint_end")
        if identity in self._checkpoints:
            self._checkpoints.remove(identity)
        self._sequence += 1

    def end(self) -> None:
        """The process ends: give the thread a moment for what is left to write."""
        self.say("process_end")
        self._thread.join(_LAST_WORDS_S)

    def _record(self, event: str) -> dict[str, object]:
        return {
            "event": event,
            "run_id": self._run_id,
            "rank": self._rank,
            "pid": self._pid,
            "progress_seq": self._sequence,
            "iteration": self._iteration,
            "phase": self._phase,
            "checkpoint_active": bool(self._checkpoints),
            "checkpoint_id": self._checkpoints[-1] if self._checkpoints else None,
            "timestamp_unix_ns": time.time_ns(),
        }

    def _run(self) -> None:
        due = time.monotonic() + self._interval
        said_at = 0.0
        while True:
            try:
                now = time.monotonic()
                wait = due - now
                if self._moved:
                    wait = min(wait, said_at + _MIN_GAP_S - now)
                self._wake.wait(max(0.0, wait))
                self._wake.clear()
                self._drain()
                now = time.monotonic()
                if not self._ending and (now >= due or (self._moved and now >= said_at + _MIN_GAP_S)):
                    self._moved = False
                    # Not through the queue: nothing may come behind the record of the process's end.
                    self._write(self._record("heartbeat"))
                    due, said_at = now + self._interval, now
                    self._drain()
                if self._ending:
                    return
            except Exception:  # the training must not learn of our troubles
                time.sleep(min(1.0, self._interval))

    def _drain(self) -> None:
        while self._waiting:
            record = self._waiting.popleft()
            self._ending = self._ending or record["event"] == "process_end"
            self._write(record)

    def _write(self, record: dict[str, object]) -> None:
        try:
            if self._fd < 0:
                os.makedirs(self._folder, exist_ok=True)
                name = "rank_%d_pid_%d.heartbeat.jsonl" % (self._rank, self._pid)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._fd = os.open(os.path.join(self._folder, name), flags, 0o600)
            data = (json.dumps(record, separators=(",", ":")) + "\n").encode("utf-8")
            # What a full disk cut off must not spoil the next record.
            data = b"\n" + data if self._torn else data
            self._torn = True
            self._torn = os.write(self._fd, data) != len(data)
        except OSError:
            pass  # the next one may succeed


def _number(text: str | None, default: float, kind: type[int] | type[float] = int) -> float:
    try:
        return default if text is None else kind(text)
    except ValueError:
        return default


_publisher: _Publisher | None = None


def _get() -> _Publisher | None:
    global _publisher
    if _publisher is None:
        folder = os.environ.get("TRAINUI_HEARTBEAT_DIR")
        if folder:
            _publisher = _Publisher(folder)
    return _publisher


def step(iteration: int | None = None) -> None:
    """One more step is done. Cheap enough for every step.

    Args:
        iteration: the step's number; without it, one more than the last.
    """
    try:
        publisher = _get()
        if publisher is not None:
            publisher.step(iteration)
    except Exception:  # the training must not learn of our troubles
        pass


def phase(name: str) -> None:
    """What the process does now, in a word: "loading", "training", "evaluating"."""
    try:
        publisher = _get()
        if publisher is not None:
            publisher.set_phase(name)
    except Exception:  # the training must not learn of our troubles
        pass


class checkpoint:
    """While the block runs, a checkpoint is written, and that may take long."""

    def __init__(self, iteration: int | None = None) -> None:
        self._identity = None if iteration is None else str(iteration)

    def __enter__(self) -> checkpoint:
        try:
            publisher = _get()
            if publisher is not None:
                publisher.begin_checkpoint(self._identity)
        except Exception:  # the training must not learn of our troubles
            pass
        return self

    def __exit__(self, *_exc: object) -> None:
        try:
            publisher = _get()
            if publisher is not None:
                publisher.end_checkpoint(self._identity)
        except Exception:  # the training must not learn of our troubles
            pass


def _forget() -> None:
    """In a forked child: the thread stayed behind, and the file is the parent's."""
    global _publisher
    _publisher = None


def _say_goodbye() -> None:
    try:
        if _publisher is not None:
            _publisher.end()
    except Exception:  # the training must not learn of our troubles
        pass


try:
    os.register_at_fork(after_in_child=_forget)
    atexit.register(_say_goodbye)
    _get()
except Exception:  # the training must not learn of our troubles
    pass
