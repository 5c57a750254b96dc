"""What the bridge tells the console."""

from __future__ import annotations

from textual.message import Message

from engine.session import Update


class Changed(Message):
    """There is a newer snapshot, and events that led to it."""

    def __init__(self, update: Update) -> None:
        super().__init__()
        self.update = update


class EngineLost(Message):
    """The engine of the run vanished. `final`: nobody tries to find it any more; `why`: a sentence."""

    def __init__(self, why: str, *, final: bool) -> None:
        super().__init__()
        self.why = why
        self.final = final


class EngineFound(Message):
    """There is an engine again."""


class SessionOver(Message):
    """The engine ended in order: the run is over and nothing will change."""
