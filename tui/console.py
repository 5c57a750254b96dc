"""The console: keys to questions, answers to requests, messages to the screen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from engine.clock import Clock
from engine.job.snapshot import Snapshot
from engine.model import Phase
from engine.session import Intent, MoreGrace, RestartJob, Session, StopJob
from tui.app import Action, ConsoleResult
from tui.bridge import Bridge, Reconnect
from tui.event_text import Level, notes
from tui.messages import Changed, EngineFound, EngineLost
from tui.present import dialogs
from tui.present.keys import CHANGES_JOB, KEYS
from tui.present.text import Glyphs, glyphs_for, plain_terminal
from tui.screens.dialog import Dialog
from tui.screens.help import Help
from tui.screens.main import MainScreen
from tui.terminal import output_waits

LOG_HZ = 15
TABLE_HZ = 4
_ROLES = {Level.WARNING: "warn", Level.ERROR: "bad"}
_QUESTIONS = {
    "stop": dialogs.stop_question,
    "kill": dialogs.kill_question,
    "restart": dialogs.restart_question,
}
_INTENTS: dict[str, Callable[[], Intent]] = {
    "stop": StopJob,
    "kill": lambda: StopJob(kill=True),
    "restart": RestartJob,
}


class Console(App[ConsoleResult]):
    """The screen of one run.

    Args:
        session: the run.
        read_only: nothing can be changed from here.
        reconnect: opens a new session where the engine vanished.
        clock: for ages and the deaf moment of dialogs.
        glyphs: what the terminal can show; found out from the environment by default.
    """

    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(k.keys, k.action, k.text, show=False, id=k.id) for k in KEYS),
        *(Binding(str(n), f"local_rank({n})", show=False, id=f"log.local_rank_{n}") for n in range(10)),
    ]

    def __init__(
        self,
        session: Session,
        *,
        read_only: bool = False,
        reconnect: Reconnect | None = None,
        clock: Clock,
        glyphs: Glyphs | None = None,
    ) -> None:
        modest = plain_terminal(os.environ)
        super().__init__(ansi_color=True if modest else None)
        if modest:
            self.theme = "ansi-dark"
        self.title = "trainui"
        self.bridge = Bridge(session, self.post_message, reconnect)
        self._read_only = read_only
        self._clock = clock
        self._glyphs = glyphs or glyphs_for(os.environ)
        self._main = MainScreen(self.snapshot, session.run_dir, self._glyphs, clock, read_only=read_only)
        self._shown_cause: tuple[int, int] | None = None
        self._leaving = False  # quit as soon as everything is down
        self._stopped_here = False
        self._gone = False
        self._farewell: Dialog | None = None  # the question whether to leave

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot."""
        return self.bridge.snapshot

    def get_default_screen(self) -> Screen[None]:
        """The one screen there is."""
        return self._main

    def on_mount(self) -> None:
        """Begin to follow."""
        self.run_worker(self.bridge.run(), name="bridge")
        self.set_interval(1 / LOG_HZ, self._tick_log)
        self.set_interval(1 / TABLE_HZ, self._tick_table)

    def _tick_log(self) -> None:
        if not output_waits(self._driver):
            self._main.tick_log()

    def _tick_table(self) -> None:
        if not output_waits(self._driver):
            self._main.tick_table(self.snapshot)

    def _draw(self) -> None:
        """Show what is new, unless the terminal is behind: then the next tick does."""
        if not output_waits(self._driver):
            self._main.show(self.snapshot)

    def _say(self, text: str, role: str = "") -> None:
        self._main.say(text, role)
        self._draw()

    # From the bridge

    def on_changed(self, message: Changed) -> None:
        """A newer snapshot."""
        update = message.update
        hosts = [node.host for node in update.snapshot.nodes]
        told = [n for n in notes(update.events, hosts) if n.level >= Level.INFO]
        if told:
            self._main.say(told[-1].text, _ROLES.get(told[-1].level, ""))
        self._draw()
        self._show_cause()
        if update.snapshot.over and self._farewell is not None and self.screen is self._farewell:
            self._farewell.dismiss(None)  # "It runs on", it says
        if self._leaving and update.snapshot.over:
            self._quit("stopped")

    def on_engine_lost(self, message: EngineLost) -> None:
        """The engine vanished."""
        if message.final:
            self._gone = True
            self._main.alarm(f"the engine is gone, what you see is old: {message.why}")
        else:
            self._main.alarm("the engine vanished; reconnecting")
        self._draw()

    def on_engine_found(self, _: EngineFound) -> None:
        """It is back."""
        self._main.alarm("")
        self._say("an engine looks after the run again")

    def _show_cause(self) -> None:
        """Open the log of the rank that failed first, once for each failure."""
        cause = self.snapshot.root_cause
        if cause is None or cause.rank is None:
            return
        key = (self.snapshot.attempt, cause.rank)
        if key != self._shown_cause and self._main.select(cause.rank):
            self._shown_cause = key

    # The job

    def action_ask(self, what: str) -> None:
        """Ask before a stop, a kill, a restart."""
        if self._in_dialog:
            return
        why = dialogs.refusal(what, self.snapshot, read_only=self._read_only)
        if why:
            self._say(why, "warn")
            return
        question = _QUESTIONS[what](self.snapshot, self._clock.wall())
        self.push_screen(Dialog(question, self._glyphs, self._clock), self._answered)

    def action_more_grace(self) -> None:
        """SIGKILL comes later."""
        why = dialogs.refusal("grace", self.snapshot, read_only=self._read_only)
        if why:
            self._say(why, "warn")
        else:
            self._request(MoreGrace())

    def _answered(self, answer: str | None) -> None:
        if answer:
            self._stopped_here = answer != "restart"
            self._leaving = False
            self._request(_INTENTS[answer]())

    def _request(self, intent: Intent) -> None:
        self.run_worker(self._send(intent), group="requests")

    async def _send(self, intent: Intent) -> None:
        why = await self.bridge.do(intent)
        if why is not None:
            self._leaving = False
            self._say(why, "bad")

    # Leaving

    async def action_quit(self) -> None:
        """Ctrl+Q: the same as Ctrl+C."""
        self._ask_to_leave()

    def action_help_quit(self) -> None:
        """Ctrl+C, where nothing is selected that it could copy."""
        self._ask_to_leave()

    def action_leave(self) -> None:
        """`q`: back; at the top, leave."""
        if self._main.zoomed:
            self._main.zoom("")
        else:
            self._ask_to_leave()

    def terminate(self) -> None:
        """A signal told us to go: the job runs on."""
        self.exit(ConsoleResult("terminated", self.snapshot))

    def _ask_to_leave(self) -> None:
        if self._in_dialog:
            return
        if self.snapshot.over or self.snapshot.stuck:
            self._quit("stopped" if self._stopped_here else "ended")
        elif self._gone:
            self._quit("gone")
        else:
            question = dialogs.quit_question(self.snapshot, read_only=self._read_only)
            self._farewell = Dialog(question, self._glyphs, self._clock)
            self.push_screen(self._farewell, self._left)

    def _left(self, answer: str | None) -> None:
        if answer == "detach":
            self._quit("detached")
        elif answer == "stop":
            if self.snapshot.over:
                self._quit("ended")
                return
            self._leaving = self._stopped_here = True
            if self.snapshot.phase is not Phase.STOPPING:
                self._request(StopJob())
            self._say("stopping, then leaving", "warn")

    def _quit(self, action: Action) -> None:
        self.exit(ConsoleResult(action, self.snapshot))

    @property
    def _in_dialog(self) -> bool:
        return self.screen is not self._main

    # The view

    def action_follow(self) -> None:
        """To the end of the log, and stay there."""
        self._main.log_view.set_follow()

    def action_wrap(self) -> None:
        """Wrap long lines, or not."""
        self._main.log_view.toggle_wrap()
        self._main.draw_log_title()

    def action_neighbour(self, step: int) -> None:
        """The log of the rank beside."""
        self._main.table.action_move(step)

    def action_local_rank(self, number: int) -> None:
        """The log of a local rank on the node of the selected one."""
        here = self._main.selected
        for rank in self.snapshot.ranks:
            if here is not None and rank.node_rank == here.node_rank and rank.local_rank == number:
                self._main.select(rank.rank)

    def action_zoom(self) -> None:
        """The focused pane alone, and back."""
        if self._main.has_class("small"):
            return
        pane = "table" if self._main.table.has_focus else "log"
        self._main.zoom("" if self._main.zoomed else pane)

    async def action_back(self) -> None:
        """Out of a zoom."""
        if self._main.zoomed:
            self._main.zoom("")

    def action_redraw(self) -> None:
        """Draw everything anew, for a terminal that others wrote into."""
        self.screen.refresh(repaint=True, layout=True)

    def action_help(self) -> None:
        """All keys."""
        if not self._in_dialog:
            self.push_screen(Help(self._glyphs, read_only=self._read_only))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Everything that has a key, by its name."""
        del screen
        for key in KEYS:
            hidden = key.id in CHANGES_JOB and self._read_only
            if not hidden and key.id not in ("view.palette", "view.back"):
                yield SystemCommand(key.text, f"key {key.shown}", self._runner(key.action))

    def _runner(self, action: str) -> Callable[[], None]:
        def run() -> None:
            # Behind the palette: it is still closing when it calls us.
            self.call_later(self.run_action, action)

        return run
