"""The config that `trainui init` writes: commented, and it runs as it is on any machine."""

from __future__ import annotations

from pathlib import Path

from engine.errors import TrainUIError

STARTER = r"""# A trainui config. It runs as it is:  trainui trainui.yml
# Every key is described in docs/config.md. Any value can be given on the command line instead:
#   trainui trainui.yml cluster.nproc_per_node=4 env.LR=1e-4

# name: my-run                # names the run's folder; default: this file's name without .yml
# run_root: runs              # where runs are kept; default: $TRAINUI_RUN_ROOT, else ./runs

task:
  # One process for each rank. A list reaches the program word for word, no shell in between.
  # Put your own command here, such as [python, train.py, --lr, "${env.LR}"].
  command:
    - python3
    - -c
    - |
      import os, time
      rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
      steps, lr = int(os.environ["STEPS"]), float(os.environ["LR"])
      x = float(rank + 1)
      for step in range(1, steps + 1):
          x -= lr * 2 * x  # one step down the slope of x * x
          print(f"step {step}/{steps} loss {x * x:.6f} (rank {rank} of {world})", flush=True)
          time.sleep(0.2)
  # cwd: .                    # where the command runs; default: where trainui is started
  # mode: per_node            # one process that starts the others by itself, instead of one for each rank
  # torchrun: {}              # wrap the command in torchrun: {max_restarts: 0} and the like

# Values arrive byte for byte as they are written here; nothing in them is expanded.
env:
  STEPS: 50
  LR: 1e-2
  # HF_TOKEN: ${oc.env:HF_TOKEN}      # names with TOKEN, KEY, SECRET, PASSWORD are masked wherever shown

# The same, with $VARIABLES expanded where the ranks run.
# env_expand:
#   PATH: "/opt/tools/bin:$PATH"

# hooks:                      # lines of bash
#   activate: source venv/bin/activate        # in each rank's shell, before the command
#   before_start: nvidia-smi                  # once, before the ranks; if it fails, nothing is started
#   after_stop: rm -rf /tmp/my-cache          # once, when everything is down

# mkdirs: [checkpoints]       # made before the start

cluster:
  launcher: local             # this machine
  nproc_per_node: 2           # how many ranks; auto: as many as there are GPUs
  # gpu_binding: auto         # each rank sees its own GPU; none: all ranks see all of them

fail:
  policy: stop                # a rank that fails ends the job; continue: the others go on
  grace_s: 30                 # how long the others may still write their own last lines

stop:
  grace_s: 15                 # SIGTERM, this long, then SIGKILL

restart:
  policy: never               # on_failure: start again, at most `max` times
  max: 3
  backoff_s: 10
"""


def write_starter(path: Path, force: bool = False) -> None:
    """Write the starter config.

    Args:
        path: the file to make; its folder must be there.
        force: replace a file that is there already.

    Raises:
        TrainUIError: the file is there already, or cannot be written.
    """
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(STARTER)
    except FileExistsError:
        raise TrainUIError(f"{path} is there already", "give another name") from None
    except FileNotFoundError:
        raise TrainUIError(f"{path} cannot be written: there is no folder {path.parent}", "make it first") from None
    except OSError as e:
        raise TrainUIError(f"{path} cannot be written: {e.strerror or e}") from None
