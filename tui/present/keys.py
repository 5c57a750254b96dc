"""The keys: one table that binds them, lists them in the help, and names them in the last row. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from engine.job.snapshot import Snapshot
from engine.model import Phase
from tui.present.text import Spans, width_of


@dataclass(frozen=True, slots=True)
class Key:
    """One action.

    Attributes:
        id: under which it can be remapped.
        keys: Textual's names, separated by commas; the first is what is shown.
        shown: how the keys are written in the help.
        action: what is run.
        text: what it does, for the help and the palette.
        short: for the last row; "" keeps it out of there.
        scope: anywhere | table | log | job
    """

    id: str
    keys: str
    shown: str
    action: str
    text: str
    short: str = ""
    scope: str = "anywhere"


KEYS = (
    Key("job.stop", "x", "x", "ask('stop')", "Stop the job: SIGTERM, grace, SIGKILL (asks first)", "Stop", "job"),
    Key("job.kill", "X", "X", "ask('kill')", "Kill the job at once (asks first)", "Kill", "job"),
    Key("job.restart", "R", "R", "ask('restart')", "Restart the job (asks first)", "Restart", "job"),
    Key(
        "job.grace", "plus", "+", "more_grace", "Half a minute more before SIGKILL, while stopping", "More time", "job"
    ),
    Key(
        "log.follow", "f,G,end", "f G End", "follow", "Follow the log; at its end again after a pause", "Follow", "log"
    ),
    Key("log.wrap", "w", "w", "wrap", "Wrap long lines, or not", "Wrap", "log"),
    Key("log.next", "right_square_bracket", "]", "neighbour(1)", "Log of the next rank", "", "log"),
    Key("log.previous", "left_square_bracket", "[", "neighbour(-1)", "Log of the rank before", "", "log"),
    Key("view.zoom", "z", "z", "zoom", "Give the focused pane the whole screen, and back", "Zoom"),
    Key("view.palette", "colon,ctrl+p", ": Ctrl+P", "command_palette", "Find an action by its name", "Actions"),
    Key("view.redraw", "ctrl+l", "Ctrl+L", "redraw", "Draw the screen anew"),
    Key("view.back", "escape", "Esc", "back", "Back: out of a zoom or the help; never quits"),
    Key("help", "question_mark,f1", "? F1", "help", "This list", "Help"),
    Key("quit", "q", "q Ctrl+C Ctrl+Q", "leave", "Back; at the top: detach, stop and quit, or stay", "Quit"),
)

# Bound by the panes themselves; listed in the help as they stand.
PANE_KEYS = (
    ("anywhere", "Tab Shift+Tab", "The other pane"),
    ("anywhere", "0-9", "Log of that local rank on the selected rank's node"),
    ("table", "Up Down j k", "One rank up or down; the log follows"),
    ("table", "PgUp PgDn", "A page up or down"),
    ("table", "g Home, G End", "First rank, last rank"),
    ("table", "Enter l", "Go to the rank's log"),
    ("log", "Up Down j k", "One row; going up pauses, lines that come in move nothing"),
    ("log", "PgUp PgDn Space", "A page up or down"),
    ("log", "Left Right h l", "To the side; ^ is column 0"),
    ("log", "Home g", "The very first line"),
)

SCOPES = (("job", "THE JOB"), ("anywhere", "ANYWHERE"), ("table", "IN THE TABLE"), ("log", "IN THE LOG"))
CHANGES_JOB = frozenset({"job.stop", "job.kill", "job.restart", "job.grace"})


def help_rows(*, read_only: bool) -> list[Spans]:
    """The help, a row each."""
    rows: list[Spans] = []
    for scope, title in SCOPES:
        listed = [(keys, text) for where, keys, text in PANE_KEYS if where == scope]
        listed += [(k.shown, k.text) for k in KEYS if k.scope == scope and not (read_only and k.id in CHANGES_JOB)]
        if not listed:
            continue
        if rows:
            rows.append([])
        rows.append([(title, "strong")])
        rows += [[(f"  {keys:<17}", "accent"), (text, "")] for keys, text in listed]
    return rows


def foot_row(width: int, snapshot: Snapshot, *, read_only: bool) -> Spans:
    """The last row: as many keys as fit, with quit and help always among them, and those that mean something now."""
    stopping = snapshot.phase is Phase.STOPPING
    hidden = {"job.stop"} if stopping or snapshot.over else set[str]()
    hidden |= CHANGES_JOB if read_only else set[str]()
    hidden |= set[str]() if stopping else {"job.kill", "job.grace"}
    wanted = [k for k in KEYS if k.short and k.id not in hidden]
    while True:
        spans: Spans = []
        for key in wanted:
            spans += [(f" {key.shown.split()[0]}", "key"), (f" {key.short} ", "")]
        spare = [k for k in wanted if k.id not in ("quit", "help")]
        if width_of(spans) <= width or not spare:
            return spans
        wanted.remove(spare[-1])
