#!/usr/bin/env bash
# Runs hooks.after_stop of gpt-tiny on node 0, gpu01 (run 20260102-030405-abcd).
# Written by trainui. By hand, in the foreground: bash after_stop.sh

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
  export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
  export NODE_RANK=0 NNODES=1
  export GROUP_RANK=0 GROUP_WORLD_SIZE=1
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

export MASTER_ADDR=127.0.0.1
export MASTER_PORT="${MASTER_PORT:-29501}"
export PYTHONUNBUFFERED=1

trainui_cwd=/home/me/job
cd -- "$trainui_cwd" || trainui_die "the folder of task.cwd cannot be entered: $trainui_cwd"

export OMP_NUM_THREADS=4
# shellcheck disable=SC2016 # meant as it is written
export TITLE='zwei
Zeilen $x `y`'
# WANDB_API_KEY: in secrets.sh, which is not shown.
[ -r "$trainui_node_dir/secrets.sh" ] || trainui_die "secrets.sh cannot be read in $trainui_node_dir"
# shellcheck source=/dev/null # written beside this script
. "$trainui_node_dir/secrets.sh"
# env_expand: $NAME is replaced, no command is run.
export PATH="/opt/x/bin:${PATH-}"
trainui_word_0=":${LD_LIBRARY_PATH-}"
export LD_LIBRARY_PATH="/opt/x/lib${LD_LIBRARY_PATH:+$trainui_word_0}"

trainui_numbers

# hooks.after_stop ----------------------------------------
rm -rf scratch
