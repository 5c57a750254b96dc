"""What can go wrong that is not our bug: each is a sentence a user can act on."""

from __future__ import annotations

# Exit statuses of the contract (section 2); 69 is EX_UNAVAILABLE of sysexits.h.
EXIT_OK = 0
EXIT_USAGE = 2
EXIT_UNAVAILABLE = 69
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class TrainUIError(Exception):
    """A fault to be shown as it stands, without a traceback.

    Args:
        message: what is wrong and where, one sentence (a config may have several: one per line).
        hint: what to do about it, or "".
    """

    exit_status = EXIT_USAGE

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(TrainUIError):
    """The config cannot be used; `lines` holds every fault of it, one line each."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class PlanError(TrainUIError):
    """The config is sound, but this machine or these hosts cannot run it."""


class RunDirError(TrainUIError):
    """The run directory cannot be made, found or written."""


class RunNotFound(TrainUIError):
    """No run, or more than one, answers to that name."""


class PreflightError(TrainUIError):
    """A node failed a check before the start; nothing was started."""

    exit_status = EXIT_UNAVAILABLE


class LinkError(TrainUIError):
    """A node could not be reached, or its agent could not be started there.

    Args:
        kind: one word for programs, such as `refused` or `auth` (engine/link/ssh_model.py lists them), or "".
        retry: False where trying again by itself can only do harm: login, host key, config.
    """

    exit_status = EXIT_UNAVAILABLE

    def __init__(self, message: str, hint: str = "", *, kind: str = "", retry: bool = True) -> None:
        super().__init__(message, hint)
        self.kind = kind
        self.retry = retry


class EngineGone(TrainUIError):
    """The engine process of the run ended or does not answer."""

    exit_status = EXIT_UNAVAILABLE


class EngineSilent(EngineGone):
    """The engine process lives, but says nothing: it is stopped, or starved. Trying again does not help."""


class IntentRefused(TrainUIError):
    """The engine will not do that now; the message says why."""
