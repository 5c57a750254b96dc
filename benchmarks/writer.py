"""A rank that works a little and writes much: BYTES to stdout, once GO exists; its time is left in DONE.<rank>.

python writer.py BYTES READY GO DONE
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

LINE = b"step 1234/100000 loss 2.345678 lr 3.0e-04 step_time 0.123 tokens/s 123456 tflops 123.4 grad_norm 1.234\n"
# Additions before each write of 100 kB: about 2 ms, so that there is a training to be slowed down.
WORK = 100_000


def main() -> None:
    size, ready, go, done = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4]
    rank = os.environ["RANK"]
    Path(f"{ready}.{rank}").touch()
    while not go.exists():
        time.sleep(0.002)
    block = LINE * 1000
    begun, left = time.monotonic(), size
    while left > 0:
        sum(range(WORK))
        left -= os.write(1, block[:left])
    took = time.monotonic() - begun
    part = Path(f"{done}.part.{rank}")
    part.write_text(repr(took))
    part.rename(f"{done}.{rank}")


if __name__ == "__main__":
    main()
