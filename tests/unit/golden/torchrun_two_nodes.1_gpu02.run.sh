#!/usr/bin/env bash
# Runs the node's process of gpt-tiny on node 1, gpu02 (run 20260102-030405-abcd).
# Written by trainui. By hand, in the foreground: bash run.sh

trainui_die() {
  printf 'trainui: %s\n' "$1" >&2
  exit 126
}

trainui_here=${BASH_SOURCE[0]%/*}
case ${BASH_SOURCE[0]} in
  /*) ;;
  */*) trainui_here=$PWD/$trainui_here ;;
  *) trainui_here=$PWD ;;
esac
TRAINUI_NODE_DIR=${TRAINUI_NODE_DIR:-$trainui_here}

trainui_attempt=${TRAINUI_ATTEMPT:-0}
trainui_node_dir=$TRAINUI_NODE_DIR

trainui_numbers() {
  unset RANK GLOBAL_RANK LOCAL_RANK NPROCS # those of a rank
  export WORLD_SIZE=16 LOCAL_WORLD_SIZE=8
  export NODE_RANK=1 NNODES=2
  export GROUP_RANK=1 GROUP_WORLD_SIZE=2
  export TRAINUI_RUN_ID=20260102-030405-abcd
  export TRAINUI_RUN_DIR=/home/me/runs/gpt-tiny/20260102-030405-abcd
  export TRAINUI_NODE_DIR="$trainui_node_dir" TRAINUI_ATTEMPT="$trainui_attempt"
  export TRAINUI_HEARTBEAT_DIR="$trainui_node_dir/attempt_$trainui_attempt/heartbeat"
  export TRAINUI_HEARTBEAT_INTERVAL_S=5
  # The names that FlagScale's publisher reads for the same things.
  export FLAGSCALE_GPU_HEARTBEAT_ENABLE=1 FLAGSCALE_GPU_HEARTBEAT_RUN_ID="$TRAINUI_RUN_ID"
  export FLAGSCALE_GPU_HEARTBEAT_DIR="$TRAINUI_HEARTBEAT_DIR"
  export FLAGSCALE_GPU_HEARTBEAT_INTERVAL_SEC="$TRAINUI_HEARTBEAT_INTERVAL_S"
}
trainui_numbers

export MASTER_ADDR=gpu01
export MASTER_PORT="${MASTER_PORT:-29500}"
export PYTHONUNBUFFERED=1

trainui_cwd=/home/me/job
cd -- "$trainui_cwd" || trainui_die "the folder of task.cwd cannot be entered: $trainui_cwd"

# The rank's own numbers, whatever the lines above have set.
trainui_numbers

export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$TRAINUI_NODE_DIR/lib"

# Only a failed exec gets past this command; by itself bash would not say where it looked.
shopt -s execfail
trainui_status=0
trainui_program=python
exec -- python \
  -m torch.distributed.run \
  --nnodes 2 \
  --nproc-per-node 8 \
  --node-rank 1 \
  --rdzv-backend c10d \
  --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" \
  --rdzv-id "$TRAINUI_RUN_ID-$TRAINUI_ATTEMPT" \
  --rdzv-conf is_host=false \
  --max-restarts 3 \
  train.py || trainui_status=$?
if [ "$trainui_status" -eq 127 ]; then
  printf 'trainui: command not found: %s (folder: %s; PATH: %s)\n' "$trainui_program" "$PWD" "${PATH-}" >&2
else
  printf 'trainui: the command cannot be run: %s (folder: %s)\n' "$trainui_program" "$PWD" >&2
fi
exit "$trainui_status"
