"""A console on a fake session in a real terminal; prints how it was left. Started by test_terminal.py."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

from fake_session import FakeSession, make_logs, make_snapshot

from tui.app import run_console


async def flood(path: Path) -> None:
    """Write a log as fast as it can be shown, for a terminal that does not read."""
    number = 0
    while True:
        with path.open("ab") as file:
            for _ in range(100):
                number += 1
                file.write(b"\x1b[%dmline %d %s\x1b[0m\n" % (31 + number % 6, number, b"x" * 50))
        await asyncio.sleep(0.02)


async def main() -> None:
    folder, how = Path(sys.argv[1]), sys.argv[2]
    snapshot = make_snapshot(folder)
    make_logs(snapshot)
    session = FakeSession(snapshot)
    if how == "fault":
        session.updates = None  # type: ignore[assignment]  # a bug of ours
    task = asyncio.create_task(flood(folder / snapshot.ranks[0].log)) if how == "flood" else None
    result = await run_console(session)
    if task is not None:
        task.cancel()
    print(f"left: {result.action}", flush=True)


asyncio.run(main())
