"""The yardstick where torchrun is missing: N processes with the ranks' numbers in their environment, no more.

python plain_launcher.py N COMMAND ...
"""

from __future__ import annotations

import os
import subprocess
import sys


def main() -> int:
    world = int(sys.argv[1])
    numbers = {"WORLD_SIZE": str(world), "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    # A session each, as with trainui: where Linux shares the processors out by session (autogroup), eight ranks in
    # one session would get an eighth of what they get in eight.
    ranks = [
        subprocess.Popen(
            sys.argv[2:],
            env=os.environ | numbers | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            start_new_session=True,
        )
        for rank in range(world)
    ]
    return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
