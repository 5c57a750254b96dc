"""How long the command takes that does nothing, and the job that does nothing."""

from __future__ import annotations

from measure import PYTHON, TRAINUI, alternate, table, workplace


def main(rounds: int) -> str:
    with workplace() as place:
        config = place.config("nothing", ["true"], 1)

        def job() -> float:
            took = place.seconds([TRAINUI, str(config), "--no-ui"])
            place.wait_engines()
            return took

        results = alternate(
            {
                "python -c pass": lambda: place.seconds([PYTHON, "-c", "pass"]),
                "trainui --version": lambda: place.seconds([TRAINUI, "--version"]),
                "trainui --help": lambda: place.seconds([TRAINUI, "--help"]),
                "trainui ls": lambda: place.seconds([TRAINUI, "ls"]),
                "trainui CFG --no-ui (1 rank: true)": job,
            },
            rounds,
        )
    return table("Start-up, to the end of the command", results)
