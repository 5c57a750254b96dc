"""A question that must be answered before anything happens."""

from __future__ import annotations

import textwrap

from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.containers import Container
from textual.screen import ModalScreen
from textual.strip import Strip

from engine.clock import Clock
from tui.present.dialogs import Choice, Question
from tui.present.text import Glyphs, Spans
from tui.widgets.canvas import Canvas
from tui.widgets.paint import spans_strip

# Key repeat and type-ahead must not answer a question that nobody has read yet.
DEAF_S = 0.25
WIDEST = 68


class QuestionView(Canvas):
    """The text of a question and its choices, one in each row.

    Args:
        question: what is asked.
        glyphs: what the terminal can show.
    """

    def __init__(self, question: Question, glyphs: Glyphs) -> None:
        super().__init__()
        self.question = question
        self.glyphs = glyphs
        self.chosen = 0
        self._lines: list[str] = []

    def fit_into(self, width: int) -> None:
        """Wrap the text for a screen that many cells wide, and take the room it needs."""
        room = max(8, min(WIDEST, width - 4))
        lines = [part for line in self.question.lines for part in textwrap.wrap(line, room)]
        self._lines = [*textwrap.wrap(self.question.title, room), *lines, ""]
        longest = max(len(line) for line in [*self._lines, *(choice_text(c) for c in self.question.choices)])
        self.styles.width = min(room, longest + 2)
        self.styles.height = len(self._lines) + len(self.question.choices)
        self.refresh()

    def choice_at(self, y: int) -> Choice | None:
        """The choice in row `y`."""
        index = y - len(self._lines)
        return self.question.choices[index] if 0 <= index < len(self.question.choices) else None

    def move(self, count: int) -> None:
        """Choose another one."""
        self.chosen = (self.chosen + count) % len(self.question.choices)
        self.refresh()

    def row(self, y: int, width: int, base: Style) -> Strip:
        """See `Canvas`."""
        return spans_strip(self._spans(y), width, base)

    def _spans(self, y: int) -> Spans:
        if y < len(self._lines):
            return [(self._lines[y], "strong" if y == 0 else "")]
        choice = self.choice_at(y)
        if choice is None:
            return []
        here = self.question.choices[self.chosen] is choice
        role = ("danger" if choice.danger else "chosen") if here else ""
        return [(f"{self.glyphs.cursor if here else ' '} ", "accent"), (f"{choice_text(choice)} ", role)]

    def on_click(self, event: events.Click) -> None:
        """A click on a choice takes it."""
        choice = self.choice_at(event.y)
        if choice is not None and isinstance(self.screen, Dialog):
            self.screen.take(choice.answer)


def choice_text(choice: Choice) -> str:
    """`[y] Stop`."""
    return f"[{'Esc' if choice.key == 'escape' else choice.key}] {choice.text}"


class Dialog(ModalScreen[str]):
    """Asks; answers with the choice's word, or "" where nothing shall happen.

    Every key is consumed here, and no key but those of the choices does anything.

    Args:
        question: what is asked.
        glyphs: what the terminal can show.
        clock: for the moment in which keys are dropped.
    """

    def __init__(self, question: Question, glyphs: Glyphs, clock: Clock) -> None:
        super().__init__()
        self.question = question
        self._glyphs = glyphs
        self._clock = clock
        self._opened = clock.monotonic()
        self._view = QuestionView(question, glyphs)

    def compose(self) -> ComposeResult:
        """One box in the middle."""
        with Container(classes="box" if self._glyphs.unicode else "box ascii"):
            yield self._view

    def on_mount(self) -> None:
        """The deaf moment begins when it can be seen."""
        self._opened = self._clock.monotonic()
        self._view.fit_into(self.size.width)

    def on_resize(self, event: events.Resize) -> None:
        """Wrap anew."""
        self._view.fit_into(event.size.width)

    def on_key(self, event: events.Key) -> None:
        """All keys end here."""
        event.stop()
        event.prevent_default()
        if self._clock.monotonic() - self._opened < DEAF_S:
            return
        if event.key in ("down", "right", "tab", "j"):
            self._view.move(1)
        elif event.key in ("up", "left", "shift+tab", "k"):
            self._view.move(-1)
        elif event.key == "enter":
            self.take(self.question.choices[self._view.chosen].answer)
        else:
            self._take_by_key(event.key)

    def take(self, answer: str) -> None:
        """Close with an answer."""
        if self.is_current:
            self.dismiss(answer)

    def _take_by_key(self, key: str) -> None:
        for choice in self.question.choices:
            if choice.key == key:
                self.take(choice.answer)
                return
        if key in ("escape", "n", "q", "ctrl+c"):
            self.take("")
